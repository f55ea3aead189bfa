"""The worker processes of one job: started with a share of the machine, watched, and reaped. No torch here."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from realm_lab.records.launched import own_package
from realm_lab.records.run import StageRun

POLL_SECONDS = 0.2
GRACE_SECONDS = 20.0  # for the other processes of a job to end by themselves after one has failed
# Exit codes of a worker that was asked to stop: 128 + N after a checkpoint, -N before it could handle signal N.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
STOPPED = {code for number in STOP_SIGNALS for code in (128 + number, -number)}


class Outcome(NamedTuple):
    """Outcome of a job. `code`: the exit code of the reported process, -N if signal N killed that process."""

    code: int
    text: str  # output of the reported process

    @property
    def was_stopped(self) -> bool:
        """True if a signal asked the processes to stop; False if they failed or were killed."""
        return self.code in STOPPED

    @property
    def line(self) -> str:
        if self.code < 0:
            return f"killed by signal {-self.code}"
        return self.text.splitlines()[-1] if self.text else "failed without a message"


class Workers:
    """One process, or one for each of several ranks, at work on one job."""

    def __init__(
        self,
        job: Mapping[str, Any],
        *,
        ranks: int = 1,
        threads: int,
        gpus: Sequence[str] | None = None,
        log: Path,
        folder: str | None = None,
    ):
        """Start `realm_lab.lab.worker` on a job, which is plain data. `threads`: threads of each process. `gpus`: GPUs
        that the job may see (None: as this process). Output goes to `log`, or to `log` with -1, -2, ... in its name for
        further ranks. The processes work in `folder`."""
        job = {**job, "params": {**job["params"], "launch": {**job["params"]["launch"], "threads": threads}}}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            place = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        quiet = {"TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}  # progress bars fill a log
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), **quiet, **place, **own_package()}
        if gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        self._processes: list[subprocess.Popen[str]] = []
        self._errors: list[IO[str]] = []
        log.parent.mkdir(parents=True, exist_ok=True)
        for rank in range(ranks):
            errors = open(log.with_stem(f"{log.stem}-{rank}") if rank else log, "w+", encoding="utf-8")
            process = subprocess.Popen(
                [sys.executable, "-m", "realm_lab.lab.worker"],
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                text=True,
                cwd=folder,
                env=environment | {"RANK": str(rank)},
                process_group=0,  # Ctrl-C in a terminal reaches only this process, which asks them to stop
            )
            self._processes.append(process)
            self._errors.append(errors)
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the pipe stays open: if it closes, this process is gone
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.flush()

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)

    @property
    def has_ended(self) -> bool:
        """True if all have ended, or one has failed."""
        codes = [process.poll() for process in self._processes]
        return None not in codes or any(codes)

    def terminate(self) -> None:
        """Ask all to stop after a checkpoint."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()

    def wait(self) -> Outcome:
        """Wait until all have ended, however long their checkpoints take."""
        for process in self._processes:
            process.wait()
        return self.reap()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    def reap(self) -> Outcome:
        """End the processes that are left, and return the outcome. All have ended before, or one has failed. It is
        that of a killed process, else of the first with an exit code above 0 (ranks report each other's errors), else
        of a failed one."""
        processes = self._processes
        codes = [process.poll() for process in processes]
        for stop in (subprocess.Popen.terminate, subprocess.Popen.kill):
            deadline = time.monotonic() + GRACE_SECONDS
            while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
                time.sleep(0.05)
            for process in processes:
                stop(process)  # no effect if it has ended
        texts = []
        for process, errors in zip(processes, self._errors, strict=True):
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            errors.seek(0)
            texts.append(errors.read().strip())
            errors.close()
        killed = [rank for rank, code in enumerate(codes) if code is not None and code < 0]
        by_itself = [rank for rank, process in enumerate(processes) if process.returncode > 0]
        failed = [rank for rank, code in enumerate(codes) if code]
        rank = [*killed, *by_itself, *failed, 0][0]
        return Outcome(processes[rank].returncode, texts[rank])

    def settle(self, run: StageRun, outcome: Outcome) -> None:
        """Write the failure into a stage whose status still names one of these processes as working on it, for example
        if the first rank was stopped because another failed. If a process was killed, the stage counts as
        interrupted, and resumes from its checkpoint when it is run again."""
        status = run.status()
        mine = status.pid in self.pids and status.host == socket.gethostname()
        if mine and status.state == "RUNNING" and outcome.code > 0 and not outcome.was_stopped:
            run.fail(outcome.line)
