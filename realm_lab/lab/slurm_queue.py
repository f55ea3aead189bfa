"""The jobs of a study in SLURM: the submitted ones (jobs.jsonl), and their states from squeue.

The outcome of a job is in the files of its stages, or in ends/ if it did no stage, and in its log. If a job ended
without writing there, its state comes from squeue for some minutes, then from sacct if the cluster keeps accounts.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from realm_lab.errors import UserError
from realm_lab.records.files import read_json_lines, room_for
from realm_lab.records.run import StageRun, stage_folder
from realm_lab.records.state import UNFINISHED, Cause, Reason, StageState, error_of
from realm_lab.records.study import study_folder
from realm_lab.records.validation import read_record, validated

ANSWER_SECONDS = 60.0
ASK_AGAIN_SECONDS = 20.0  # between two questions to sacct about a job: its end is recorded late
PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
RUNNING = {"RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
LIVE = PENDING | RUNNING
# Messages of SLURM's programs if no controller answers.
UNREACHED = re.compile(
    "unable to contact|resolve_ctls|config(uration)? source|fetch_?config|connection (refused|timed out)|"
    "socket timed out|zero bytes|munge|authentication|unable to (resolve|establish)",
    re.IGNORECASE,
)
ASK_FOR_IT = "ask its administrator, or look at SLURM_CONF and the munge and slurmctld services"
NO_REASONS = {"None", "BeginTime", "Cleaning"}  # reasons of squeue that do not explain why a job waits


@dataclass(frozen=True)
class SubmittedJob:
    """One line of jobs.jsonl: a task that was submitted to SLURM. `keys` maps stage -> key."""

    task: str
    keys: dict[str, str]
    job: str

    def runs(self, root: Path) -> list[StageRun]:
        return [StageRun(stage_folder(Path(root) / "runs", stage, key), stage) for stage, key in self.keys.items()]


SUBMITTED = TypeAdapter(SubmittedJob)
REASON = TypeAdapter(Reason)
ENDS = "ends"  # in a study's folder: the Reason, as JSON, of each job that ended without doing a stage


def record_jobs(root: Path, study: str, jobs: Iterable[SubmittedJob]) -> None:
    """Append jobs to jobs.jsonl, in one write, so that lines of two processes never mix."""
    path = _jobs_path(root, study)
    path.parent.mkdir(parents=True, exist_ok=True)
    with room_for(path), open(path, "ab", buffering=0) as file:
        file.write("".join(json.dumps(asdict(job)) + "\n" for job in jobs).encode())
        os.fsync(file.fileno())


def latest_jobs(root: Path, study: str) -> list[SubmittedJob]:
    """Return the last job of each task; a broken line is a UserError that names the file."""
    path = _jobs_path(root, study)
    if not path.exists():
        return []
    jobs = [validated(SUBMITTED, line, path) for line in read_json_lines(path)]
    return list({job.task: job for job in jobs}.values())


def _jobs_path(root: Path, study: str) -> Path:
    return study_folder(Path(root) / "runs", study) / "jobs.jsonl"


def jobs_of_stages(root: Path, *, must_answer: bool = False) -> dict[str, StageState]:
    """Return folder of a stage -> state of its newest waiting or running job, of any study, else of its newest ended
    job. Jobs whose stages are complete are left out. If SLURM does not answer, a note goes to standard error, and the
    study's jobs are left out. UserError, if `must_answer`: SLURM does not answer; jobs might be submitted twice."""
    found: dict[str, StageState] = {}
    for path in sorted((Path(root) / "runs" / "studies").glob("*/jobs.jsonl")):
        study = path.parent.name
        jobs = [job for job in latest_jobs(root, study) if not all(run.is_complete() for run in job.runs(root))]
        try:
            states = job_states(root, study, jobs)
        except UserError as error:
            if must_answer:
                raise UserError(f"study {study}: {error}, or delete {path} if its jobs are gone") from None
            print(f"{study}: {error}; its jobs are not shown", file=sys.stderr)
            continue
        for job in jobs:
            for run in job.runs(root):
                state = states[job.task]
                found[run.path.name] = max(found.get(run.path.name, state), state, key=_rank)
    return found


def _rank(state: StageState) -> tuple[bool, int]:
    """Rank the jobs of a stage: live ones last, newer ones after older ones."""
    return state.state in UNFINISHED, int(state.job.split("_")[0])


def job_states(root: Path, study: str, jobs: Collection[SubmittedJob]) -> dict[str, StageState]:
    """Return task -> state of its job: from SLURM while the job waits or runs, then from the files of its stages."""
    known = look_up({job.job for job in jobs})
    forgotten = [job for job in jobs if job.job not in known]
    known |= accounts({job.job for job in forgotten if not all(run.is_complete() for run in job.runs(root))})
    return {job.task: _job_state(root, study, job, known.get(job.job)) for job in jobs}


