"""The trainer's side of a builder process: requests, supervision, and the generations that come back.

<index>/requests/step-N/   weights of which a generation is wanted, published by rename
<index>/builder/alive.json the builder's sign of life
<index>/builder/*.log      what the builder said
<index>/gen-*/             its generations (retrieval/generation.py)

A builder that crashes, falls silent or cannot write (a full disk) is started again, each time after twice as long,
while training goes on with the index that there is, and says so: on standard error, and as a flag of the run. What the
trainer itself cannot write beside it is tried again likewise. After too many failures in a row the run stops; run
again, it resumes. The trainer waits only at a step from which an index must be searched.
"""

# Shapes: N passages, D embedding size

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from realm_lab.core.files import atomic_directory, write_json
from realm_lab.core.process import on_first_rank, ranks
from realm_lab.errors import UserError
from realm_lab.models.embedder import Embedder
from realm_lab.models.export import write_embedder
from realm_lab.retrieval.building import set_current, store_lock
from realm_lab.retrieval.generation import GenerationStore, embedder_digest
from realm_lab.retrieval.shards import NO_SPACE, free_bytes, generation_name

REQUESTS = "requests"
# In a folder of their own: in that of the generations, unfinished files of writers without its lock are swept away.
HEARTBEAT, LOG = "builder/alive.json", "builder/builder.log"
COMMAND = (sys.executable, "-m", "realm_lab.systems.builder")
POLL_SECONDS = 0.01  # of a trainer that waits
END_SECONDS = 10.0  # that a builder may take to end
NO_LOG = os.EX_IOERR  # exit code of a builder that could not even write a line into its log
KEPT = 2  # generations, where no older one is needed
BESIDE_BYTES = 1 << 16  # the small files of a request


class Limits(NamedTuple):
    """When a builder counts as failed, and how often it may."""

    silence_seconds: float
    backoff_seconds: float  # before the first restart; then twice as long each time
    failures: int  # in a row, with no shard finished in between


class Wanted(NamedTuple):
    """A generation that was submitted and is not yet older than the one in use."""

    generation: str
    embedder: Embedder


def request_name(step: int) -> str:
    """The folder of a request."""
    return f"step-{step:08d}"


