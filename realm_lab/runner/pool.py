"""The default pipeline's jobs, a few at a time, with one progress bar a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from realm_lab.core.launched import cores
from realm_lab.core.process import pick_device
from realm_lab.errors import UserError
from realm_lab.params.parameters import Params
from realm_lab.runner.workers import SHARED_STAGES, Outcome, Workers
from realm_lab.tracking.run_dir import StageRun

POLL_SECONDS = 0.25


class Job(NamedTuple):
    """One stage of one run."""

    stage: str
    system: str
    seed: int
    run: StageRun

    @property
    def title(self) -> str:
        """What people see."""
        whose = "" if self.stage == "prepare" else f" {self.system}"
        return f"{self.stage.replace('_', '-')}{whose} seed {self.seed}"


class Running(NamedTuple):
    """A job, its processes and its progress bar."""

    job: Job
    workers: Workers
    bar: TaskID


def run_jobs(jobs: list[Job], params: Params, root: Path) -> None:
    """Run the jobs, at most one a core (or launch.processes) at a time, cores shared out between them.

    A job of launch.ranks above 1 is as many processes, which share its batches.

    Raises:
        UserError: one or more failed, each with its last line; the others were finished first.
    """
    if not jobs:
        return
    width = _width(params, len(jobs), cores())
    threads = params.launch.threads or max(1, cores() // (width * params.launch.ranks))
    waiting = list(jobs)
    running: list[Running] = []
    failed: list[str] = []
    console = Console(stderr=True, soft_wrap=True)
    with _progress(console) as progress:
        try:
            while waiting or running:
                while waiting and len(running) < width:
                    running.append(_start(waiting.pop(0), params, root, threads, progress))
                time.sleep(POLL_SECONDS)
                for item in list(running):
                    _show(item, progress)
                    if item.workers.has_ended:
                        running.remove(item)
                        failed += _report(item.job, item.workers, console)
        finally:
            for item in running:
                item.workers.terminate()
            for item in running:
                item.workers.wait()
    if failed:
        raise UserError("; ".join(failed))


def _width(params: Params, jobs: int, cores: int) -> int:
    if params.launch.processes:
        return min(jobs, params.launch.processes)
    return 1 if pick_device(params.launch.device).type == "cuda" else min(jobs, max(1, cores // params.launch.ranks))


def _start(job: Job, params: Params, root: Path, threads: int, progress: Progress) -> Running:
    values = params.model_dump(mode="json")
    described = {"stages": [job.stage], "system": job.system, "seed": job.seed, "params": values, "root": str(root)}
    ranks = params.launch.ranks if job.stage in SHARED_STAGES else 1
    workers = Workers.start(described, ranks=ranks, threads=threads)
    return Running(job, workers, progress.add_task(job.title, total=None, rate=""))


def _show(item: Running, progress: Progress) -> None:
    status = item.job.run.status()
    unit = "records" if item.job.stage == "prepare" else "steps"
    rate = f"{status.steps_per_second:.1f} {unit}/s" if status.steps_per_second else ""
    progress.update(item.bar, completed=status.step, total=status.total_steps or None, rate=rate)


def _report(job: Job, workers: Workers, console: Console) -> list[str]:
    """Say how a job ended; its failure as one line."""
    outcome: Outcome = workers.reap()
    workers.settle(job.run, outcome)
    if outcome.code == 0:
        if outcome.text:
            console.print(outcome.text, markup=False, highlight=False)
        status = job.run.status()
        console.print(f"{job.title}: done in {status.wall_seconds:.0f} s", highlight=False)
        for flag in status.flags:
            console.print(f"{job.title}: FLAGGED: {flag}", markup=False, highlight=False, style="bold red")
        return []
    if outcome.code < 0:
        return [f"{job.title}: {outcome.line}; run again to resume"]
    if outcome.code != 2:
        console.print(outcome.text, markup=False, highlight=False)
    return [f"{job.title}: {outcome.line}"]


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress
