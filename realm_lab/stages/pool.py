"""A bounded pool of worker processes with one progress bar a run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from realm_lab.config import Params
from realm_lab.errors import UserError
from realm_lab.tracking.run_dir import StageRun

POLL_SECONDS = 0.25


class Job(NamedTuple):
    """One stage of one run."""

    stage: str
    label: str
    seed: int
    run: StageRun

    @property
    def title(self) -> str:
        """What people see."""
        whose = "" if self.stage == "prepare" else f" {self.label}"
        return f"{self.stage.replace('_', '-')}{whose} seed {self.seed}"


class Running(NamedTuple):
    """A worker process."""

    job: Job
    process: subprocess.Popen[str]
    errors: IO[str]
    bar: TaskID


def run_jobs(jobs: list[Job], params: Params, root: Path) -> None:
    """Run the jobs, at most one a core (or launch.processes) at a time, cores shared out between them.

    Raises:
        UserError: one or more failed, each with its last line; the others were finished first.
    """
    if not jobs:
        return
    cores = os.cpu_count() or 1
    width = _width(params, len(jobs), cores)
    threads = params.launch.threads or max(1, cores // width)
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
                for worker in list(running):
                    _show(worker, progress)
                    if worker.process.poll() is not None:
                        running.remove(worker)
                        failed += _end(worker, console)
        finally:
            for worker in running:
                worker.process.terminate()
            for worker in running:
                worker.process.wait()
    if failed:
        raise UserError("; ".join(failed))


def _width(params: Params, jobs: int, cores: int) -> int:
    if params.launch.processes:
        return min(jobs, params.launch.processes)
    return 1 if params.launch.device == "cuda" else min(jobs, cores)


def _start(job: Job, params: Params, root: Path, threads: int, progress: Progress) -> Running:
    values = params.model_dump(mode="json")
    values["launch"]["threads"] = threads
    described = {"stage": job.stage, "label": job.label, "seed": job.seed, "params": values, "root": str(root)}
    errors = tempfile.TemporaryFile("w+", encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "realm_lab.stages.worker"],
        stdin=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"},
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # the pipe stays open: its end tells the worker that we are gone
        process.stdin.write(json.dumps(described) + "\n")
        process.stdin.flush()
    return Running(job, process, errors, progress.add_task(job.title, total=None, rate=""))


def _show(worker: Running, progress: Progress) -> None:
    status = worker.job.run.status()
    rate = f"{status.steps_per_second:.1f} steps/s" if status.steps_per_second else ""
    progress.update(worker.bar, completed=status.step, total=status.total_steps or None, rate=rate)


def _end(worker: Running, console: Console) -> list[str]:
    """Report a finished worker; its failure as one line."""
    assert worker.process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        worker.process.stdin.close()
    worker.errors.seek(0)
    text = worker.errors.read().strip()
    worker.errors.close()
    status = worker.job.run.status()
    if worker.process.returncode == 0:
        if text:
            console.print(text, markup=False, highlight=False)
        console.print(f"{worker.job.title}: done in {status.wall_seconds:.0f} s", highlight=False)
        return []
    if worker.process.returncode < 0:
        worker.job.run.fail(f"killed by signal {-worker.process.returncode}")
        return [f"{worker.job.title}: killed by signal {-worker.process.returncode}; run again to resume"]
    if worker.process.returncode != 2:
        console.print(text, markup=False, highlight=False)
    return [f"{worker.job.title}: {text.splitlines()[-1] if text else 'failed without a message'}"]


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
