"""The lease of a stage or a sweep, kept alive from a thread, so that no two processes do the same work.

The lease of a process that died on this machine is free at once. The lease of a process on a machine that went away is
free for a process that saw it silent for LIMIT_SECONDS; the same job, started again elsewhere, waits for this long.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from realm_lab.errors import UserError
from realm_lab.records.lease import Holder, Lease, Taken, holders, is_held, seems_held, take

LIMIT_SECONDS = 120.0
BEAT_SECONDS = 15.0
POLL_SECONDS = 1.0
NAME = "writer"
LOST_CODE = 3  # the exit code of a process whose lease was taken over
TAKEN_CODE = 4  # the exit code of a worker that found its stage taken


def writer_of(run: Path, limit_seconds: float = LIMIT_SECONDS) -> Holder | None:
    """Return the process that seems to work on the stage in folder `run`, on any machine; None if none does."""
    lease = run / "lease"
    return next((holder for holder in holders(lease) if seems_held(lease, holder, limit_seconds)), None)


@contextmanager
def writing(run: Path) -> Iterator[None]:
    """Hold the lease of the stage in folder `run`.

    When it is taken over by another process (this one was stopped, or cut off, for too long), this process ends at once
    and writes nothing more. Taken: another living process holds it.
    """
    with beating(take_from_the_gone(run / "lease", NAME, "this stage")):
        yield


@contextmanager
def beating(lease: Lease) -> Iterator[None]:
    """Keep a lease alive inside. When another process takes it over, this one ends at once."""
    with lease:
        ended = threading.Event()
        threading.Thread(target=_beat, args=(lease, ended), daemon=True).start()
        try:
            yield
        finally:
            ended.set()


def take_from_the_gone(lease: Path, name: str, what: str) -> Lease:
    """Take the only lease of a folder, once its holder is dead or silent for LIMIT_SECONDS. Taken: the holder gives a
    sign of life, or is a living process of this machine. `what`: the holder's work, for messages."""
    run, first = lease.parent, None
    while held := [holder for holder in holders(lease) if is_held(lease, holder, LIMIT_SECONDS)]:
        is_heard = first is not None and held[0] != first
        if is_heard or (held[0].owner.host == socket.gethostname() and held[0].age <= LIMIT_SECONDS):
            raise Taken(f"{run}: {held[0].owner} works on {what}; wait for it")
        if first is None:
            first = held[0]
            wait = f"waiting up to {LIMIT_SECONDS:.0f} s to hear from it"
            print(f"{run}: {first.owner} worked on {what}; {wait}", file=sys.stderr, flush=True)
        time.sleep(POLL_SECONDS)
    return take(lease, name, limit_seconds=LIMIT_SECONDS)


def _beat(lease: Lease, ended: threading.Event) -> None:
    while not ended.wait(BEAT_SECONDS):
        try:
            lease.beat()
        except Taken as error:
            if not ended.is_set():  # else this process has just released the lease
                print(error, file=sys.stderr, flush=True)
                os._exit(LOST_CODE)
        except (UserError, OSError):
            continue  # a disk that is full, or does not answer or lock now; too long a silence ends the lease by itself
