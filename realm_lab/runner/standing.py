"""Where each run of a study stands, in one word and one line: its folders and its jobs, seen together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from realm_lab import ENGINE_VERSION
from realm_lab.runner.jobs import UNFINISHED, JobState
from realm_lab.runner.state import StageState, StageStates
from realm_lab.systems.identity import Plan
from realm_lab.tracking.run_dir import KEY_LENGTH, StageRun
from realm_lab.tracking.study_record import StudyRecord

if TYPE_CHECKING:
    from realm_lab.runner.plan import StudyPlan

# QUEUED: a job waits in SLURM; LOST: the process is gone, and the run can go on; CANCELLED: its job was.
Word = Literal["RUNNING", "QUEUED", "PREEMPTED", "LOST", "CANCELLED", "FAILED", "PENDING", "COMPLETE"]
WORDS: tuple[Word, ...] = ("RUNNING", "QUEUED", "PREEMPTED", "LOST", "CANCELLED", "FAILED", "PENDING", "COMPLETE")
UNDER_WAY: tuple[Word, ...] = ("RUNNING", "QUEUED")


class Member(NamedTuple):
    """One run of a study; `plan` may have its keys cut to the letters that folders have."""

    cell: str
    seed: int
    run_key: str
    name: str
    plan: Plan
    engine_version: int

    def stage_runs(self, root: Path) -> dict[str, StageRun]:
        """Stage -> its folder, without the corpus; it need not exist yet."""
        stages = Path(root) / "runs" / "stages"
        keys = self.plan.stages.items()
        return {stage: StageRun(stages / f"{stage}-{key[:KEY_LENGTH]}", stage) for stage, key in keys}


class Standing(NamedTuple):
    """One run. `stage` is the one at work, or the one that decides; `left_seconds` is of this stage alone."""

    state: Word
    stage: str | None = None
    step: int = 0
    total_steps: int = 0
    steps_per_second: float = 0.0
    left_seconds: float | None = None
    error: str | None = None
    flags: tuple[str, ...] = ()  # of all its stages, as "<stage>: <flag>"
    job: str = ""  # in SLURM


def members_of_plan(plan: StudyPlan) -> list[Member]:
    """The runs of a plan, whether they have begun or not."""
    return [Member(run.cell, run.seed, run.run_key, run.name, run.plan, ENGINE_VERSION) for run in plan.runs]


def members_of_record(root: Path, record: StudyRecord) -> list[Member]:
    """The runs of a study as it was swept last, those of its grid included."""
    found = []
    for run in record.everything().runs:
        described = record.record(Path(root) / "runs", run)
        stages = {stage: folder.rpartition("-")[2] for stage, folder in record.cut(described.stages).items()}
        plan = Plan(described.system, described.seed, described.inputs["corpus"], stages)
        found.append(Member(run.cell, run.seed, run.run_key, run.run, plan, described.engine_version))
    return found


def standing_of(member: Member, states: StageStates, queued: Mapping[str, JobState] | None = None) -> Standing:
    """Where a run stands; `queued`: first letters of a stage's key -> its job, as `short_keys` gives it."""
    run = states.run(member.plan)
    flags = tuple(f"{stage}: {flag}" for stage, found in run.stages.items() for flag in found.status.flags)
    if run.state == "COMPLETE":
        return Standing("COMPLETE", flags=flags)
    for stage, found in run.stages.items():
        if found.state != "COMPLETE":
            job = (queued or {}).get(member.plan.key(stage)[:KEY_LENGTH], JobState("ended"))
            return _standing(stage, found, job, flags)
    raise AssertionError("a run is complete when its stages are")


def short_keys(queued: Mapping[str, JobState]) -> dict[str, JobState]:
    """Jobs by the letters of the keys that folders have."""
    return {key[:KEY_LENGTH]: state for key, state in queued.items()}


def _standing(stage: str, found: StageState, job: JobState, flags: tuple[str, ...]) -> Standing:
    word, error = _word(found, job)
    status, rate, left = found.status, 0.0, None
    if word == "RUNNING" and status.steps_per_second > 0:
        rate = status.steps_per_second
        since = max(0.0, time.time() - (status.heartbeat_at or time.time()))
        left = max(0.0, (status.total_steps - status.step) / rate - since)
    return Standing(word, stage, status.step, status.total_steps, rate, left, error, flags, job.job)


def _word(found: StageState, job: JobState) -> tuple[Word, str | None]:
    if found.state == "RUNNING":
        return "RUNNING", None
    if job.state in UNFINISHED:  # also of a run that was stopped, and waits to go on
        return "QUEUED", job.error
    if found.state == "FAILED":
        return "FAILED", (found.status.error or "unknown error").removeprefix("UserError: ")
    if found.state == "LOST":
        return "LOST", f"process {found.status.pid} on {found.status.host} is gone"
    if job.state == "failed":
        return "LOST", job.error
    if job.state == "cancelled":
        return "CANCELLED", job.error
    return ("PREEMPTED", None) if found.state == "PREEMPTED" else ("PENDING", None)
