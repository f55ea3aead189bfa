"""Who works on a stage of a run: a lease in its folder, kept alive from a thread, so that no two jobs write into one.

The lease of a process that died on this machine is free at once. One of a machine that went away is free when it has
been silent for LIMIT_SECONDS: whoever comes meanwhile, such as the same job started again elsewhere, waits for that.
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

from realm_lab.core.lease import Holder, Lease, Taken, holders, take
from realm_lab.errors import UserError

LIMIT_SECONDS = 120.0
BEAT_SECONDS = 15.0
POLL_SECONDS = 1.0
NAME = "writer"
LOST_CODE = 3  # the exit code of a process whose lease was taken over
TAKEN_CODE = 4  # of a worker that found its stage taken


def writer_of(run: Path) -> Holder | None:
    """The process that works on the stage in folder `run`, on any machine; None when nobody does."""
    found = [holder for holder in holders(run / "lease") if holder.is_held(LIMIT_SECONDS)]
    return found[0] if found else None


@contextmanager
def writing(run: Path) -> Iterator[None]:
    """Hold the lease of the stage in folder `run`.

    When it is taken over by another process (this one was stopped, or cut off, for too long), this process ends at once
    and writes nothing more. Taken: another living process holds it.
    """
    with _take(run) as lease:
        ended = threading.Event()
        threading.Thread(target=_beat, args=(lease, ended), daemon=True).start()
        try:
            yield
        finally:
            ended.set()


def _take(run: Path) -> Lease:
    heard: float | None = None
    while (holder := writer_of(run)) is not None:
        if holder.owner.host == socket.gethostname() or heard not in (None, holder.heard):
            raise Taken(f"{run}: {holder.owner} works on this stage; wait for it")
        if heard is None:
            silence = f"silent for {time.time() - holder.heard:.0f} s of {LIMIT_SECONDS:.0f}"
            print(f"{run}: {holder.owner} worked on this stage; waiting to hear from it ({silence})", file=sys.stderr)
        heard = holder.heard
        time.sleep(POLL_SECONDS)
    return take(run / "lease", NAME, limit_seconds=LIMIT_SECONDS)


def _beat(lease: Lease, ended: threading.Event) -> None:
    while not ended.wait(BEAT_SECONDS):
        try:
            lease.beat()
        except UserError as error:
            if not ended.is_set():  # else it was given back meanwhile
                print(error, file=sys.stderr, flush=True)
                os._exit(LOST_CODE)
        except OSError:
            continue  # a shared disk that does not answer now; too long a silence ends the lease by itself
