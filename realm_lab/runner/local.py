"""A few tasks at a time, each in processes of its own, with the cores and GPUs of this machine shared out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from realm_lab.core.launched import cores, visible_gpus
from realm_lab.errors import UserError
from realm_lab.runner.board import Board, is_done, stage_run, worked_on_by
from realm_lab.runner.jobs import JobState, refuse_unknown
from realm_lab.runner.workers import SHARED_STAGES, Outcome, Workers
from realm_lab.tracking.run_lease import LOST_CODE, TAKEN_CODE
from realm_lab.tracking.study_record import study_folder

if TYPE_CHECKING:
    from realm_lab.runner.tasks import Task

SETTINGS = ("processes",)


class Share(NamedTuple):
    """How the machine is shared out: tasks at a time, and cores of each process."""

    width: int
    threads: int


class _Running(NamedTuple):
    task: Task
    workers: Workers
    gpus: tuple[str, ...]


def share_out(tasks: int, ranks: int, cores: int, gpus: int, processes: int = 0, threads: int = 0) -> Share:
    """As many tasks at a time as there are cores (or GPUs, where there are any) for their ranks, and never more cores
    in use than there are.

    `processes` and `threads` are what the user has said, 0 for nothing.
    """
    room = (gpus or cores) // ranks
    width = max(1, min(tasks, processes or room))
    return Share(width, threads or max(1, cores // (width * ranks)))


class LocalLauncher:
    """A bounded pool: `poll` starts what is ready and reaps what has ended."""

    name = "local"
    detached = False

    def __init__(self, settings: Mapping[str, Any], root: Path, study_name: str):
        refuse_unknown(self.name, settings, SETTINGS)
        processes = settings.get("processes") or 0
        if not isinstance(processes, int) or processes < 0:
            raise UserError(f"launcher.local.processes: {processes!r} is no number of tasks; give 1 or more")
        self._processes = processes
        self._root = Path(root)
        self._logs = study_folder(self._root / "runs", study_name) / "logs"
        self._board = Board(self._root)
        self._running: list[_Running] = []
        self._share = Share(1, 1)
        self._gpus: list[str] = []

    def submit(self, tasks: Sequence[Task]) -> None:
        """Take on tasks and share the machine out among all that are not finished."""
        self._board.add(tasks)
        todo = self._board.unfinished()
        if not todo:
            return
        launch = todo[0].params.launch  # of the study: no cell may change it
        self._gpus = visible_gpus(launch.device)
        self._share = share_out(
            max(len(todo), self._share.width if self._running else 0),
            launch.ranks,
            cores(),
            len(self._gpus),
            self._processes or launch.processes,
            launch.threads,
        )

    def poll(self) -> dict[str, JobState]:
        """Reap what has ended, start what is ready."""
        for item in [item for item in self._running if item.workers.has_ended]:
            self._running.remove(item)
            self._end(item.task, item.workers, item.workers.reap())
        while len(self._running) < self._share.width:
            task = self._board.next_ready()
            if task is None:
                break
            self._start(task)
        return self._board.states

    def cancel(self, names: Collection[str]) -> None:
        """Tasks that wait are not begun; those that run stop after a checkpoint, for which this waits."""
        for name, state in self._board.states.items():
            if name in names and state.state == "waiting":
                self._board.put(name, JobState("cancelled", error="cancelled"))
        self._stop([item for item in self._running if item.task.name in names])

    def close(self) -> None:
        """Stop everything; a second signal while this waits for checkpoints ends the processes at once."""
        self.cancel(self._board.states)

    def _stop(self, items: list[_Running]) -> None:
        for item in items:
            item.workers.terminate()
        try:
            for item in items:
                outcome = item.workers.wait()
                self._running.remove(item)
                self._end(item.task, item.workers, outcome)
        except BaseException:
            for item in self._running:
                item.workers.kill()
            raise

    def _start(self, task: Task) -> None:
        ranks = task.params.launch.ranks if set(task.stages) & set(SHARED_STAGES) else 1
        taken = Counter(gpu for item in self._running for gpu in item.gpus)
        gpus = tuple(sorted(self._gpus, key=lambda gpu: taken[gpu])[:ranks])
        workers = Workers.start(
            task.job(self._root),
            ranks=ranks,
            threads=self._share.threads,
            gpus=gpus or None,
            log=self._logs / f"{task.name}.txt",
        )
        self._running.append(_Running(task, workers, gpus))
        self._board.put(task.name, JobState("running", str(workers.pids[0])))

    def _end(self, task: Task, workers: Workers, outcome: Outcome) -> None:
        job = str(workers.pids[0])
        for stage in task.stages:
            workers.settle(stage_run(task, stage, self._root), outcome)
        if outcome.code == 0:
            self._board.put(task.name, JobState("ended", job))
        elif outcome.was_stopped:
            self._board.put(task.name, JobState("preempted", job, "stopped by a signal"))
        elif is_done(task, self._root):  # by another process, which was quicker
            self._board.put(task.name, JobState("ended", job))
        elif outcome.code in (TAKEN_CODE, LOST_CODE):  # it may be between two stages now
            self._board.put_off(task.name, worked_on_by(task, self._root) or "another process")
        else:
            line = outcome.line
            if outcome.code == 1:
                line += f" (see {self._logs / task.name}.txt)"
            self._board.put(task.name, JobState("failed", job, line))
