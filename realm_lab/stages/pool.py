"""A bounded pool of worker processes with one progress bar a run."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from realm_lab.core.process import pick_device
from realm_lab.errors import UserError
from realm_lab.parameters import Params
from realm_lab.tracking.run_dir import StageRun

POLL_SECONDS = 0.25
SHARED_STAGES = ("warm_start", "pretrain", "finetune")  # those that several processes do together
GRACE_SECONDS = 20.0  # for the other processes of a run of which one has failed


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
    """The worker processes of a job: one, or one for each of launch.ranks."""

    job: Job
    processes: list[subprocess.Popen[str]]
    errors: list[IO[str]]
    bar: TaskID

    @property
    def has_ended(self) -> bool:
        """All have, or one has failed."""
        codes = [process.poll() for process in self.processes]
        return None not in codes or any(codes)


def run_jobs(jobs: list[Job], params: Params, root: Path) -> None:
    """Run the jobs, at most one a core (or launch.processes) at a time, cores shared out between them.

    A job of launch.ranks above 1 is as many processes, which share its batches.

    Raises:
        UserError: one or more failed, each with its last line; the others were finished first.
    """
    if not jobs:
        return
    cores = os.cpu_count() or 1
    width = _width(params, len(jobs), cores)
    threads = params.launch.threads or max(1, cores // (width * params.launch.ranks))
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
                    if worker.has_ended:
                        running.remove(worker)
                        failed += _end(worker, console)
        finally:
            left = [process for worker in running for process in worker.processes]
            for process in left:
                process.terminate()
            for process in left:
                process.wait()
    if failed:
        raise UserError("; ".join(failed))


def _width(params: Params, jobs: int, cores: int) -> int:
    if params.launch.processes:
        return min(jobs, params.launch.processes)
    return 1 if pick_device(params.launch.device).type == "cuda" else min(jobs, max(1, cores // params.launch.ranks))


def _start(job: Job, params: Params, root: Path, threads: int, progress: Progress) -> Running:
    values = params.model_dump(mode="json")
    values["launch"]["threads"] = threads
    described = {"stages": [job.stage], "label": job.label, "seed": job.seed, "params": values, "root": str(root)}
    size = params.launch.ranks if job.stage in SHARED_STAGES else 1
    place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port() if size > 1 else 0)}
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false", **place}
    environment.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # of a torchrun that started us: these are a group of ours
    processes: list[subprocess.Popen[str]] = []
    files: list[IO[str]] = []
    for rank in range(size):
        errors = tempfile.TemporaryFile("w+", encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-m", "realm_lab.stages.worker"],
            stdin=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the pipe stays open: its end tells the worker that we are gone
            process.stdin.write(json.dumps(described) + "\n")
            process.stdin.flush()
        processes.append(process)
        files.append(errors)
    return Running(job, processes, files, progress.add_task(job.title, total=None, rate=""))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _show(worker: Running, progress: Progress) -> None:
    status = worker.job.run.status()
    rate = f"{status.steps_per_second:.1f} steps/s" if status.steps_per_second else ""
    progress.update(worker.bar, completed=status.step, total=status.total_steps or None, rate=rate)


def _end(worker: Running, console: Console) -> list[str]:
    """Report a finished worker; its failure as one line."""
    rank, code = _collect(worker.processes)
    texts = []
    for errors in worker.errors:
        errors.seek(0)
        texts.append(errors.read().strip())
        errors.close()
    text, title = texts[rank], worker.job.title
    status = worker.job.run.status()
    if code == 0:
        if text:
            console.print(text, markup=False, highlight=False)
        console.print(f"{title}: done in {status.wall_seconds:.0f} s", highlight=False)
        for flag in status.flags:
            console.print(f"{title}: FLAGGED: {flag}", markup=False, highlight=False, style="bold red")
        return []
    if code < 0:
        worker.job.run.fail(f"killed by signal {-code}")
        return [f"{title}: killed by signal {-code}; run again to resume"]
    if code != 2:
        console.print(text, markup=False, highlight=False)
    line = text.splitlines()[-1] if text else "failed without a message"
    if status.state == "RUNNING":  # the first process, which writes it, was stopped by us
        worker.job.run.fail(line)
    return [f"{title}: {line}"]


def _collect(processes: list[subprocess.Popen[str]]) -> tuple[int, int]:
    """(rank, exit code) to report of processes of which all have ended, or one has failed: then the others end too.

    The one to blame is one that was killed, else rank 0, which knows what the others said, else who failed.
    """
    codes = [process.poll() for process in processes]
    deadline = time.monotonic() + GRACE_SECONDS
    for stop in (subprocess.Popen.terminate, subprocess.Popen.kill):
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in processes:
            if process.poll() is None:
                stop(process)
        deadline = time.monotonic() + GRACE_SECONDS
    for process in processes:
        process.wait()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    killed = [rank for rank, code in enumerate(codes) if code is not None and code < 0]
    by_itself = [rank for rank, process in enumerate(processes) if process.returncode > 0]
    failed = [rank for rank, code in enumerate(codes) if code]
    rank = [*killed, *by_itself, *failed, 0][0]
    return rank, processes[rank].returncode


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
