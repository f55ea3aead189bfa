"""Decode messages of protocol buffers without their definitions.

Source: protobuf.dev, Encoding. Damaged messages raise ValueError or IndexError.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

FIXED = {1: 8, 5: 4}  # wire type of a field -> number of bytes
TEXT = 2  # wire type of text, bytes and inner messages


def fields(message: Any) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of each field of a message: whole numbers as int, all else as bytes."""
    if not isinstance(message, bytes):
        raise ValueError
    position = 0
    while position < len(message):
        key, position = whole_number(message, position)
        if key & 7 == 0:
            value, position = whole_number(message, position)
            yield key >> 3, value
            continue
        if key & 7 == TEXT:
            size, position = whole_number(message, position)
        else:
            size = FIXED.get(key & 7, -1)
        if size < 0 or position + size > len(message):
            raise ValueError
        yield key >> 3, message[position : position + size]
        position += size


def whole_number(message: bytes, position: int) -> tuple[int, int]:
    """Return the signed number of 64 bits (a varint) that starts at `position`, and the position after it."""
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (value - (1 << 64) if value >> 63 else value), position
        if shift > 63:
            raise ValueError
