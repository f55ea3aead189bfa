"""Text files, compressed or not, as UTF-8; any fault is a UserError with file, line (if any) and remedy.

Lines end only at a line feed: U+2028, U+0085, vertical tabs and form feeds are characters of the text.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from realm_lab.errors import UserError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

HEAD_BYTES = 1 << 16
CHUNK_BYTES = 1 << 20
EXPANSION_GRACE = 16 << 20  # bytes that any compressed file may expand to: a small file of blanks is no bomb
MAX_WHOLE_MB = 1024  # a JSON object (SQuAD) or array is read whole
MAX_LINE_MB = 64  # of one line, one member of a JSON array or one field of a table
MAX_EXPANSION = 200  # times the compressed size; text of any language stays under 30
MEGABYTE = 1 << 20
PARQUET = "PAR1"  # the head of a Parquet file
TFRECORD = ".tfrecord"  # in the name of such a file, since its first bytes do not show the format
_SKIPPABLE = {bytes([first]) + b"\x2a\x4d\x18": ".zst" for first in range(0x50, 0x60)}  # skippable frames, as pzstd's
_MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ".zst"} | _SKIPPABLE
_PACKED = {b"PK\x03\x04": "a zip archive", b"\xfd7zX": "an xz file", b"7z\xbc\xaf": "a 7z archive"}
_TAR = b"ustar"  # at byte 257
_RECORD = re.compile(r"\s*(?:\[\s*)?(?=\{)")
_WINDOW = {
    zstd.DecompressionParameter.window_log_max: 31
}  # 2 GiB, the most that can be read; the library's default is 27 (128 MiB)
_OPEN: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".zst": partial(zstd.open, options=_WINDOW)}


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line with its line end)."""
    limit = MAX_LINE_MB * MEGABYTE
    with open_bytes(path) as file:
        number = 0
        while line := file.readline(limit + 1):
            number += 1
            if len(line) > limit:
                hint = "convert its CR line ends (tr '\\r' '\\n'), or " if b"\r" in line else ""
                raise UserError(
                    f"longer than {MAX_LINE_MB} MB", f"{hint}cut it into several records", path=path, line=number
                )
            if number == 1 and not line.endswith(b"\n") and b"\r" in line.rstrip(b"\r"):
                raise UserError("lines end in CR alone", "convert them: tr '\\r' '\\n'", path=path, line=1)
            yield number, _decode(line, path, number)


def read_text(path: Path) -> str:
    """Return the whole text of a file. UserError: it is larger than MAX_WHOLE_MB."""
    with open_bytes(path) as file:
        data = file.read(MAX_WHOLE_MB * MEGABYTE + 1)
    if len(data) > MAX_WHOLE_MB * MEGABYTE:
        raise UserError(f"over {MAX_WHOLE_MB} MB as one JSON value", "split it, or write JSON lines", path=path)
    return _decode(data, path, 1)


def plain_name(path: Path) -> str:
    """The file's name in lower case without the suffix of its compression."""
    name = path.name.lower()
    return path.stem.lower() if name.endswith(tuple(_MAGIC.values())) else name


def read_head(path: Path) -> str:
    """Return the text of the first HEAD_BYTES, or the first JSON record, up to MAX_LINE_MB, if it is longer. Return
    PARQUET for a Parquet file, and TFRECORD for a file with this in its name. UserError: the file has no text."""
    with open_bytes(path) as file:
        head = file.read(HEAD_BYTES)
    if head.startswith(PARQUET.encode()):
        return PARQUET
    if TFRECORD in path.name and head:
        return TFRECORD
    packed = "a tar archive" if head[257:].startswith(_TAR) else _PACKED.get(head[:4])
    if packed:
        raise UserError(f"is {packed}", "unpack it, and name the files in it", path=path)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in head:
        line = 1 + head.count(b"\n", 0, max(0, head.find(b"\0")))
        raise UserError("looks like UTF-16 or binary data", "save the file as UTF-8", path=path, line=line)
    head = head.removeprefix(b"\xef\xbb\xbf")
    if not head.strip():
        raise UserError("the file is empty", "fetch or write it again", path=path)
    text = head.decode("utf-8", errors="ignore")
    if not _RECORD.match(text) or _record_end(text):
        return text
    with open_bytes(path) as file:
        longer = file.read(MAX_LINE_MB * MEGABYTE).decode("utf-8", errors="ignore").removeprefix("\ufeff")
    return longer[: _record_end(longer)] or text


def _record_end(text: str) -> int:
    """The end of the JSON record that a text starts with, also in an array; 0 if it is cut off or damaged."""
    start = _RECORD.match(text)
    try:
        return json.JSONDecoder().raw_decode(text, start.end())[1] if start else 0
    except (ValueError, RecursionError):
        return 0


def _decode(data: bytes, path: Path, line: int) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        raise UserError(
            f"not UTF-8 (byte 0x{data[error.start]:02x})", "save it as UTF-8", path=path, line=line
        ) from None
    if "\0" in text:
        line += text.count("\n", 0, text.index("\0"))
        raise UserError("a NUL byte", "save it as UTF-8 text, or delete the byte", path=path, line=line)
    return text.removeprefix("\ufeff") if line == 1 else text


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open the bytes of a file, decompressed. The first bytes show the compression. UserError: the suffix names
    another one."""
    try:
        with open(path, "rb") as file:
            start = file.read(4)
            suffix = next((suffix for magic, suffix in _MAGIC.items() if start.startswith(magic)), "")
            named = path.suffix.lower() if path.suffix.lower() in _MAGIC.values() else ""
            if named and named != suffix and start:
                raise UserError(f"named {named} but is not such a file", "fetch it again or rename it", path=path)
            file.seek(0)
            if not suffix:
                yield file
                return
            with _OPEN[suffix](file) as plain:
                yield io.BufferedReader(_Measured(plain, file, path), CHUNK_BYTES)
    except FileNotFoundError:
        raise UserError("no such file", "check the path", path=path) from None
    except IsADirectoryError:
        raise UserError("is a folder", "name the files in it", path=path) from None
    except zstd.ZstdError as error:
        if "memory" not in str(error):
            raise UserError(f"cut off or damaged ({error})", "fetch it again", path=path) from None
        remedy = "unpack it yourself, or compress it with a window of at most 2 GiB (zstd --long=31 or less)"
        raise UserError(f"its window takes more memory than there is for it ({error})", remedy, path=path) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"cut off or damaged ({error})", "fetch it again", path=path) from None
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror or error})", "check the file", path=path) from None


class _Measured(io.RawIOBase):
    """A decompressed stream. UserError: over EXPANSION_GRACE, and over MAX_EXPANSION times the packed bytes."""

    def __init__(self, plain: Any, packed: IO[bytes], path: Path):
        self._plain, self._packed, self._path = plain, packed, path
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._plain.readinto(buffer)
        self._read += count
        allowed = max(EXPANSION_GRACE, MAX_EXPANSION * self._packed.tell())
        if self._read > allowed:
            raise UserError(
                f"grows to more than {MAX_EXPANSION} times its compressed size, as no text does",
                "fetch it again, or decompress it yourself",
                path=self._path,
            )
        return count
