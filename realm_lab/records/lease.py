"""Leases and short locks for processes and machines that share a file system.

A lease is a JSON file with the process that holds it and the time of its last sign of life. A lease ends when it is
released, when its process is dead (seen at once on the same machine), or when it has been silent for too long, since
the process hangs or its machine went away. Machines may have different clocks, so a lease is taken over only if this
process saw it unchanged for the whole limit, by a monotonic clock. The holder's clock serves only `seems_held`.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

import psutil
from pydantic import TypeAdapter

from realm_lab.errors import UserError
from realm_lab.records.files import write_json
from realm_lab.records.launched import slurm_job
from realm_lab.records.validation import read_record

SAME_START_SECONDS = 2.0  # boot times are exact only to a second


@dataclass(frozen=True)
class Owner:
    """One process. `born`: its start in unix seconds, which distinguishes it from a later process with the same id.
    `boot`: the start of its machine, which on Linux changes as much as `born` when the clock is set; 0 elsewhere.
    `job`: the SLURM job that it runs in."""

    host: str
    pid: int
    born: float
    boot: float = 0.0
    job: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_dead(self) -> bool:
        """True if the process is certainly gone; False if that is unknown, as for processes of another machine."""
        if self.host != socket.gethostname():
            return False
        try:
            process = psutil.Process(self.pid)
            zombie = process.status() == psutil.STATUS_ZOMBIE  # ended, not yet waited for
            clock_was_set = _boot_time() - self.boot if self.boot else 0.0
            return zombie or abs(process.create_time() - clock_was_set - self.born) > SAME_START_SECONDS
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False


def this_process() -> Owner:
    """Return the owner that stands for the calling process."""
    boot = _boot_time()  # first: older versions of psutil compute create_time() with the last value read
    return Owner(socket.gethostname(), os.getpid(), psutil.Process().create_time(), boot, slurm_job())


def _boot_time() -> float:
    """Start of the machine in unix seconds; 0 on platforms where start times of processes do not depend on it."""
    return psutil.boot_time() if sys.platform == "linux" else 0.0


@contextmanager
def exclusive(path: Path, wait: bool = True) -> Iterator[IO[str] | None]:
    """Hold a lock until the block ends, and yield its file to read and append to. Yields None if another process
    holds the lock and `wait` is false. The kernel frees the lock when a process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
            return
        except OSError as error:
            raise UserError(
                f"this file system has no locks ({error.strerror})", "use another folder", path=path
            ) from None
        file.seek(0)
        yield file


@dataclass(frozen=True)
class Holder:
    """Contents of a lease file. Times are unix seconds; `name` is the file's name without `.json`."""

    owner: Owner
    token: str
    heard: float
    name: str = ""

    @property
    def age(self) -> float:
        """Seconds since its last sign of life, at least 0. The holder's clock may differ from this machine's."""
        return max(0.0, time.time() - self.heard)

    def __str__(self) -> str:
        return f"{self.owner} is at work, last heard of {self.age:.0f} s ago"


HOLDER = TypeAdapter(Holder)


_sights: dict[Path, tuple[Holder, float, bool]] = {}  # lease file -> its last content, and the two values of `_look`


def _look(folder: Path, holder: Holder) -> tuple[float, bool]:
    """Return when this process first saw the present content of a lease file (time.monotonic()), and true if its
    content before was the same lease, so that a sign of life was seen."""
    path = _path(folder, holder.name)
    known = _sights.get(path)
    if known is None or known[0] != holder:
        known = _sights[path] = holder, time.monotonic(), known is not None and known[0].token == holder.token
    return known[1:]


def is_held(folder: Path, holder: Holder, limit_seconds: float) -> bool:
    """False if the process of a lease is dead, or this process saw it silent for longer than the limit."""
    return not holder.owner.is_dead and time.monotonic() - _look(folder, holder)[0] <= limit_seconds


def seems_held(folder: Path, holder: Holder, limit_seconds: float) -> bool:
    """True if a lease is probably held. Until this process has seen a sign of life, this compares the time in the lease
    with this machine's clock, which may differ from the holder's; so nothing is taken over because of it."""
    if not is_held(folder, holder, limit_seconds):
        return False
    return _look(folder, holder)[1] or holder.age <= limit_seconds


class Taken(UserError):
    """Another living process holds the lease."""


class Lease:
    """A lease that this process holds until the block ends. Made by `take`."""

    def __init__(self, folder: Path, holder: Holder):
        self._folder, self._holder = folder, holder

    def beat(self) -> None:
        """Record a sign of life.

        Taken: another process took the lease over after a long silence; this one must write nothing more.
        """
        with exclusive(self._folder / ".lock"):
            if not self._is_ours():
                silence = time.time() - self._holder.heard
                raise Taken(f"another process took over after {silence:.0f} s of silence", path=self._folder.parent)
            self._holder = replace(self._holder, heard=time.time())
            _save(self._folder, self._holder)

    def release(self) -> None:
        """Release the lease; no effect if it was taken over."""
        with exclusive(self._folder / ".lock"):
            if self._is_ours():
                _path(self._folder, self._holder.name).unlink()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _is_ours(self) -> bool:
        path = _path(self._folder, self._holder.name)
        return path.exists() and _read(path).token == self._holder.token


def take(folder: Path, name: str, *, limit_seconds: float) -> Lease:
    """Take the lease `name` of a folder of leases. Leases of dead processes, and those that this process saw silent for
    `limit_seconds`, are removed first.

    Taken: another process holds it; the message names host, process and age.
    """
    holder = Holder(this_process(), secrets.token_hex(8), time.time(), name)
    with exclusive(folder / ".lock"):
        for path in folder.glob(".*.tmp"):  # of writers that were killed: every living one holds the lock
            path.unlink()
        for other in holders(folder):
            if not is_held(folder, other, limit_seconds):
                _path(folder, other.name).unlink()
            elif other.name == name:
                raise Taken(f"{folder.parent}: {other}; wait for it or stop it")
        _save(folder, holder)
    return Lease(folder, holder)


def holders(folder: Path) -> list[Holder]:
    """Read all leases in a folder, sorted by name, dead ones too. No lock is needed: a lease released meanwhile is left
    out."""
    found = []
    for path in sorted(folder.glob("[!.]*.json")):
        try:
            found.append(_read(path))
        except UserError:
            if path.exists():
                raise
    return found


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _save(folder: Path, holder: Holder) -> None:
    write_json(_path(folder, holder.name), asdict(holder))


def _read(path: Path) -> Holder:
    return replace(read_record(path, HOLDER, "delete the file if no run of it is under way"), name=path.stem)
