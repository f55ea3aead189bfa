"""Launchers by their names, and what their queues hold."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from realm_lab.errors import UserError
from realm_lab.runner.jobs import UNFINISHED, JobState, Launcher, SubmittedJob, record_jobs, recorded_jobs
from realm_lab.runner.study import LAUNCHERS
from realm_lab.tracking.run_dir import KEY_LENGTH, StageRun

__all__ = [
    "LAUNCHERS",
    "UNFINISHED",
    "JobState",
    "Launcher",
    "SubmittedJob",
    "make_launcher",
    "queued_jobs",
    "record_jobs",
    "recorded_jobs",
]


def make_launcher(name: str, settings: Mapping[str, Any], root: Path, study_name: str) -> Launcher:
    """The launcher of that name. `settings` is its own part of the study's `launcher` section.

    Raises:
        UserError: no launcher of that name, or settings that it does not know.
    """
    if name == "inline":
        from realm_lab.runner.inline import InlineLauncher

        return InlineLauncher(settings, root, study_name)
    if name == "local":
        from realm_lab.runner.local import LocalLauncher

        return LocalLauncher(settings, root, study_name)
    if name == "slurm":
        from realm_lab.runner.slurm import SlurmLauncher

        return SlurmLauncher(settings, root, study_name)
    raise UserError(f"launcher '{name}': no such launcher; choose {', '.join(LAUNCHERS)}")


def queued_jobs(root: Path, *, must_answer: bool = False) -> dict[str, JobState]:
    """Stage key -> its newest job in a queue, over all studies. Asks the queue only about stages that are not complete.

    A queue that does not answer is named on standard error, and its jobs are left out.

    Raises:
        UserError: it does not answer and `must_answer`: who submits would submit jobs twice.
    """
    found: dict[str, JobState] = {}
    for path in sorted((Path(root) / "runs" / "studies").glob("*/jobs.jsonl")):
        jobs = [job for job in recorded_jobs(root, path.parent.name) if not _is_over(root, job)]
        for name in sorted({job.launcher for job in jobs}):
            try:
                states = make_launcher(name, {}, root, path.parent.name).poll()
            except UserError as error:
                if must_answer:
                    raise UserError(
                        f"study {path.parent.name} has jobs in a queue that does not answer ({error}); try again "
                        f"later, or delete {path} if they are gone"
                    ) from None
                print(f"{path.parent.name}: {error}; its jobs are not shown", file=sys.stderr)
                continue
            for job in jobs:
                if job.task in states:
                    found |= dict.fromkeys(job.keys.values(), states[job.task])
    return found


def _is_over(root: Path, job: SubmittedJob) -> bool:
    stages = Path(root) / "runs" / "stages"
    return all(StageRun(stages / f"{stage}-{key[:KEY_LENGTH]}", stage).is_complete() for stage, key in job.keys.items())
