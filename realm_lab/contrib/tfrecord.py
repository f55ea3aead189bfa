"""Read TFRecord files of salient_span_wikipedia, as TensorFlow Datasets stores them, without TensorFlow.

A file repeats: length (8 bytes), its checksum (4, ignored), a tf.train.Example, its checksum (4, ignored). Only the
features that these Examples have are decoded: lists of bytes and of integers, by their names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from realm_lab.contrib.formats.texts import SPAN, salient_document
from realm_lab.engine.corpus.readers.inputs import InputFile
from realm_lab.engine.corpus.readers.json_records import Record
from realm_lab.engine.corpus.readers.registry import Dropped, register_reader
from realm_lab.engine.corpus.records import Document
from realm_lab.engine.corpus.text_files import MAX_LINE_MB, MEGABYTE, TFRECORD, open_bytes
from realm_lab.errors import UserError
from realm_lab.records.protobuf import fields, whole_number

REMEDY = "expected TFDS's salient_span_wikipedia: title, text, spans/start, spans/limit, spans/type"
# feature of TFDS -> feature in the files of REALM's authors, which TFDS converts
AUTHORS = {"spans/start": "span_byte_start", "spans/limit": "span_byte_limit", "spans/type": "span_type"}
Features = dict[str, list[Any]]


def _documents(file: InputFile, dropped: Dropped) -> Iterator[Document]:
    for number, features in enumerate(_examples(file.path), 1):
        record = Record(file, number, {}, REMEDY, dropped, part=f"record {number}")
        try:
            own = {name: [v.decode() if isinstance(v, bytes) else v for v in vs] for name, vs in features.items()}
        except UnicodeDecodeError:
            raise record.error("a text that is not UTF-8") from None
        found: dict[str, Any] = {name: own[name][0] for name in ("title", "text") if own.get(name)}
        found["spans"] = {
            name: own.get(key, own.get(AUTHORS[key], [])) for name, key in zip(SPAN, AUTHORS, strict=True)
        }
        yield from salient_document(record._replace(fields=found), dropped)


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
            except (struct.error, ValueError, IndexError, KeyError, AttributeError):  # some bytes have other types
                raise UserError("cut off or damaged", "fetch it again", path=path, part=f"record {number}") from None


def _example(data: bytes) -> Features:
    """Decode an Example, with field numbers {1: features {1: [{1: name, 2: {1: bytes {1}, 3: integers {1}}}]}}."""
    found: Features = {}
    for _, features in fields(data):
        for _, entry in fields(features):
            named = dict(fields(entry))
            kinds = list(fields(named[2])) if 2 in named else []
            found[named[1].decode()] = [value for kind, values in kinds for value in _values(kind, values)]
    return found


def _values(kind: int, values: Any) -> Iterator[Any]:
    for _, value in fields(values):
        if kind == 1 or isinstance(value, int):
            yield value
        elif kind == 3:  # packed
            position = 0
            while position < len(value):
                number, position = whole_number(value, position)
                yield number


register_reader("salient_span_tfrecord", lambda path, head: head == TFRECORD, read_documents=_documents)
