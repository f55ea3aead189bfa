"""Work in shards that any number of processes share: each shard is written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from realm_lab.core.lease import exclusive

REMEDY = "delete the folder, it is built again when it is needed"


def in_shards(folder: Path, count: int, write: Callable[[int], None]) -> None:
    """Write the shards of a folder, each by one of the processes that do this at the same time; all return when all are
    written."""
    for wait in (False, True):  # first what nobody works on; then wait for what others work on
        for number in range(count):
            with exclusive(folder / f"shard-{number:05d}.lock", wait) as lock:
                if lock is not None and not lock.read():
                    write(number)
                    lock.write("finished")
