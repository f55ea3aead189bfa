"""The one state of a run and of each of its stages, read from its folders: what `status`, reports and MLflow show.

    PENDING     not begun                        QUEUED     a scheduler's job waits for it
    RUNNING     a living process works on it     PREEMPTED  stopped on request after a checkpoint; resumes when rerun
    LOST        its process is gone or silent; goes on from its checkpoint when run again
    CANCELLED   its job was cancelled            FAILED     ended by an error of its own; runs again on request
    COMPLETE    finished, with results

QUEUED and CANCELLED need what a scheduler says (`jobs`); from the folders alone they are PENDING or PREEMPTED.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from realm_lab.tracking.run_dir import RunRecord, StageRun, Status
from realm_lab.tracking.run_lease import writer_of

State = Literal["PENDING", "QUEUED", "RUNNING", "PREEMPTED", "LOST", "CANCELLED", "FAILED", "COMPLETE"]
STATES: tuple[State, ...] = ("RUNNING", "QUEUED", "PREEMPTED", "LOST", "CANCELLED", "FAILED", "PENDING", "COMPLETE")
UNDER_WAY: tuple[State, ...] = ("RUNNING", "QUEUED")


class StageState(NamedTuple):
    """One stage: its state, what its status.json says, and the scheduler's job, if it has one."""

    state: State
    status: Status
    job: str = ""
    error: str | None = None


class RunState(NamedTuple):
    """A run: the state of the whole, and of each of its stages in order."""

    state: State
    stages: dict[str, StageState]

    @property
    def stage(self) -> str | None:
        """The stage that decides: the first that is not complete; None when all are."""
        return next((name for name, stage in self.stages.items() if stage.state != "COMPLETE"), None)

    @property
    def error(self) -> str | None:
        """Why the deciding stage does not run, as `<stage>: <last line>`; None where nothing is wrong."""
        name = self.stage
        if name is None or self.stages[name].error is None:
            return None
        return f"{name}: {self.stages[name].error}"

    @property
    def flags(self) -> dict[str, tuple[str, ...]]:
        """stage -> its warnings, such as "collapsed: ..."; stages without any are left out."""
        return {name: stage.status.flags for name, stage in self.stages.items() if stage.status.flags}

    @property
    def has_collapsed(self) -> bool:
        """True if one of its stages was flagged as collapsed."""
        return any(flag.startswith("collapsed") for flags in self.flags.values() for flag in flags)

    @property
    def wall_seconds(self) -> float:
        """Time spent on all its stages so far; a stage shared with another run counts in both."""
        return sum(stage.status.wall_seconds for stage in self.stages.values())


class JobState(NamedTuple):
    """What a scheduler says of a stage's job."""

    state: Literal["QUEUED", "RUNNING", "CANCELLED", "FAILED", "ENDED"]
    job: str = ""
    error: str | None = None


def stage_state(folder: Path, job: JobState | None = None) -> StageState:
    """The state of the stage in a folder, which need not exist."""
    status = StageRun(folder, folder.name.partition("-")[0]).status()
    state, error = _state(folder, status, job)
    return StageState(state, status, job.job if job else "", error)


def run_state_of(stages: Mapping[str, StageState]) -> RunState:
    """A run of these stages: COMPLETE if all are, else the state of the first that is not."""
    for stage in stages.values():
        if stage.state != "COMPLETE":
            return RunState(stage.state, dict(stages))
    return RunState("COMPLETE", dict(stages))


def run_state(runs: Path, record: RunRecord, jobs: Mapping[str, JobState] | None = None) -> RunState:
    """The state of a recorded run; `jobs`: name of a stage's folder -> its job."""
    stages = {}
    for name, folder in record.stages.items():
        path = Path(runs) / folder
        stages[name] = stage_state(path, (jobs or {}).get(path.name))
    return run_state_of(stages)


def _state(folder: Path, status: Status, job: JobState | None) -> tuple[State, str | None]:
    if status.state == "COMPLETE":
        # without results, what it made is gone: to be done again
        return ("COMPLETE", None) if (folder / "results.json").exists() else ("PENDING", None)
    if status.state == "RUNNING" and not _is_gone(folder, status):
        return "RUNNING", None
    if job is not None and job.state in ("QUEUED", "RUNNING"):  # also of a run that waits to go on
        return "QUEUED", job.error
    if status.state == "RUNNING":
        return "LOST", f"process {status.pid} on {status.host} is gone or silent"
    if status.state == "FAILED":
        return "FAILED", (status.error or "unknown error").removeprefix("UserError: ")
    if job is not None and job.state == "FAILED":
        return "LOST", job.error
    if job is not None and job.state == "CANCELLED":
        return "CANCELLED", job.error
    return status.state, None


def _is_gone(folder: Path, status: Status) -> bool:
    """True if the process that says it runs is dead (on this machine) or has been silent for too long (elsewhere)."""
    return status.is_lost if status.host == socket.gethostname() else writer_of(folder) is None
