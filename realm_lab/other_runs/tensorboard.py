"""TensorBoard's event files: TFRecord frames with protobuf messages; only the scalars are read.

Source: tensorboard/compat/proto/event.proto, summary.proto and tensor.proto; tensorflow/core/lib/io/record_writer.cc.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from realm_lab.errors import UserError

EVENTS = "*tfevents*"
HEAD, CHECK = 12, 4  # bytes of a frame before its data (length, checksum) and after it
SUMMARY, VALUE, TAG, SIMPLE, TENSOR = 5, 1, 1, 2, 8  # numbers of fields
CONTENT, FLOATS = 4, 5  # of a tensor
SINGLE = 4  # bytes


def last_scalars(path: Path) -> dict[str, float]:
    """tag -> its last value. A frame that a killed run did not finish ends the file. UserError: no event file."""
    found: dict[str, float] = {}
    data, place = path.read_bytes(), 0
    while place + HEAD <= len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        event = data[place + HEAD : place + HEAD + length]
        if len(event) < length:
            break
        place += HEAD + length + CHECK
        try:
            for number, summary in _fields(event):
                if number == SUMMARY and isinstance(summary, bytes):
                    found |= dict(_scalars(summary))
        except (IndexError, struct.error, UnicodeDecodeError):
            raise UserError("no event file of TensorBoard, or damaged", path=path, remedy="move it away") from None
    return found


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for number, value in _fields(summary):
        if number != VALUE or not isinstance(value, bytes):
            continue
        fields = dict(_fields(value))
        tag, simple, tensor = fields.get(TAG), fields.get(SIMPLE), fields.get(TENSOR)
        if isinstance(tag, bytes) and isinstance(simple, bytes):
            yield tag.decode(), _single(simple)
        elif isinstance(tag, bytes) and isinstance(tensor, bytes):  # TensorFlow 2
            parts = dict(_fields(tensor))
            for one in (parts.get(CONTENT), parts.get(FLOATS)):
                if isinstance(one, bytes) and len(one) == SINGLE:
                    yield tag.decode(), _single(one)


def _single(data: bytes) -> float:
    """The shortest decimal of a float32: .7925 and not .79250001907, so that equal differences are equal."""
    return float(str(np.frombuffer(data, "<f4")[0]))


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(number, value) of each field of a protobuf message; fixed numbers as their bytes."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = _varint(message, place)
        else:
            size = {1: 8, 5: 4}.get(kind, len(message) + 1)
        if place + size > len(message):
            raise IndexError
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place
