"""TensorBoard's event files: TFRecord frames with protobuf messages; only the scalars are read.

Source: tensorboard/compat/proto/event.proto, summary.proto and tensor.proto; tensorflow/core/lib/io/record_writer.cc.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from realm_lab.errors import UserError
from realm_lab.records.protobuf import fields

EVENTS = "*tfevents*"
HEAD, CHECK = 12, 4  # bytes of a frame before its data (length, checksum) and after it
STEP, SUMMARY, VALUE, TAG, SIMPLE, TENSOR = 2, 5, 1, 1, 2, 8  # numbers of fields
CONTENT, FLOATS = 4, 5  # of a tensor
SINGLE = 4  # bytes


def last_scalars(path: Path) -> dict[str, tuple[int, float]]:
    """Return tag -> (its largest step, the value written last for this step). A frame that a killed run did not finish
    ends the file. UserError: no event file."""
    found: dict[str, tuple[int, float]] = {}
    data, place = path.read_bytes(), 0
    while place + HEAD <= len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        event = data[place + HEAD : place + HEAD + length]
        if len(event) < length:
            break
        place += HEAD + length + CHECK
        try:
            parts = dict(fields(event))
            step, summary = int(parts.get(STEP, 0)), parts.get(SUMMARY)  # a step of 0 is not written
            for tag, value in _scalars(summary) if isinstance(summary, bytes) else ():
                if tag not in found or step >= found[tag][0]:
                    found[tag] = step, value
        except (IndexError, ValueError):
            raise UserError("no event file of TensorBoard, or damaged", path=path, remedy="move it away") from None
    return found


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for number, value in fields(summary):
        if number != VALUE or not isinstance(value, bytes):
            continue
        own = dict(fields(value))
        tag, simple, tensor = own.get(TAG), own.get(SIMPLE), own.get(TENSOR)
        if isinstance(tag, bytes) and isinstance(simple, bytes):
            yield tag.decode(), _single(simple)
        elif isinstance(tag, bytes) and isinstance(tensor, bytes):  # TensorFlow 2
            parts = dict(fields(tensor))
            for one in (parts.get(CONTENT), parts.get(FLOATS)):
                if isinstance(one, bytes) and len(one) == SINGLE:
                    yield tag.decode(), _single(one)


def _single(data: bytes) -> float:
    """The shortest decimal of a float32: .7925 and not .79250001907, so that equal differences are equal."""
    return float(str(np.frombuffer(data, "<f4")[0]))
