"""Who works on what, between processes and machines that share a file system: leases and short locks.

A lease is a JSON file that says which process holds it and when it was last heard of. It ends when it is released, when
its process is dead (seen at once on the same machine), or when it has been silent for too long: a hung process, or one
of a machine that went away. Clocks of machines that share leases must agree much better than the limit of silence.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil
from pydantic import TypeAdapter

from realm_lab.core.files import write_json
from realm_lab.core.records import read_record
from realm_lab.errors import UserError

SAME_START_SECONDS = 2.0  # a start time is derived from the boot time, which moves when the clock is set


@dataclass(frozen=True)
class Owner:
    """One process: `born` (its start, unix seconds) tells it from a later one with the same number."""

    host: str
    pid: int
    born: float

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_dead(self) -> bool:
        """True if it is certainly gone; of another machine's processes nothing is known."""
        if self.host != socket.gethostname():
            return False
        try:
            process = psutil.Process(self.pid)
            zombie = process.status() == psutil.STATUS_ZOMBIE  # killed, and nobody has collected it
            return zombie or abs(process.create_time() - self.born) > SAME_START_SECONDS
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False


def this_process() -> Owner:
    """The process that asks."""
    return Owner(socket.gethostname(), os.getpid(), psutil.Process().create_time())


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock for a short piece of work; waits for other processes. The kernel frees it when a process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise UserError(f"{path}: this file system has no locks ({error.strerror}); use another folder") from None
        yield


@dataclass(frozen=True)
class Holder:
    """What a lease file says. Times are unix seconds; `name` is the file's."""

    owner: Owner
    token: str
    heard: float
    name: str = ""

    def is_held(self, limit_seconds: float) -> bool:
        """False when its process is dead, or silent for longer than the limit."""
        return not self.owner.is_dead and time.time() - self.heard <= limit_seconds

    def __str__(self) -> str:
        return f"{self.owner} is at work, last heard of {time.time() - self.heard:.0f} s ago"


HOLDER = TypeAdapter(Holder)


class Taken(UserError):
    """Another living process holds the lease."""


class Lease:
    """A lease that this process holds, until the block ends. Made by `take`."""

    def __init__(self, folder: Path, holder: Holder):
        self._folder, self._holder = folder, holder

    def beat(self) -> None:
        """Say that we are alive.

        UserError: the lease was taken over: we were silent for too long, and must write nothing more.
        """
        with exclusive(self._folder / ".lock"):
            if not self._is_ours():
                silence = time.time() - self._holder.heard
                raise UserError(f"{self._folder.parent}: another process took over after {silence:.0f} s of silence")
            self._holder = replace(self._holder, heard=time.time())
            _save(self._folder, self._holder)

    def release(self) -> None:
        """Give it back; one that was taken over stays with the other."""
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
    """Take the lease `name` of a folder of leases; one that is dead or silent for `limit_seconds` is taken over.

    Taken: it is held; the message names host, process and age.
    """
    holder = Holder(this_process(), secrets.token_hex(8), time.time(), name)
    with exclusive(folder / ".lock"):
        for path in folder.glob(".*.tmp"):  # of writers that were killed: every living one holds the lock
            path.unlink()
        for other in holders(folder):
            if not other.is_held(limit_seconds):
                _path(folder, other.name).unlink()
            elif other.name == name:
                raise Taken(f"{folder.parent}: {other}; wait for it or stop it")
        _save(folder, holder)
    return Lease(folder, holder)


def holders(folder: Path) -> list[Holder]:
    """Everything in a folder of leases, dead ones too, by name. Needs no lock: one that is given back meanwhile is
    left out."""
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
