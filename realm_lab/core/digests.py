"""Digests of finished files, by which damage is noticed: digests.json of a folder has those of files in it.

A file is compared with them whenever it is opened, by its size and by blocks spread over it, which takes a millisecond
at any size and shows a file that was emptied, overwritten or changed all over. `realm-lab doctor --verify` reads all of
it, which shows any change.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from realm_lab.core.files import digest_file, read_json, write_json
from realm_lab.errors import UserError

DIGESTS = "digests.json"
BLOCKS, BLOCK_BYTES = 32, 4096
LEVELS = 3  # of folders above a file, in which its digest may be


def write_digests(folder: Path, names: Iterable[str] | None = None) -> None:
    """Write digests.json of a folder: of the files that are named, or of all that it holds, at any depth."""
    if names is None:
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    paths = {name: folder / name for name in names if name != DIGESTS}
    found = {
        name: {"bytes": path.stat().st_size, "sample": sample_digest(path), "sha256": digest_file(path)}
        for name, path in paths.items()
    }
    write_json(folder / DIGESTS, found)


def sample_digest(path: Path) -> str:
    """SHA-256 of blocks of a file at even distances, its first and last among them; of all of a small one."""
    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= BLOCKS * BLOCK_BYTES:
            found.update(file.read())
        else:
            for number in range(BLOCKS):
                found.update(os.pread(file.fileno(), BLOCK_BYTES, (size - BLOCK_BYTES) * number // (BLOCKS - 1)))
    return found.hexdigest()


def digests_folder(path: Path) -> Path | None:
    """The folder whose digests.json has this file; None if there is none."""
    above = list(path.parents)[:LEVELS]
    return next((folder for folder in above if path.relative_to(folder).as_posix() in _digests(folder)), None)


def damage(path: Path, *, whole: bool = False) -> str:
    """What differs in a file from when it was written; "" if nothing is seen, or its digest is not known. `whole`: all
    of it is compared, not blocks alone."""
    folder = digests_folder(path)
    if folder is None:
        return ""
    written = _digests(folder)[path.relative_to(folder).as_posix()]
    if not path.is_file():
        return "no such file any more"
    if (size := path.stat().st_size) != written["bytes"]:
        return f"{size} bytes, {written['bytes']} were written"
    is_same = digest_file(path) == written["sha256"] if whole else sample_digest(path) == written["sample"]
    return "" if is_same else "its digest is not that of what was written"


def check_file(path: Path) -> None:
    """Refuse a file that differs from what was written; the UserError says what to delete."""
    if differs := damage(path):
        raise UserError(f"{path}: {differs}; delete {made_as_one(digests_folder(path) or path.parent)} and run again")


def made_as_one(folder: Path) -> Path:
    """What to delete so that a folder is made again: all of the stage that it is of, else the folder itself."""
    return folder.parent if (folder.parent / "config.yaml").is_file() else folder


def _digests(folder: Path) -> dict[str, Any]:
    path = folder / DIGESTS
    return dict(read_json(path)) if path.is_file() else {}
