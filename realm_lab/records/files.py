"""JSON, atomic writes and digests. No file is written in place, except by `overwrite_json`."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from realm_lab.errors import UserError, in_words

LONGEST_BYTES = 200  # of a name: file systems allow 255, and names of temporary files are longer

MARK = ".realm_lab"  # file in every directory that `atomic_directory` wrote, and may replace
# Texts of errors for a full disk that have no errno: from libraries in Rust, and from NumPy if a write was incomplete.
FULL = re.compile(rf"os error ({errno.ENOSPC}|{errno.EDQUOT})\)|\d+ requested and \d+ written")
VISIBLE_SECONDS, LOOK_SECONDS = 120.0, 0.1  # longest wait for a file of another machine, and interval of looks
SETTLED_SECONDS = 2.0  # a younger file may be written again with the same size and times


class DiskFull(UserError):
    """The disk has no room for a file or a folder."""

    def __init__(self, path: Path):
        super().__init__(f"{path}: no space left on its disk; make room, then run again to resume")
        self._path = path

    def __reduce__(self) -> tuple[type[DiskFull], tuple[Path]]:
        """Pickle the error so that another process can raise it."""
        return DiskFull, (self._path,)


def is_disk_full(error: BaseException) -> bool:
    """True if an error, of whatever library, means that a disk or a quota is full."""
    if isinstance(error, OSError) and error.errno:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, DiskFull) or FULL.search(str(error)) is not None


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """If an error inside the block is about a full disk, raise DiskFull with `path`; a DiskFull keeps its path."""
    try:
        yield
    except DiskFull:
        raise
    except Exception as error:
        if is_disk_full(error):
            raise DiskFull(path) from None
        raise


@contextmanager
def atomic_write(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary neighbour of `path` and rename it over `path` when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path, "tmp")
    encoding = None if "b" in mode else "utf-8"
    try:
        with open(temporary, mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if is_disk_full(error):
            raise DiskFull(path) from None
        raise


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a scratch directory that becomes `path` if the block ends well, and is deleted otherwise.

    It gets the file MARK, so that a later call may replace it. UserError: as `check_replaceable`.
    """
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path, "tmp")
    temporary.mkdir()
    try:
        yield temporary
        (temporary / MARK).write_text("realm-lab wrote this folder and may replace it.\n", encoding="utf-8")
        check_replaceable(path)
        old = _beside(path, "old")
        if path.exists():
            os.replace(path, old)
        os.replace(temporary, path)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if is_disk_full(error):
            raise DiskFull(path) from None
        raise


def _beside(path: Path, kind: str) -> Path:
    """Return a hidden neighbour with a random name: the ids of processes on two machines may be equal."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{kind}")


def link_directory(source: Path, folder: Path) -> None:
    """Copy a folder to another path, as hard links if the file system supports them."""
    with atomic_directory(folder) as scratch:
        shutil.copytree(source, scratch, dirs_exist_ok=True, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without links
        shutil.copy2(source, target)


def wait_for_file(path: Path) -> Path:
    """Wait until a file that another machine has written is visible here, and return its path. UserError: it is not
    visible after VISIBLE_SECONDS."""
    if not wait_until(path.exists):
        raise UserError(
            f"not visible here {VISIBLE_SECONDS:g} s after it was written", "is this disk a shared one?", path=path
        )
    return path


def wait_until(is_true: Callable[[], bool]) -> bool:
    """Wait up to VISIBLE_SECONDS for a condition: some file systems show another machine's writes seconds later."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def is_ours(path: Path) -> bool:
    """True if a directory was written by `atomic_directory`."""
    return (path / MARK).is_file()


def check_replaceable(path: Path) -> None:
    """Raise a UserError unless `path` is free, an empty directory, or one that `atomic_directory` wrote. The working
    directory and the directories around it are refused too."""
    here = Path.cwd()
    if path.resolve() in (here, *here.parents):
        raise UserError(f"'{path}' is or holds the working directory, so it is not replaced; name a folder inside it")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise UserError("is a file or a link, not a folder", "move it away or name another folder", path=path)
    if path.is_dir() and not is_ours(path) and any(path.iterdir()):
        raise UserError(
            f"was not written by realm-lab (no {MARK} in it), so it is not replaced",
            "move it away or name another folder",
            path=path,
        )


