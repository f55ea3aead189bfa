"""Detect damage to finished files: digests.json in a folder has the digests of its files.

Opening a file compares its size and blocks spread over it. This takes a millisecond at any size and finds a file that
was emptied, overwritten or changed throughout. `realm-lab doctor --verify` reads whole files, which finds any change.
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
    """Write digests.json of a folder, for the named files or for all files at any depth."""
    if names is None:
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    paths = {name: folder / name for name in names if name != DIGESTS}
    found = {
        name: {"bytes": path.stat().st_size, "sample": sample_digest(path), "sha256": digest_file(path)}
        for name, path in paths.items()
    }
    write_json(folder / DIGESTS, found)


def sample_digest(path: Path) -> str:
    """Return the SHA-256 of blocks of a file at even distances, the first and the last included. A small file is
    hashed whole."""
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
    """Return the folder whose digests.json has this file; None if there is none."""
    above = list(path.parents)[:LEVELS]
    return next((folder for folder in above if path.relative_to(folder).as_posix() in _digests(folder)), None)


def damage(path: Path, *, whole: bool = False) -> str:
    """Describe how a file differs from the one that was written; "" if no difference is found or its digest is unknown.
    `whole`: compare all of it, not only blocks."""
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
    """Refuse a file that differs from the one that was written; the UserError names the folder to delete."""
    if differs := damage(path):
        raise UserError(differs, f"delete {made_as_one(digests_folder(path) or path.parent)} and run again", path=path)


def made_as_one(folder: Path) -> Path:
    """Return the folder to delete so that a file is made again: its stage, or else the folder itself."""
    return folder.parent if (folder.parent / "config.yaml").is_file() else folder


def _digests(folder: Path) -> dict[str, Any]:
    path = folder / DIGESTS
    return dict(read_json(path)) if path.is_file() else {}
