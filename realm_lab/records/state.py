"""The one state of a run and of each of its stages, read from its folders, for `status`, reports and MLflow.

    PENDING     not started                      QUEUED     a scheduler's job waits for it
    RUNNING     a living process works on it     PREEMPTED  stopped on request after a checkpoint; resumes when rerun
    LOST        its process is gone or silent; resumes from its checkpoint when run again
    CANCELLED   its job was cancelled            FAILED     ended by an error; runs again on request
    COMPLETE    finished, with results

QUEUED and CANCELLED need a scheduler's answer (`jobs`); from the folders they are PENDING or PREEMPTED.
A `Reason` has the cause of a state as fields. Its text is made only here, and never read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal, NamedTuple

from realm_lab.records.digests import is_whole
from realm_lab.records.lease import Holder
from realm_lab.records.run import COLLAPSED, KEY_LENGTH, Flag, RunRecord, StageRun, Status, stage_folder
from realm_lab.records.run_lease import writer_of

State = Literal["PENDING", "QUEUED", "RUNNING", "PREEMPTED", "LOST", "CANCELLED", "FAILED", "COMPLETE"]
STATES: tuple[State, ...] = ("RUNNING", "QUEUED", "PREEMPTED", "LOST", "CANCELLED", "FAILED", "PENDING", "COMPLETE")
UNFINISHED: tuple[State, ...] = ("PENDING", "QUEUED", "RUNNING")  # of a job


class Cause(StrEnum):
    """The cause of a state."""

    ERROR = "error"  # of the stage itself
    NEEDED = "needed"  # not run: another task or stage did not end well
    WAITS = "waits"  # for another task
    TAKEN = "taken"  # another process works on it
    QUEUE = "queue"  # as SLURM has it
    SIGNAL = "signal"  # stopped by one
    CANCELLED = "cancelled"
    GONE = "gone"  # its process is


@dataclass(frozen=True)
class Reason:
    """The reason why a stage or task does not run, or how it ended. `str` makes the text."""

    cause: Cause
    about: str = ""  # the other task, stage or process
    state: State | None = None  # state of the needed stage or task
    detail: str = ""  # an error in one line
    queue: str = ""  # SLURM's answer: the job's state, or why it waits
    log: str = ""  # the file with more

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        match self.cause:
            case Cause.ERROR:
                return self.detail + (f" (see {self.log})" if self.log else "")
            case Cause.NEEDED:
                how = "failed" if self.state == "FAILED" else f"is {(self.state or 'PENDING').lower()}"
                return f"not run: {self.about} {how}{detail}"
            case Cause.WAITS:
                return f"waits for {self.about}"
            case Cause.TAKEN:
                return f"taken by {self.about}"
            case Cause.QUEUE:
                return f"SLURM: {self.queue or 'the job is gone'}" + (f", {self.detail}" if self.detail else "")
            case Cause.GONE:
                gone = self.detail or f"{self.about} is gone or silent"
                return f"{gone} ({self.queue})" if self.queue else gone
            case Cause.SIGNAL:
                return "stopped by a signal"
            case Cause.CANCELLED:
                return "cancelled"


class StageState(NamedTuple):
    """One stage: its state, its status.json, the scheduler's job, if it has one, and the reason."""

    state: State
    status: Status
    job: str = ""
    reason: Reason | None = None

    @property
    def error(self) -> str | None:
        """The reason as text."""
        return None if self.reason is None else str(self.reason)


class RunState(NamedTuple):
    """A run: the overall state, and the state of each of its stages in order."""

    state: State
    stages: dict[str, StageState]

    @property
    def stage(self) -> str | None:
        """The stage that decides: the first that is not complete; None if all are."""
        return next((name for name, stage in self.stages.items() if stage.state != "COMPLETE"), None)

    @property
    def reason(self) -> Reason | None:
        """Why the deciding stage does not run; None if nothing is wrong."""
        return None if self.stage is None else self.stages[self.stage].reason

    @property
    def error(self) -> str | None:
        """The reason as text, with the stage: `<stage>: <last line>`."""
        return None if self.reason is None else f"{self.stage}: {self.reason}"

    @property
    def flags(self) -> dict[str, tuple[Flag, ...]]:
        """stage -> its warnings; stages without any are left out."""
        return {name: stage.status.flags for name, stage in self.stages.items() if stage.status.flags}

    @property
    def has_collapsed(self) -> bool:
        """True if one of its stages was flagged as collapsed."""
        return any(flag.name == COLLAPSED for flags in self.flags.values() for flag in flags)

    @property
    def wall_seconds(self) -> float:
        """Time spent on all its stages so far; a stage shared with another run counts in both."""
        return sum(stage.status.wall_seconds for stage in self.stages.values())