def check_output(path: Path, inputs: Iterable[Path]) -> None:
    """Raise a UserError if an output file is a folder, or exists and is an input or lies inside an input folder."""
    if path.is_dir():
        raise UserError("is a folder", "name a file in it", path=path)
    for other in inputs if path.exists() else ():
        if other.exists() and (path.samefile(other) or other.resolve() in path.resolve().parents):
            raise UserError("is an input, which the output would replace", "name another file", path=path)


def remove_directory(path: Path) -> None:
    """Delete a directory that `atomic_directory` wrote, or an empty one. Anything else is a UserError; a missing path
    is ignored. The path is free at once; files still read on a network file system stay in a hidden neighbour."""
    check_replaceable(path)
    if path.exists():
        old = _beside(path, "old")
        os.replace(path, old)
        shutil.rmtree(old, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8."""
    with atomic_write(path) as file:
        file.write(text)


def json_text(value: Any) -> str:
    """Return `value` as readable JSON. NaN and infinities are refused."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` atomically as readable JSON. NaN and infinities are refused."""
    write_text(path, json_text(value))


def print_json(value: Any) -> None:
    """Print `value` as readable JSON, with paths as text."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str), flush=True)


def overwrite_json(path: Path, value: Any) -> None:
    """Write `value` over a JSON file in place, for a disk that has no room for a new file. DiskFull: the text does not
    fit into the blocks of the file."""
    text = json_text(value).encode()
    with room_for(path), open(path, "r+b", buffering=0) as file:
        now = os.fstat(file.fileno())
        if len(text) > now.st_blocks * 512:
            raise DiskFull(path)
        file.write(text.ljust(now.st_size))  # blanks in place of the rest of the old text


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line, atomically."""
    with atomic_write(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; a missing or broken one is a UserError that names the file and line."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError("no such file", path=path) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        line = getattr(error, "lineno", None)
        raise UserError(f"not valid JSON ({error})", "delete or repair the file", path=path, line=line) from None


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; another value is a UserError, as in `read_json`."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError(f"must be an object, got {in_words(type(found))}", "copy or repair the file", path=path)
    return found


def read_json_lines(path: Path) -> list[Any]:
    """Read a JSON-lines file; a broken line is a UserError that names file and line."""
    records = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                records.append(json.loads(line.decode()))
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                reason = getattr(error, "msg", "it is no UTF-8")
                raise UserError(f"not valid JSON ({reason})", path=path, line=number) from None
    return records


def canonical_json(value: Any) -> str:
    """Return canonical JSON, the same text for equal values: sorted keys, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of `value`, as hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as hex, cached while its size and times stay. UserError: no such file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise UserError("no such file", "check the path", path=path) from None
    is_settled = time.time() - max(found.st_mtime, found.st_ctime) >= SETTLED_SECONDS
    read = _digest_of if is_settled else _digest_of.__wrapped__
    return read(os.path.abspath(path), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@functools.lru_cache(maxsize=10_000)
def _digest_of(path: str, *identity: int) -> str:
    """Return the digest of the file with this inode, size and times."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_path(path: Path) -> str:
    """Return the digest of a file, or of all files in a folder by their paths in it. UserError: no such path."""
    if not path.is_dir():
        return digest_file(path)
    found = sorted(one for one in path.rglob("*") if one.is_file())
    return digest({one.relative_to(path).as_posix(): digest_file(one) for one in found})


def is_name(name: str, also: str = "") -> bool:
    """True if a name can name a file in its folder: it has only letters, digits, `.`, `_`, `-` and characters of
    `also`, starts with a letter, a digit or `_`, and is not too long."""
    return bool(re.fullmatch(rf"\w[\w.{re.escape(also)}-]*", name)) and len(name.encode()) <= LONGEST_BYTES


def check_name(name: str, what: str, also: str = "", remedy: str = "change it") -> None:
    """Refuse an invalid name; the UserError calls it `what`."""
    if not is_name(name, also):
        allowed = " ".join([".", "_", *also, "-"])
        raise UserError(
            f"{what} '{name}': use letters, digits and {allowed} only, a letter or digit first, at most "
            f"{LONGEST_BYTES} bytes (it names files); {remedy}",
            value=name,
        )
