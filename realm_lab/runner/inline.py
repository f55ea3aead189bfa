"""One task after another in this process: for small studies, for debugging, and where nothing else may be started."""

from __future__ import annotations

import os
import traceback
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realm_lab.core.files import write_text
from realm_lab.errors import UserError
from realm_lab.runner.board import Board, worked_on_by
from realm_lab.runner.jobs import JobState, refuse_unknown
from realm_lab.tracking.run_lease import Taken
from realm_lab.tracking.study_record import study_folder

if TYPE_CHECKING:
    from realm_lab.runner.tasks import Task


class InlineLauncher:
    """Each `poll` does one whole task. Several ranks are not started: one process does every batch alone."""

    name = "inline"
    detached = False

    def __init__(self, settings: Mapping[str, Any], root: Path, study_name: str):
        refuse_unknown(self.name, settings, ())
        self._root = Path(root)
        self._logs = study_folder(self._root / "runs", study_name) / "logs"
        self._board = Board(self._root)

    def submit(self, tasks: Sequence[Task]) -> None:
        """Take on tasks."""
        self._board.add(tasks)

    def poll(self) -> dict[str, JobState]:
        """Do the next task to its end; the states of all.

        Raises:
            SystemExit, KeyboardInterrupt: a signal stopped the task, after a checkpoint where it was training.
        """
        task = self._board.next_ready()
        if task is not None:
            self._do(task)
        return self._board.states

    def cancel(self, names: Collection[str]) -> None:
        """Tasks that wait are not begun."""
        for name, state in self._board.states.items():
            if name in names and state.state == "waiting":
                self._board.put(name, JobState("cancelled", error="cancelled"))

    def close(self) -> None:
        """What waits is not begun."""
        self.cancel(self._board.states)

    def _do(self, task: Task) -> None:
        from realm_lab.runner.worker import run_stage  # brings torch

        pid = str(os.getpid())
        try:
            for stage in task.stages:
                run_stage(stage, task.system, task.params, task.seed, self._root, for_study=True)
        except (KeyboardInterrupt, SystemExit):
            self._board.put(task.name, JobState("preempted", pid, "stopped by a signal"))
            raise
        except Taken:  # by one that was quicker, and may be between two stages now
            self._board.put_off(task.name, worked_on_by(task, self._root) or "another process")
        except UserError as error:
            self._board.put(task.name, JobState("failed", pid, " ".join(str(error).split())))
        except Exception as error:
            write_text(self._logs / f"{task.name}.txt", traceback.format_exc())
            line = f"{type(error).__name__}: {' '.join(str(error).split())} (see {self._logs / task.name}.txt)"
            self._board.put(task.name, JobState("failed", pid, line))
        else:
            self._board.put(task.name, JobState("ended", pid))
