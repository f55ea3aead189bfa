"""Check a GGUF file by its header, which lists all values and the positions of all tensors; no weight is read."""

from __future__ import annotations

import functools
import struct
from pathlib import Path
from typing import IO

from realm_lab.errors import UserError

VERSIONS = (2, 3)
BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # type -> bytes of a value
STRING, ARRAY = 8, 9
MOST_DIMENSIONS = 4


@functools.cache
def check_gguf(path: Path, content: str) -> None:
    """Raise a UserError if a file is not GGUF, or ends before its last tensor. `content`: its digest, for the cache."""
    with open(path, "rb") as file:
        header = _Header(file, path.stat().st_size)
        try:
            header.check()
        except (ValueError, struct.error) as error:
            raise UserError(f"truncated or not GGUF ({error})", "copy the file again", path=path) from None


class _Header:
    def __init__(self, file: IO[bytes], size: int):
        self._file, self._size = file, size

    def check(self) -> None:
        if (magic := self._file.read(4)) != b"GGUF":
            raise ValueError(f"it starts with {magic!r}")
        if (version := self._number("I")) not in VERSIONS:
            raise ValueError(f"version {version}")
        tensors, values = self._number("Q"), self._number("Q")
        for _ in range(values):
            self._skip(self._number("Q"))  # its name
            self._skip_value(self._number("I"))
        start = 0
        for _ in range(tensors):
            self._skip(self._number("Q"))
            if (dimensions := self._number("I")) > MOST_DIMENSIONS:
                raise ValueError(f"a tensor of {dimensions} dimensions")
            self._skip(8 * dimensions + 4)
            start = max(start, self._number("Q"))
        if tensors and self._file.tell() + start >= self._size:
            raise ValueError(f"{self._size} bytes, and a tensor begins at {start} after the header")

    def _skip_value(self, kind: int) -> None:
        if kind in BYTES:
            self._skip(BYTES[kind])
        elif kind == STRING:
            self._skip(self._number("Q"))
        elif kind == ARRAY:
            inner, count = self._number("I"), self._number("Q")
            if inner in BYTES:
                self._skip(BYTES[inner] * count)
            elif inner == STRING:
                for _ in range(count):
                    self._skip(self._number("Q"))
            else:
                raise ValueError(f"a list of type {inner}")
        else:
            raise ValueError(f"a value of type {kind}")

    def _number(self, kind: str) -> int:
        (number,) = struct.unpack(f"<{kind}", self._file.read(struct.calcsize(kind)))
        return int(number)

    def _skip(self, count: int) -> None:
        if self._file.tell() + count > self._size:
            raise ValueError(f"it ends after {self._size} bytes")
        self._file.seek(count, 1)
