"""What SLURM says about jobs: squeue for those it remembers, sacct for older ones where there is accounting."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection, Iterable
from typing import NamedTuple

from realm_lab.errors import UserError

ANSWER_SECONDS = 30.0
PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
RUNNING = {"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
# Where a job waits in the course of things; any other reason is worth a word.
USUAL_REASONS = {"None", "Resources", "Priority", "Dependency", "JobArrayTaskLimit", "BeginTime", "Cleaning"}


class Queued(NamedTuple):
    """One job, or one element of an array, in SLURM's words: `state` such as RUNNING, `reason` to wait or to end."""

    state: str
    reason: str

    @property
    def is_live(self) -> bool:
        """It waits or runs."""
        return self.state in PENDING or self.state in RUNNING


def look_up(jobs: Collection[str], job_name: str) -> dict[str, Queued]:
    """What SLURM knows of these jobs (17 or 17_3); one that it does not know, or that has another name, is left out.

    Raises:
        UserError: SLURM does not answer, so that nothing is known; not where there is no SLURM at all.
    """
    if not jobs or shutil.which("squeue") is None:
        return {}
    masters = sorted({job.split("_")[0] for job in jobs}, key=int)
    found: dict[str, Queued] = {}
    squeue = ("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r|%j")
    for line in _squeue_lines(squeue, masters):
        job, state, reason, name = line.split("|", 3)
        if name == job_name:
            found[job] = Queued(state, reason)
    older = [job for job in jobs if job not in found]
    if older:
        found |= _sacct(older, job_name)
    return {job: found[job] for job in jobs if job in found}


def cancel(jobs: Iterable[str]) -> None:
    """End exactly these; one that is over already is no error."""
    wanted = list(jobs)
    for start in range(0, len(wanted), 500):
        _run("scancel", *wanted[start : start + 500])


def _squeue_lines(command: tuple[str, ...], masters: list[str]) -> list[str]:
    code, text = _run(*command, f"--jobs={','.join(masters)}")
    if code and "Invalid job id" in text:  # said when the only job, or each of them, is forgotten
        return []
    if code:
        raise UserError(f"squeue: {text.strip().splitlines()[-1] if text.strip() else 'no answer'}; try again later")
    return [line for line in text.splitlines() if line.count("|") >= 3]


def _sacct(jobs: list[str], job_name: str) -> dict[str, Queued]:
    """The accounting's word; nothing where there is none."""
    if shutil.which("sacct") is None:
        return {}
    masters = sorted({job.split("_")[0] for job in jobs}, key=int)
    fields = "--format=JobID,State,Reason,JobName%200"
    code, text = _run("sacct", "--noheader", "--parsable2", "--allocations", fields, f"--jobs={','.join(masters)}")
    if code:
        return {}
    found = {}
    for line in text.splitlines():
        job, state, reason, name = line.split("|", 3)
        if name == job_name and state:
            found[job] = Queued(state.split()[0], reason)  # CANCELLED by 1000
    return found


def _run(*command: str) -> tuple[int, str]:
    """(exit code, what it said); a program that hangs or is missing is an error like any other."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr + done.stdout
