"""The one state of a run and of each of its stages, read from its folders, for `status`, reports and MLflow.

    PENDING     not started                      QUEUED     a scheduler's job waits for it
    RUNNING     a living process works on it     PREEMPTED  stopped on request after a checkpoint; resumes when rerun
    LOST        its process is gone or silent; resumes from its checkpoint when run again
    CANCELLED   its job was cancelled            FAILED     ended by an error; runs again on request
    COMPLETE    finished, with results

QUEUED and CANCELLED need a scheduler's answer (`jobs`). Without it the folder decides: PENDING, PREEMPTED or LOST.
A `Reason` has the cause of a state as fields. Its text is made only here, and never read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from realm_lab.records.digests import is_whole
from realm_lab.records.lease import Holder
from realm_lab.records.run import KEY_LENGTH, Run, StageRun, State, Status, stage_folder
from realm_lab.records.run_lease import writer_of

STATES: tuple[State, ...] = ("RUNNING", "QUEUED", "PREEMPTED", "LOST", "CANCELLED", "FAILED", "PENDING", "COMPLETE")
UNFINISHED: tuple[State, ...] = ("PENDING", "QUEUED", "RUNNING")  # states of a job that has not ended


class Cause(StrEnum):
    """The kind of a `Reason`."""

    ERROR = "error"  # of the stage itself
    NEEDED = "needed"  # not run: another task or stage did not end well
    WAITS = "waits"  # for another task
    TAKEN = "taken"  # another process works on it
    QUEUE = "queue"  # the job's state in SLURM
    SIGNAL = "signal"  # stopped by a signal
    CANCELLED = "cancelled"
    GONE = "gone"  # its process is gone


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
    """The state of a stage or of a launcher's task, the id of its job ("" without one), the reason why it waits or
    failed, and the stage's status.json."""

    state: State
    job: str = ""
    reason: Reason | None = None
    status: Status = Status()

    @property
    def error(self) -> str | None:
        """The reason as text."""
        return None if self.reason is None else str(self.reason)


class StageStates:
    """The stages under a folder of runs, each status.json read once: make a new object to read again.

    `jobs`: name of a stage's folder -> its job in a scheduler.
    """

    def __init__(self, runs: Path, jobs: Mapping[str, StageState] | None = None) -> None:
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
                    found = StageState("COMPLETE" if is_there else "PENDING", status=found.status)
            self._known[folder.name] = found
        return self._known[folder.name]

    def look(self, run: Run, until: str = "") -> Run:
        """Return a run with the states of its stages, in order, as far as the stage `until`, or the run's last. If it
        waits for its corpus, `prepare` comes first."""
        states = {stage: self.stage(stage, key) for stage, key in run.keys(until).items()}
        waits = next((one.state for one in states.values() if one.state != "COMPLETE"), None) == "PENDING"
        if waits and (corpus := self.stage("prepare", run.corpus_key)).state != "COMPLETE":
            states = {"prepare": corpus, **states}
        return replace(run, runs=self._runs, states=states)


def stage_state(folder: Path, job: StageState | None = None) -> StageState:
    """Return the state of the stage in a folder, which need not exist."""
    status = StageRun(folder, folder.name.partition("-")[0]).status()
    state, reason = _state(folder, status, job)
    return StageState(state, job.job if job else "", reason, status)


def error_of(status: Status) -> Reason:
    """Return the reason of a stage that failed."""
    return Reason(Cause.ERROR, detail=status.error or "unknown error")


def at_work(folder: Path, job: StageState | None) -> Holder | None:
    """Return the process that seems to work on the stage in a folder; None if there is none, or if it belongs to `job`
    and that has ended."""
    holder = writer_of(folder)
    if holder is None or job is None or job.state in UNFINISHED:
        return holder
    return holder if holder.owner.job != job.job else None


def _state(folder: Path, status: Status, job: StageState | None) -> tuple[State, Reason | None]:
    if status.state == "COMPLETE":
        # a stage with a missing file is done again
        return ("COMPLETE", None) if is_whole(folder) else ("PENDING", None)
    is_running = job is not None and job.state == "RUNNING"  # the scheduler's word counts more than heartbeats
    if status.state == "RUNNING" and (is_running or at_work(folder, job) is not None):
        return "RUNNING", None
    if job is not None and job.state in UNFINISHED:  # a requeued job, too
        return "QUEUED", job.reason
    if status.state == "RUNNING":
        if job is not None and job.state == "CANCELLED":  # killed before it had written a checkpoint
            return "CANCELLED", job.reason
        process = f"process {status.pid} on {status.host}"
        answer = job.error if job is not None else None
        return "LOST", Reason(Cause.GONE, process, detail=status.error or "", queue=answer or "")
    if status.state == "FAILED":
        return "FAILED", error_of(status)
    if job is not None and job.state in ("FAILED", "LOST"):  # its job ended and wrote nothing
        return "LOST", job.reason
    if job is not None and job.state == "CANCELLED":
        return "CANCELLED", job.reason
    return status.state, None
