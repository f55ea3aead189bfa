"""Where the tasks of a study run: one protocol for this process, local processes and SLURM, and the record of jobs.

A launcher is told all tasks at once and looks after their order itself. Whoever drives it calls `poll` until nothing
waits or runs. The states it gives are those of its own jobs; what a run has really reached stands in the run folders.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import ConfigDict, TypeAdapter

from realm_lab.core.files import read_json_lines
from realm_lab.core.records import validated
from realm_lab.errors import UserError
from realm_lab.tracking.study_record import study_folder

if TYPE_CHECKING:
    from realm_lab.runner.tasks import Task

# waiting: for a task before it, for a free place, or for a stage that someone else does; pending: in a queue;
# preempted: stopped by a signal after a checkpoint; cancelled: stopped before it began or by `cancel`.
Condition = Literal["waiting", "pending", "running", "ended", "failed", "preempted", "cancelled"]
UNFINISHED: tuple[Condition, ...] = ("waiting", "pending", "running")


class JobState(NamedTuple):
    """How a task's job stands. `job` is a process id or a SLURM job id, empty before there is one.

    `error` is the last line of a failure, "not run: <task> failed: <line>" where a task before it failed, or says why
    the task waits.
    """

    state: Condition
    job: str = ""
    error: str | None = None


class Launcher(Protocol):
    """Something that runs tasks."""

    name: str
    detached: bool  # True: jobs go on when this process ends

    def submit(self, tasks: Sequence[Task]) -> None:
        """Take on tasks; returns at once. A task's `after` names tasks of this or an earlier submission; a name that is
        in neither is complete already."""

    def poll(self) -> dict[str, JobState]:
        """The state of every task taken on, by name; where there is no daemon, also starts what is ready."""

    def cancel(self, names: Collection[str]) -> None:
        """Stop these tasks: running ones after a checkpoint; waits until local processes have ended."""

    def close(self) -> None:
        """Give back what is held; local processes that still run are stopped after a checkpoint."""


def refuse_unknown(launcher: str, settings: Mapping[str, Any], known: Collection[str]) -> None:
    """A UserError that names the first setting which the launcher does not have."""
    for name in settings:
        if name not in known:
            has = f"choose {', '.join(sorted(known))}" if known else "it has none"
            raise UserError(f"launcher.{launcher}.{name}: no such setting; {has}")


@dataclass(frozen=True)
class SubmittedJob:
    """One line of jobs.jsonl: a task that was given to a queue which outlives us. `keys` maps stage -> key."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    task: str
    keys: dict[str, str]
    job: str
    launcher: str
    host: str
    time: float  # unix seconds


SUBMITTED = TypeAdapter(SubmittedJob)


def jobs_path(root: Path, study_name: str) -> Path:
    """Where the jobs of a study are recorded."""
    return study_folder(Path(root) / "runs", study_name) / "jobs.jsonl"


def record_jobs(root: Path, study_name: str, launcher: str, jobs: Mapping[str, tuple[Mapping[str, str], str]]) -> None:
    """Append jobs to jobs.jsonl: task -> (keys, job id). One write, so that lines of two processes never mix."""
    now, host = time.time(), socket.gethostname()
    lines = [
        json.dumps(asdict(SubmittedJob(task, dict(keys), job, launcher, host, now))) + "\n"
        for task, (keys, job) in jobs.items()
    ]
    path = jobs_path(root, study_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, "".join(lines).encode())
        os.fsync(file)
    finally:
        os.close(file)


def recorded_jobs(root: Path, study_name: str) -> list[SubmittedJob]:
    """The jobs of a study in the order of submission; a broken line is a UserError that names the file."""
    path = jobs_path(root, study_name)
    if not path.exists():
        return []
    return [validated(SUBMITTED, line, path) for line in read_json_lines(path)]
