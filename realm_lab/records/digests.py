"""Detect damage to finished files: digests.json in a folder has the digests of its files.

{"name": the full name of the folder, "" if it has none,
 "files": {path: {"bytes": size, "sha256": of the file, "sample": of blocks of a large one, "before": see FileDigest}}}

For an inner folder with a digests.json, only that file is listed. When a folder is read, small files are compared whole
and large ones by blocks, which takes milliseconds at any size. `realm-lab doctor --verify` compares all files whole,
which finds any change.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.errors import UserError
from realm_lab.records.files import digest_file, json_text, read_object, write_json

DIGESTS = "digests.json"
BLOCKS, BLOCK_BYTES = 32, 4096
WHOLE_BYTES = 4 * 2**20  # a file up to this size is always compared whole
CHANGING = ("checkpoints", "index", "lease")  # folders of a stage that are left out; checkpoints have separate digests


class FileDigest(NamedTuple):
    """A file as it was written. `before`: the SHA-256 of the content that the file replaces. It is valid too, since the
    digests are written before the file."""

    bytes: int
    sha256: str
    sample: str = ""
    before: str = ""


def write_digests(folder: Path, names: Iterable[str] | None = None, name: str = "") -> None:
    """Write digests.json of a folder, for the named files or for all files at any depth."""
    _put(folder, name, {other: _written(folder / other) for other in (_files(folder) if names is None else names)})


def write_last(path: Path, value: Any, names: Iterable[str] | None = None, name: str = "") -> None:
    """Write digests.json of a folder, which covers the JSON file `path` too, then that file, which marks the end."""
    folder = path.parent
    others = [other for other in (_files(folder) if names is None else names) if other != path.name]
    _put(folder, name, {other: _written(folder / other) for other in others} | {path.name: _future(path, value)})
    write_json(path, value)


def rewrite(path: Path, value: Any) -> None:
    """Replace a JSON file, and its digest in digests.json if the folder has one."""
    if (path.parent / DIGESTS).is_file():
        name, files = read_digests(path.parent)
        _put(path.parent, name, files | {path.name: _future(path, value)})
    write_json(path, value)


def _put(folder: Path, name: str, files: dict[str, FileDigest]) -> None:
    plain = {other: {key: part for key, part in one._asdict().items() if part != ""} for other, one in files.items()}
    write_json(folder / DIGESTS, {"name": name, "files": plain})


def _written(path: Path) -> FileDigest:
    size = path.stat().st_size
    return FileDigest(size, digest_file(path), sample_digest(path) if size > WHOLE_BYTES else "")


def _future(path: Path, value: Any) -> FileDigest:
    """Describe a JSON file that is about to be written."""
    content = json_text(value).encode()
    before = digest_file(path) if path.is_file() else ""
    return FileDigest(len(content), hashlib.sha256(content).hexdigest(), before=before)


def _files(folder: Path, prefix: str = "") -> Iterator[str]:
    """Yield the names for a folder's digests.json: all files except hidden ones, locks, and the folders CHANGING."""
    for path in sorted(folder.iterdir()):
        name = f"{prefix}{path.name}"
        if path.name.startswith(".") or path.suffix == ".lock" or name in (DIGESTS, *CHANGING):
            continue
        if not path.is_dir():
            yield name
        elif (path / DIGESTS).is_file():
            yield f"{name}/{DIGESTS}"
        else:
            yield from _files(path, f"{name}/")


def sample_digest(path: Path) -> str:
    """Return the SHA-256 of blocks of a file at even distances, the first and the last included."""
    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for number in range(BLOCKS):
            found.update(os.pread(file.fileno(), BLOCK_BYTES, (size - BLOCK_BYTES) * number // (BLOCKS - 1)))
    return found.hexdigest()


def read_digests(folder: Path) -> tuple[str, dict[str, FileDigest]]:
    """Return the name and the files that digests.json of a folder has. UserError: it is missing or broken."""
    path = folder / DIGESTS
    if not path.is_file():
        raise UserError("no such file", _remedy(folder), path=path)
    found = read_object(path)
    try:
        return str(found["name"]), {name: FileDigest(**one) for name, one in found["files"].items()}
    except (AttributeError, KeyError, TypeError):
        raise UserError("not the digests of a folder", _remedy(folder), path=path) from None


def is_whole(folder: Path) -> bool:
    """True if digests.json and all files that it lists are there. UserError: digests.json is broken."""
    if not (folder / DIGESTS).is_file():
        return False
    inner = f"/{DIGESTS}"
    return all(  # strings, not Paths: a sweep with nothing to do checks thousands of files
        is_whole(folder / name.removesuffix(inner)) if name.endswith(inner) else os.path.isfile(f"{folder}/{name}")
        for name in read_digests(folder)[1]
    )


def damage(path: Path, *, whole: bool = False) -> str:
    """Describe how a file differs from the one that was written; "" if no difference is found or its digest is unknown.
    `whole`: compare all of it, not only blocks."""
    folder = next((above for above in path.parents if (above / DIGESTS).is_file()), None)
    written = read_digests(folder)[1].get(path.relative_to(folder).as_posix()) if folder else None
    return "" if written is None else _difference(path, written, whole)


def _difference(path: Path, written: FileDigest, whole: bool) -> str:
    if not path.is_file():
        return "no such file any more"
    if written.before and digest_file(path) in (written.sha256, written.before):
        return ""
    if (size := path.stat().st_size) != written.bytes:
        return f"{size} bytes, {written.bytes} were written"
    is_sampled = size > WHOLE_BYTES and not whole
    is_same = sample_digest(path) == written.sample if is_sampled else digest_file(path) == written.sha256
    return "" if is_same else "its digest is not that of what was written"


def check_file(path: Path, remedy: str = "") -> None:
    """Refuse a file that differs from the one that was written; the UserError names the folder to delete."""
    if differs := damage(path):
        folder = next(above for above in path.parents if (above / DIGESTS).is_file())
        raise UserError(differs, remedy or _remedy(folder), path=path)


def check_folder(folder: Path, part: str = "") -> None:
    """Refuse a folder whose files differ from those written, or belong to another folder. `part`: check only paths
    that start with this text. UserError: as `check_file`, or there are no digests."""
    for path, differs in differences(folder, part):
        raise UserError(differs, _remedy(folder), path=path)


def differences(folder: Path, part: str = "", *, whole: bool = False) -> Iterator[tuple[Path, str]]:
    """Yield the files of a folder that differ from those written, and how they differ. UserError: as `read_digests`."""
    name, files = read_digests(folder)
    if name and not name.startswith(folder.name):
        yield folder / DIGESTS, f"the files are of {name}"
    for other, written in files.items():
        if other.startswith(part) and (differs := _difference(folder / other, written, whole)):
            yield folder / other, differs


def made_as_one(folder: Path) -> Path:
    """Return the folder to delete so that the files of `folder` are made again: the stage that it is in, or itself."""
    return folder.parent if (folder.parent / "config.yaml").is_file() else folder


def _remedy(folder: Path) -> str:
    return f"delete {made_as_one(folder)} and run again"
