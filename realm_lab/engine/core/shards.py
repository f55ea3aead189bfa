"""Write a folder in shards, by any number of processes: each shard is written once, and all are published together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from realm_lab.records.digests import write_last
from realm_lab.records.files import write_json
from realm_lab.records.lease import exclusive

REMEDY = "delete the folder, it is built again when it is needed"


def write_once(path: Path, value: Any) -> None:
    """Write a JSON file unless it exists. Only one of a machine's processes writes it: on some shared file systems, a
    process that opens a file while another process replaces it finds no file."""
    if not path.exists():
        with exclusive(path.with_suffix(".lock")):
            if not path.exists():
                write_json(path, value)


def in_shards(folder: Path, count: int, write: Callable[[int], None]) -> None:
    """Write the shards of a folder, each in one of the processes that call this at the same time. Every process returns
    when all shards are written."""
    for wait in (False, True):  # first the shards that no process writes, then wait for the rest
        for number in range(count):
            with exclusive(folder / f"shard-{number:05d}.lock", wait) as lock:
                if lock is not None and not lock.read():
                    write(number)
                    lock.write("finished")


def publish(folder: Path, key: str, names: Iterable[str]) -> None:
    """Write the digests of identity.json and of `names`, then manifest.json with the key; one process does both."""
    with exclusive(folder / "publish.lock"):
        if not (folder / "manifest.json").exists():
            write_last(folder / "manifest.json", {"key": key}, ["identity.json", *names], key)
