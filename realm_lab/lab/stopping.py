"""Sweeps of one study in several processes: list them, check that they see each other's locks, and stop them, by
Ctrl-C, by a signal, or by `sweep --cancel` from another terminal."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import psutil

from realm_lab.errors import UserError
from realm_lab.records.lease import Holder, holders, seems_held, take
from realm_lab.records.run_lease import LIMIT_SECONDS, beating, take_from_the_gone
from realm_lab.records.study import study_folder

POLL_SECONDS = 0.1
PATIENCE_SECONDS = 600.0
# File systems, and options of mounts, whose locks other machines do not see.
NO_LOCKS = {"blobfuse", "blobfuse2", "gcsfuse", "goofys", "mountpoint-s3", "rclone", "s3fs", "sshfs"}
OWN_LOCKS = {"local_lock=all", "local_lock=flock", "localflock", "noflock", "nolock"}


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """Inside, Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP raise SystemExit, or stop a training loop of this process after a
    checkpoint. One that is ignored, as SIGHUP by nohup, stays ignored, except SIGTERM, which `sweep --cancel` sends.
    Yields the list of the signals that these handlers got."""
    signals: list[int] = []

    def leave(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        raise SystemExit(128 + signals[0])

    def as_terminated(number: int, frame: FrameType | None) -> None:
        # A training loop in this process catches SIGTERM, but not this signal, to stop after a checkpoint.
        signals.append(number)
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler)
        handler(signal.SIGTERM, frame)

    if threading.current_thread() is not threading.main_thread():
        yield signals  # Python gives signals to the main thread only
        return
    wanted = {signal.SIGTERM: leave, signal.SIGUSR1: leave, signal.SIGINT: as_terminated, signal.SIGHUP: as_terminated}
    before = {
        number: signal.signal(number, handler)
        for number, handler in wanted.items()
        if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def sweeping(root: Path, study: str, *, alone: bool = False) -> Iterator[None]:
    """Inside, other processes can see that this process sweeps the study, and can stop it. UserError: `alone`, and
    another process sweeps the study too."""
    folder = _folder(root, study)
    if alone:
        lease = take_from_the_gone(folder, "alone", "this study")
    else:
        lease = take(folder, f"{socket.gethostname()}-{os.getpid()}", limit_seconds=LIMIT_SECONDS)
    with beating(lease):
        yield


def check_locks(folder: Path) -> None:
    """Raise a UserError if the table of mounts shows that other machines do not see locks in this folder."""
    inside = [one for one in psutil.disk_partitions(all=True) if folder.resolve().is_relative_to(one.mountpoint)]
    mount = max(inside, key=lambda one: len(one.mountpoint), default=None)
    if mount is None:
        return
    kind = mount.fstype.removeprefix("fuse.")
    if kind in NO_LOCKS or OWN_LOCKS & {*mount.opts.split(",")}:
        problem = f"{mount.mountpoint} ({kind}, {mount.opts}) has no locks that other machines see"
        remedy = "use a disk that has them, such as NFS 4, or Lustre with -o flock"
        raise UserError(problem, remedy, path=folder)


def sweepers(root: Path, study: str) -> list[Holder]:
    """Return the processes that sweep the study now; one on another machine counts until it is silent for too long."""
    folder = _folder(root, study)

    def is_one(holder: Holder) -> bool:
        is_here = holder.owner.host == socket.gethostname()
        return not holder.owner.is_dead if is_here else seems_held(folder, holder, LIMIT_SECONDS)

    return [holder for holder in holders(folder) if is_one(holder)]


def stop_sweepers(root: Path, study: str) -> list[str]:
    """Stop the processes on this machine that sweep the study, and wait for their checkpoints. Returns a line for each
    process that sweeps it, on other machines too."""
    lines = []
    for holder in sweepers(root, study):
        owner = holder.owner
        if owner.host != socket.gethostname():
            lines.append(f"a sweep runs on {owner.host} (process {owner.pid}): cancel it there")
            continue
        os.kill(owner.pid, signal.SIGTERM)
        print(f"process {owner.pid}: stopping after a checkpoint", file=sys.stderr)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not owner.is_dead and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        lines.append(f"process {owner.pid} {'has stopped' if owner.is_dead else 'still writes its checkpoints'}")
    return lines


def _folder(root: Path, study: str) -> Path:
    return study_folder(Path(root) / "runs", study) / "sweeps"
