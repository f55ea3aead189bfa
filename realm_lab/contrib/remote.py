"""The base of launchers that run tasks in processes elsewhere; the project's folder must be shared with them.

`python -m realm_lab.contrib.remote FILE` does the work of a task file on another machine. It does not import torch.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from realm_lab.errors import UserError
from realm_lab.lab.launchers import Launcher, LauncherSettings
from realm_lab.lab.tasks import Task
from realm_lab.lab.workers import POLL_SECONDS, Outcome, Workers
from realm_lab.records.files import read_json, write_json
from realm_lab.records.run import StageRun
from realm_lab.records.run_lease import LOST_CODE
from realm_lab.records.state import Cause, Reason, StageState

LAST_CHARACTERS = 2000  # of standard error that are printed: no more than a pipe takes
LOOK_SECONDS = 2.0  # between two looks for a task file
QUEUE_SECONDS = 10.0  # time for a task that was started elsewhere to take its lease
MOST_LOSSES = 5  # most restarts of a task whose process elsewhere was gone


class RemoteLauncher(Launcher):
    """Runs tasks in processes elsewhere, which share the project's folder. A subclass starts the work of a task file
    and reports its end. If a process is gone, its task is started again, at most MOST_LOSSES times."""

    at_once: int | None = 64

    def __init__(self, settings: LauncherSettings, root: Path, study: str):
        super().__init__(settings, Path(root).absolute(), study)
        self._tasks_folder = self._logs.with_name("tasks")
        self._files: dict[str, Path] = {}  # of tasks that were started
        self._losses: Counter[str] = Counter()

    def start(self, task: Task, file: Path) -> str:
        """Start `python -m realm_lab.contrib.remote FILE` somewhere, and return the id of its job without waiting. That
        process stops after a checkpoint when the file is removed."""
        raise NotImplementedError

    def ended(self) -> Iterable[tuple[str, Outcome]]:
        """Yield the name of each started task whose process has ended, once, with its exit code and standard error. The
        exit code LOST_CODE means that the process is gone; its task is started again. By default the exit code and
        standard error are read from the file of `end_of`."""
        folder = self._tasks_folder
        there = set(os.listdir(folder)) if self._files else set()
        for name, file in [*self._files.items()]:
            if (end := end_of(file)).name in there:
                yield name, Outcome(*read_json(end))

    def poll(self) -> dict[str, StageState]:
        """Collect ended tasks, start ready ones."""
        self._collect()
        while (self.at_once is None or len(self._files) < self.at_once) and (task := self.next_ready()) is not None:
            file = self._tasks_folder / f"{task.name}-{secrets.token_hex(4)}.json"
            write_json(file, task_file(task.job(self._root), task.ranks, task.runs(self._root), self._log(task)))
            self._files[task.name] = file
            self.states[task.name] = StageState("RUNNING", self.start(task, file))
        # A task to be started again is QUEUED: a sweep waits for it even if it does not wait for other processes.
        again = {name for name, count in self._losses.items() if count and self.states[name].state == "PENDING"}
        return {name: state._replace(state="QUEUED") if name in again else state for name, state in self.states.items()}

    def cancel(self, names: Collection[str]) -> None:
        """Drop waiting tasks, and wait until started ones have stopped after a checkpoint. A started task without a
        process is still in a queue: it finds no file when its turn comes."""
        super().cancel(names)
        asked = {name for name in self._files if name in names}
        for name in asked:
            self._files[name].unlink(missing_ok=True)
        deadline = time.monotonic() + QUEUE_SECONDS
        while left := self._files.keys() & asked:
            self._collect()
            time.sleep(POLL_SECONDS)
            for name in left if time.monotonic() > deadline else ():
                if name in self._files and self.other_writer(self.tasks[name]) is None:
                    del self._files[name]
                    self.states[name] = StageState("CANCELLED", reason=Reason(Cause.CANCELLED))

    def _collect(self) -> None:
        for name, outcome in self.ended():
            file = self._files.pop(name, None)
            if file is None:
                continue  # `cancel` dropped the task while it was queued
            is_lost = file.exists() and (outcome.code == LOST_CODE or outcome.was_stopped)  # `cancel` removes the file
            for left in (file, end_of(file)):
                left.unlink(missing_ok=True)
            self._losses[name] += is_lost
            if is_lost and self._losses[name] <= MOST_LOSSES:
                self.states[name] = StageState("PENDING")
                continue
            if is_lost:
                outcome = Outcome(2, f"its process was gone {self._losses[name]} times: {outcome.line}")
            self.end(name, self.states[name].job, outcome)


def task_file(job: Mapping[str, Any], ranks: int, stages: Iterable[StageRun], log: Path) -> dict[str, Any]:
    """Return the contents of a task file, which is all that another machine needs for a job."""
    folders = {stage.stage: str(stage.path) for stage in stages}
    return {"job": dict(job), "ranks": ranks, "stages": folders, "log": str(log), "folder": os.getcwd()}


def do_file(path: str) -> tuple[int, str]:
    """Do the work of a task file here until it ends; if the file is removed, stop after a checkpoint. Returns the exit
    code and standard error, as an Outcome has them."""
    file = Path(path)
    try:
        given = read_json(file)
        threads = given["job"]["params"]["launch"]["threads"] or 1
        log, folder = Path(given["log"]), given["folder"]
        workers = Workers(given["job"], ranks=given["ranks"], threads=threads, log=log, folder=folder)
    except (UserError, OSError) as error:
        return 2, f"{socket.gethostname()} does not see the folder of the study: {error}"
    try:
        looked, is_wanted = time.monotonic(), True
        while is_wanted and not workers.has_ended:
            time.sleep(POLL_SECONDS)
            if time.monotonic() - looked >= LOOK_SECONDS:
                looked, is_wanted = time.monotonic(), file.exists()
        if not is_wanted:
            workers.terminate()
        outcome = workers.reap() if is_wanted else workers.wait()
    except BaseException:
        workers.terminate()
        workers.wait()
        raise
    for stage, place in given["stages"].items():
        workers.settle(StageRun(Path(place), stage), outcome)
    return outcome.code, outcome.text


def end_of(file: Path) -> Path:
    """Return the file in which the work of a task file notes its exit code and standard error."""
    return file.with_suffix(".end")


def main() -> int:
    """Do the work of a task file, write the file of `end_of`, and return the exit code."""
    code, text = do_file(sys.argv[1])
    if Path(sys.argv[1]).exists():
        write_json(end_of(Path(sys.argv[1])), [code, text])
    print(text[-LAST_CHARACTERS:], file=sys.stderr)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