class ProcessBuilder:
    """A builder (training/builders.py) that is another process. Of several ranks the first one supervises it.

    `job` says to the process which run this is: params, system, seed, root.
    """

    def __init__(
        self,
        folder: Path,
        corpus_digest: str,
        job: dict[str, Any],
        device: torch.device,
        limits: Limits,
        command: Sequence[str] | None = None,
    ):
        self._folder, self._job, self._device = folder, job, device
        self._limits, self._command = limits, command or COMMAND
        self._store = GenerationStore(folder, corpus_digest)
        self._leads = ranks().rank == 0
        self._wanted: dict[int, Wanted] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._retry_at = self._heard_at = 0.0
        self._heartbeat = self._finished = self._failures = self._log_start = 0
        self._problems: dict[str, str] = {}  # the first one of each kind
        self._used: str | None = None  # the generation in use, until that is written down
        self._pin = ExitStack()
        self.restarts = 0
        if self._leads:
            shutil.rmtree(folder / REQUESTS, ignore_errors=True)  # of a trainer that was killed; it submits again

    def __enter__(self) -> ProcessBuilder:
        """Start it, so that it is ready when there is something to build."""
        if self._leads:
            self._try(self._start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has gone wrong so far, once for each kind of failure."""
        return tuple(f"builder of the index failed: {what}" for what in self._problems.values())

    def submit(self, step: int, embedder: Embedder) -> None:
        """Publish the weights, unless their generation is there already."""
        if not self._leads:
            return
        self._wanted[step] = Wanted(generation_name(step, embedder_digest(embedder)), embedder)
        self._supervise()

    def is_built(self, step: int) -> bool:
        """Whether the generation is published."""
        return bool(on_first_rank(lambda: self._is_published(step)))

    def wait(self, step: int, embedder: Embedder) -> Tensor:
        """The embeddings, memory-mapped where the generation is one shard and the device the CPU."""
        name = on_first_rank(lambda: self._waited(step))
        generation = self._store.open(name)
        generation.check_embedder(embedder_digest(embedder))
        return generation.embeddings().to(self._device, torch.float32)

    def tend(self) -> None:
        """Start a failed builder again when its time has come, and try again what could not be written."""
        if self._leads:
            self._write_down_use()
            self._supervise()

    def in_use(self, step: int) -> None:
        """Pin the generation, make it the current one, and delete what is older but for KEPT."""
        if not self._leads:
            return
        self._failures = self._finished = 0
        wanted = self._wanted.get(step)
        self._wanted = {other: kept for other, kept in self._wanted.items() if other > step}
        for path in (self._folder / REQUESTS).glob("step-*"):
            if path.name <= request_name(step):
                shutil.rmtree(path, ignore_errors=True)
        if wanted is not None:  # else the vectors of the one before
            self._used = wanted.generation
            self._write_down_use()

    def close(self) -> None:
        """End the builder."""
        process, self._process = self._process, None
        self._pin.close()
        if process is None:
            return
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _close_pipe(process)

    def _is_published(self, step: int) -> bool:
        return (self._folder / self._wanted[step].generation).exists()

    def _publish(self, step: int) -> None:
        generation, embedder = self._wanted[step]
        needed = sum(value.numel() * value.element_size() for value in embedder.parameters()) + BESIDE_BYTES
        folder = self._folder / REQUESTS
        folder.mkdir(parents=True, exist_ok=True)
        if free_bytes(folder) < needed:
            raise OSError(errno.ENOSPC, f"{needed} bytes are needed")
        with atomic_directory(folder / request_name(step)) as scratch:
            write_embedder(embedder, scratch, 0.0)
            write_json(scratch / "request.json", {"step": step, "generation": generation})
        self._heard_at = time.monotonic()  # until now it may have been idle

    def _write_down_use(self) -> None:
        name = self._used
        if name is None or time.monotonic() < self._retry_at:
            return

        def write() -> None:
            self._pin.close()
            self._pin.enter_context(self._store.pin(name))
            with store_lock(self._folder):
                set_current(self._folder, name)
            names = self._store.names()
            self._store.prune(max(KEPT, len(names) - names.index(name)))

        if self._try(write):
            self._used = None

    def _try(self, write: Callable[[], None]) -> bool:
        """Do what may find the disk full; whether it was done. If not, its time to be tried again is set."""
        try:
            write()
        except (OSError, SafetensorError) as error:  # the latter's text ends with that of the system
            self._fail("trainer", unwritten(error, self._folder))
            return False
        return True

    def _waited(self, step: int) -> str:
        while not self._is_published(step):
            self._supervise()
            time.sleep(POLL_SECONDS)
        return self._wanted[step].generation

    def _supervise(self) -> None:
        """See whether the builder has its requests and lives; start it, or note its failure."""
        missing = [step for step in self._wanted if not self._is_published(step)]
        if not missing or time.monotonic() < self._retry_at:
            return
        for step in missing:
            request = self._folder / REQUESTS / request_name(step)
            if not request.exists() and not self._try(partial(self._publish, step)):
                return
        now, process = time.monotonic(), self._process
        if process is None:
            self._try(self._start)
            return
        beat = self._last_beat()
        if beat != self._heartbeat:
            self._heartbeat, self._heard_at = beat, now
        if process.poll() is not None:
            code, words = process.returncode, self._last_words()
            if code == NO_LOG:
                words = unwritten(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), self._folder)
            self._fail(f"code {code}", f"it ended with code {code}: {words}")
            self._drop(process)
        elif now - self._heard_at > self._limits.silence_seconds:
            process.kill()
            process.wait()
            self._fail("silence", f"it was silent for {self._limits.silence_seconds:g} s")
            self._drop(process)

    def _start(self) -> None:
        (self._folder / LOG).parent.mkdir(parents=True, exist_ok=True)
        with open(self._folder / LOG, "ab") as log:
            self._log_start = log.tell()
            process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        job = self._job | {"folder": str(self._folder), "threads": torch.get_num_threads(), "trainer": os.getpid()}
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended already, which the next look finds
        self._process, self._heard_at, self._heartbeat = process, time.monotonic(), self._last_beat()

    def _drop(self, process: subprocess.Popen[bytes]) -> None:
        """It has ended; another one is to be started."""
        _close_pipe(process)
        self._process = None
        self.restarts += 1

    def _fail(self, kind: str, what: str) -> None:
        """Say what went wrong, and when to try again; too often in a row is a UserError."""
        finished = self._shards_finished()
        self._failures = 1 if finished > self._finished else self._failures + 1
        self._finished = finished
        if self._failures > self._limits.failures:
            raise UserError(
                f"{self._folder}: the builder of the index failed {self._failures} times in a row, at last: {what}; "
                f"see {LOG} there, and run again, which resumes"
            )
        self._problems.setdefault(kind, what)
        seconds = self._limits.backoff_seconds * 2 ** (self._failures - 1)
        self._retry_at = time.monotonic() + seconds
        remedy = f"training goes on with the old index, next attempt in {seconds:g} s"
        print(f"builder of the index failed: {what}; {remedy}", file=sys.stderr, flush=True)

    def _last_beat(self) -> int:
        try:
            return (self._folder / HEARTBEAT).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _shards_finished(self) -> int:
        """Written since the trainer began, as far as they are still there."""
        published = sum(self._is_published(step) for step in self._wanted)
        return published * 10**9 + len(list((self._folder / "building").glob("*.parts/shard-*.json")))

    def _last_words(self) -> str:
        with open(self._folder / LOG, "rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def unwritten(error: OSError | SafetensorError, folder: Path) -> str:
    """What could not be written and the remedy, in one line; `folder` is where, if the error does not say."""
    where = Path(getattr(error, "filename", None) or folder)
    reason = getattr(error, "strerror", None) or str(error)
    if getattr(error, "errno", None) in NO_SPACE or "os error 28" in reason:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        return f"{where}: the disk is full ({reason}), {free_bytes(there)} bytes are free; make room"
    return f"{where}: {reason}; see to it that this can be written"


def _close_pipe(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.close()
    except BrokenPipeError:
        pass  # what it should have read is lost with it