def _job_state(root: Path, study: str, job: SubmittedJob, queued: tuple[str, str] | None) -> StageState:
    said, reason = queued or ("", "")  # the state in SLURM, and why the job waits
    if said in LIVE:
        if said not in PENDING:
            return StageState("RUNNING", job.job)
        why = None if reason in NO_REASONS else Reason(Cause.QUEUE, queue=reason)
        return StageState("QUEUED", job.job, why)
    statuses = [run.status() for run in job.runs(root)]
    if all(status.state == "COMPLETE" for status in statuses):
        return StageState("COMPLETE", job.job)
    if said in ("CANCELLED", "PREEMPTED"):
        return StageState("CANCELLED" if said == "CANCELLED" else "PREEMPTED", job.job)
    for status in statuses:
        if status.state == "FAILED":
            return StageState("FAILED", job.job, error_of(status))
        if status.state == "PREEMPTED":
            return StageState("PREEMPTED", job.job)
    folder = study_folder(Path(root) / "runs", study)
    last = _last_words(folder / "slurm" / f"{job.job}_0_log.err") or ""
    why = Reason(Cause.QUEUE, queue=said)
    if all(status.state != "RUNNING" for status in statuses):
        ended = folder / ENDS / f"{job.job}.json"
        if ended.exists():
            why = read_record(ended, REASON)
        elif last:
            why = Reason(Cause.ERROR, detail=last)
    elif last.startswith("slurmstepd"):  # killed in the middle of its work, with SLURM's reason
        why = replace(why, detail=last.partition("error: ")[2])
    may_go_on = why.cause is Cause.NEEDED and why.state != "FAILED"
    return StageState("CANCELLED" if may_go_on else "FAILED", job.job, why)


def _last_words(log: Path) -> str | None:
    """Return the last line of the first rank's log; None: no line. Lines of srun are skipped, and slurmstepd's note
    that a step was cancelled, which may come before or after the reason."""
    if not log.exists():
        return None
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    own = [line for line in lines if line.strip() and not line.startswith("srun:") and " *** STEP " not in line]
    return own[-1].strip() if own else None


def look_up(jobs: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return job (17 or 17_3) -> its state in squeue, such as RUNNING, and why it waits. Jobs that SLURM has forgotten
    are left out; empty if there is no SLURM here. UserError: SLURM does not answer."""
    if not jobs or shutil.which("squeue") is None:
        return {}
    arrays = sorted({job.split("_")[0] for job in jobs}, key=int)
    how = ("--noheader", "--array", "--states=all", "--format=%i|%T|%r")
    code, text = run_program("squeue", *how, f"--jobs={','.join(arrays)}")
    if code and "Invalid job id" not in text:  # squeue's answer if SLURM has forgotten all of them
        raise UserError(f"squeue: {text.strip().splitlines()[-1] if text.strip() else 'no answer'}; try again later")
    lines = [] if code else [line.split("|") for line in text.splitlines()]
    return {line[0]: (line[1], line[2]) for line in lines if len(line) == 3 and line[0] in jobs}


_ended: dict[str, tuple[str, str]] = {}  # job -> its end in sacct, which is final
_asked: dict[str, float] = {}  # job -> when sacct was asked last, by time.monotonic()


def accounts(jobs: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return the ends, by sacct, of jobs that SLURM's controller has forgotten; jobs without a recorded end are left
    out. Empty if the cluster keeps no accounts."""
    now = time.monotonic()
    open_ones = [job for job in jobs if job not in _ended and now - _asked.get(job, -math.inf) >= ASK_AGAIN_SECONDS]
    if open_ones and shutil.which("sacct") is not None:
        _asked.update(dict.fromkeys(open_ones, now))
        arrays = sorted({job.split("_")[0] for job in open_ones}, key=int)
        how = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State")
        code, text = run_program("sacct", *how, f"--jobs={','.join(arrays)}")
        lines = [line.split("|") for line in text.splitlines() if not code and line.count("|") == 1]
        said = {name.partition("[")[0]: words for name, words in lines}  # 17_[2-4]: elements that never started
        for job in open_ones:
            words = said.get(job) or said.get(f"{job.split('_')[0]}_") or "?"
            ended = words.split()[0]  # CANCELLED by 1000
            if words != "?" and ended not in LIVE:
                _ended[job] = ended, ""
    return {job: _ended[job] for job in jobs if job in _ended}


def cancel(jobs: Iterable[str]) -> None:
    """Cancel these jobs; a job that has ended already is no error."""
    if wanted := list(jobs):
        run_program("scancel", *wanted)


def run_program(*command: str) -> tuple[int, str]:
    """Return (exit code, output); the code is 1 for a program that hangs or is missing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr + done.stdout
