"""Tasks waiting for their turn: what a launcher without a daemon asks which of them may start now.

The run folders decide: a task whose stages another process has done meanwhile is over without being started, and one
whose stage another process works on waits for it. So two sweeps of one study share the work, and do nothing twice.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from realm_lab.runner.jobs import UNFINISHED, JobState
from realm_lab.runner.state import StageStates
from realm_lab.systems.identity import Plan
from realm_lab.tracking.run_dir import KEY_LENGTH, StageRun
from realm_lab.tracking.run_lease import writer_of

if TYPE_CHECKING:
    from realm_lab.runner.tasks import Task

FOREIGN_INTERVAL_SECONDS = 1.0  # between two looks at a task that waits for another process


def stage_run(task: Task, stage: str, root: Path) -> StageRun:
    """The folder of one of the task's stages, which need not exist yet."""
    return StageRun(Path(root) / "runs" / "stages" / f"{stage}-{task.keys[stage][:KEY_LENGTH]}", stage)


def is_done(task: Task, root: Path) -> bool:
    """All stages are complete; the corpus is so where studies keep it."""
    plan, states = Plan(task.system, task.seed, task.keys.get("prepare", ""), task.keys), StageStates(root)
    return all(states.stage(plan, stage).state == "COMPLETE" for stage in task.stages)


def worked_on_by(task: Task, root: Path) -> str | None:
    """The other process that works on a stage of the task, in words; None if there is none."""
    for stage in task.stages:
        holder = writer_of(stage_run(task, stage, root).path)
        if holder is not None and (holder.owner.pid, holder.owner.host) != (os.getpid(), socket.gethostname()):
            return f"process {holder.owner.pid} on {holder.owner.host}"
    return None


class Board:
    """The tasks that a launcher has taken on, in order, and how each stands."""

    def __init__(self, root: Path):
        self._root = Path(root)
        self._tasks: dict[str, Task] = {}
        self._states: dict[str, JobState] = {}
        self._looked_at: dict[str, float] = {}

    def add(self, tasks: Iterable[Task]) -> None:
        """Take on tasks; one that is already here and has ended badly begins again."""
        for task in tasks:
            known = self._states.get(task.name)
            if known is None or known.state not in (*UNFINISHED, "ended"):
                self._tasks[task.name] = task
                self._states[task.name] = JobState("waiting")

    @property
    def states(self) -> dict[str, JobState]:
        """A copy."""
        return dict(self._states)

    def task(self, name: str) -> Task:
        """The task of that name."""
        return self._tasks[name]

    def unfinished(self) -> list[Task]:
        """Those that wait or run."""
        return [self._tasks[name] for name, state in self._states.items() if state.state in UNFINISHED]

    def put(self, name: str, state: JobState) -> None:
        """Say how a task stands."""
        self._states[name] = state

    def put_off(self, name: str, whom: str) -> None:
        """The task waits for another process."""
        self._states[name] = JobState("waiting", error=f"runs in {whom}")
        self._looked_at[name] = time.monotonic()

    def next_ready(self) -> Task | None:
        """The first task that may start now; on the way, those that can not be run any more are marked."""
        for name, state in self._states.items():
            if state.state != "waiting":
                continue
            task = self._tasks[name]
            before = [self._states[other] for other in task.after if other in self._states]
            spoilt = [other for other in task.after if other in self._states and self._is_spoilt(other)]
            if spoilt:
                self._spoil(name, spoilt[0])
            elif all(other.state == "ended" for other in before) and self._is_free(task):
                return task
        return None

    def _is_spoilt(self, name: str) -> bool:
        return self._states[name].state in ("failed", "preempted", "cancelled")

    def _spoil(self, name: str, before: str) -> None:
        """A task cannot run because the one before it did not come to its end."""
        state = self._states[before]
        if state.error is not None and state.error.startswith("not run: "):
            self._states[name] = JobState(state.state, error=state.error)
        elif state.state == "failed":
            self._states[name] = JobState("failed", error=f"not run: {self._tasks[before].title} failed: {state.error}")
        else:
            self._states[name] = JobState("cancelled", error=f"not run: {self._tasks[before].title} was stopped")

    def _is_free(self, task: Task) -> bool:
        """Not done and not worked on by another process; marks what it finds."""
        now = time.monotonic()
        if now - self._looked_at.get(task.name, -FOREIGN_INTERVAL_SECONDS) < FOREIGN_INTERVAL_SECONDS:
            return False
        if is_done(task, self._root):
            self._states[task.name] = JobState("ended")
            return False
        whom = worked_on_by(task, self._root)
        if whom is not None:
            self.put_off(task.name, whom)
        return whom is None