class JobState(NamedTuple):
    """A launcher's view of a task or a stage: a state of its job, the job's id ("" before there is one), and why it
    waits or how it failed."""

    state: State
    job: str = ""
    reason: Reason | None = None

    @property
    def error(self) -> str | None:
        """The reason as text."""
        return None if self.reason is None else str(self.reason)


class StageStates:
    """The stages under a folder of runs, each status.json read once: make a new object to read again.

    `jobs`: name of a stage's folder -> its job in a scheduler.
    """

    def __init__(self, runs: Path, jobs: Mapping[str, JobState] | None = None) -> None:
        self._runs, self._jobs = Path(runs), jobs or {}
        self._known: dict[str, StageState] = {}

    def stage(self, stage: str, key: str) -> StageState:
        """Return the state of a stage by its key, full or shortened. A corpus is complete while its folder exists."""
        folder = stage_folder(self._runs, stage, key)
        if folder.name not in self._known:
            found = stage_state(folder, self._jobs.get(folder.name))
            if stage == "prepare":
                is_there = (self._runs / "corpora" / key[:KEY_LENGTH] / "manifest.json").exists()
                if is_there or found.state == "COMPLETE":
                    found = StageState("COMPLETE" if is_there else "PENDING", found.status)
            self._known[folder.name] = found
        return self._known[folder.name]

    def run(self, keys: Mapping[str, str], corpus_key: str) -> RunState:
        """Return a run with these stages, stage -> key, in order. If it waits for its corpus, `prepare` comes first."""
        found = run_state_of({name: self.stage(name, key) for name, key in keys.items()})
        if found.state != "PENDING":
            return found
        corpus = self.stage("prepare", corpus_key)
        return found if corpus.state == "COMPLETE" else run_state_of({"prepare": corpus, **found.stages})


def stage_state(folder: Path, job: JobState | None = None) -> StageState:
    """Return the state of the stage in a folder, which need not exist."""
    status = StageRun(folder, folder.name.partition("-")[0]).status()
    state, reason = _state(folder, status, job)
    return StageState(state, status, job.job if job else "", reason)


def error_of(status: Status) -> Reason:
    """Return the reason of a stage that failed."""
    return Reason(Cause.ERROR, detail=status.error or "unknown error")


def run_state_of(stages: Mapping[str, StageState]) -> RunState:
    """Combine these stages to a run: COMPLETE if all are, else the state of the first that is not."""
    for stage in stages.values():
        if stage.state != "COMPLETE":
            return RunState(stage.state, dict(stages))
    return RunState("COMPLETE", dict(stages))


def run_state(runs: Path, record: RunRecord, jobs: Mapping[str, JobState] | None = None) -> RunState:
    """Return the state of a recorded run; `jobs` as in StageStates."""
    return StageStates(runs, jobs).run(record.keys, record.inputs.get("corpus", ""))


def at_work(folder: Path, job: JobState | None) -> Holder | None:
    """Return the process that seems to work on the stage in a folder; None for a job that has ended."""
    holder = writer_of(folder)
    if holder is None or job is None or job.state in UNFINISHED:
        return holder
    return holder if holder.owner.job != job.job else None


def _state(folder: Path, status: Status, job: JobState | None) -> tuple[State, Reason | None]:
    if status.state == "COMPLETE":
        # if something that it made is gone: to be done again
        return ("COMPLETE", None) if is_whole(folder) else ("PENDING", None)
    is_running = job is not None and job.state == "RUNNING"  # by the scheduler, whatever the clock of its machine
    if status.state == "RUNNING" and (is_running or at_work(folder, job) is not None):
        return "RUNNING", None
    if job is not None and job.state in UNFINISHED:  # also of a run that waits to go on
        return "QUEUED", job.reason
    if status.state == "RUNNING":
        if job is not None and job.state == "CANCELLED":  # killed before it had written a checkpoint
            return "CANCELLED", job.reason
        process = f"process {status.pid} on {status.host}"
        told = job.error if job is not None else None
        return "LOST", Reason(Cause.GONE, process, detail=status.error or "", queue=told or "")
    if status.state == "FAILED":
        return "FAILED", error_of(status)
    if job is not None and job.state in ("FAILED", "LOST"):  # it ended without a word in the folder
        return "LOST", job.reason
    if job is not None and job.state == "CANCELLED":
        return "CANCELLED", job.reason
    return status.state, None
