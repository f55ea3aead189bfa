"""TFRecord files of salient_span_wikipedia, as TensorFlow Datasets keeps them, without TensorFlow.

A file is a row of: length (8 bytes), a checksum of it (4, not read), a tf.train.Example, a checksum (4, not read). Of
protocol buffers only what an Example has is decoded: lists of bytes and of integers, by the name of a feature.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from realm_lab.corpus.readers.documents import SPAN, salient_document
from realm_lab.corpus.readers.inputs import InputFile
from realm_lab.corpus.readers.json_records import Record
from realm_lab.corpus.readers.registry import Dropped, register_reader
from realm_lab.corpus.records import Document
from realm_lab.corpus.text_files import MAX_LINE_MB, MEGABYTE, TFRECORD, open_bytes
from realm_lab.errors import UserError

REMEDY = "expected TFDS's salient_span_wikipedia: title, text, spans/start, spans/limit, spans/type"
# in the files of REALM's authors, which TFDS converts
AUTHORS = {"spans/start": "span_byte_start", "spans/limit": "span_byte_limit", "spans/type": "span_type"}
Features = dict[str, list[Any]]


def _documents(file: InputFile, dropped: Dropped) -> Iterator[Document]:
    for number, features in enumerate(_examples(file.path), 1):
        where = f"{file.path}, record {number}"
        try:
            own = {name: [v.decode() if isinstance(v, bytes) else v for v in vs] for name, vs in features.items()}
        except UnicodeDecodeError:
            raise UserError(f"{where}: a text that is not UTF-8; {REMEDY}") from None
        fields: dict[str, Any] = {name: own[name][0] for name in ("title", "text") if own.get(name)}
        fields["spans"] = {
            name: own.get(key, own.get(AUTHORS[key], [])) for name, key in zip(SPAN, AUTHORS, strict=True)
        }
        yield from salient_document(Record(where, number, fields, file.name, REMEDY, dropped), dropped)


def _examples(path: Path) -> Iterator[Features]:
    number = 0
    with open_bytes(path) as file:
        while head := file.read(12):
            number += 1
            try:
                [length] = struct.unpack("<Q", head[:8])
                if length > MAX_LINE_MB * MEGABYTE or len(data := file.read(length + 4)) < length + 4:
                    raise ValueError
                yield _example(data[:-4])
            except (struct.error, ValueError, IndexError):
                raise UserError(f"{path}, record {number}: cut off or damaged; fetch it again") from None


def _example(data: bytes) -> Features:
    """Example {1: features {1: [{1: name, 2: {1: bytes {1}, 3: integers {1}}}]}}."""
    found: Features = {}
    for _, features in _fields(data):
        for _, entry in _fields(features):
            named = dict(_fields(entry))
            kinds = list(_fields(named[2])) if 2 in named else []
            found[named[1].decode()] = [value for kind, values in kinds for value in _values(kind, values)]
    return found


def _values(kind: int, values: Any) -> Iterator[Any]:
    for _, value in _fields(values):
        if kind == 1 or isinstance(value, int):
            yield value
        elif kind == 3:  # packed
            place = 0
            while place < len(value):
                number, place = _varint(value, place)
                yield number


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """(number, value) of the fields of a message; a message within is bytes."""
    if not isinstance(data, bytes):
        raise ValueError
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        if key & 7 == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
        elif key & 7 == 2:
            length, place = _varint(data, place)
            if place + length > len(data):
                raise ValueError
            yield key >> 3, data[place : place + length]
            place += length
        else:
            raise ValueError


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (value - (1 << 64) if value >> 63 else value), place
        if shift > 63:
            raise ValueError


register_reader("salient_span_tfrecord", lambda path, head: head == TFRECORD, read_documents=_documents)
