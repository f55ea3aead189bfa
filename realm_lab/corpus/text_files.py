"""Text files, compressed or not, as UTF-8 lines; whatever is wrong with one is a UserError with file and line."""

from __future__ import annotations

import bz2
import gzip
import importlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from realm_lab.errors import UserError

HEAD_BYTES = 4096
_MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ".zst"}
_BROKEN = (EOFError, gzip.BadGzipFile, zlib.error)


def plain_name(path: Path) -> str:
    """The file's name in lower case without the suffix of its compression."""
    name = path.name.lower()
    return path.stem.lower() if name.endswith(tuple(_MAGIC.values())) else name


def read_head(path: Path) -> str:
    """About the first 4,000 characters; a file without any text is a UserError."""
    with _open(path) as file:
        head = file.read(HEAD_BYTES)
    if not head.strip():
        raise UserError(f"{path}: the file is empty; fetch or write it again")
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in head:
        raise UserError(f"{path}, line 1: looks like UTF-16 or binary data; save the file as UTF-8")
    return head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="ignore")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line with its line end), streaming."""
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            yield number, _decode(line, path, number)


def read_text(path: Path) -> str:
    """The whole text of a file."""
    with _open(path) as file:
        return _decode(file.read(), path, 1)


def _decode(data: bytes, path: Path, line: int) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        raise UserError(f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); save it as UTF-8") from None
    return text.removeprefix("\ufeff") if line == 1 else text


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed; recognised by its first bytes, so that a wrong suffix is noticed."""
    try:
        with open(path, "rb") as file:
            start = file.read(4)
            suffix = next((suffix for magic, suffix in _MAGIC.items() if start.startswith(magic)), "")
            named = path.suffix.lower() if path.suffix.lower() in _MAGIC.values() else ""
            if named and named != suffix and start:
                raise UserError(f"{path}: named {named} but is not such a file; fetch it again or rename it")
            file.seek(0)
            with _decompressed(file, suffix, path) as plain:
                yield plain
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path in params.yaml") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; name the files in it") from None
    except _BROKEN as error:
        raise UserError(f"{path}: cut off or damaged ({error}); fetch it again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}); check the file") from None


def _decompressed(file: IO[bytes], suffix: str, path: Path) -> Any:
    if suffix == ".gz":
        return gzip.open(file)
    if suffix == ".bz2":
        return bz2.open(file)
    if suffix == ".zst":
        return _zstandard(path).open(file)
    return file


def _zstandard(path: Path) -> Any:
    """The standard library's module (Python 3.14) or its backport: both notice a file that is cut off."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise UserError(f"{path}: reading .zst needs 'pip install backports.zstd'; or decompress the file first")
