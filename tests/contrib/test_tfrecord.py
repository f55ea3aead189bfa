"""TFRecord files, written here by the protocol buffers of another library."""

import gzip
import struct
from pathlib import Path
from typing import Any

import pytest

from realm_lab.engine.corpus.readers import find_reader, input_files, read_documents
from realm_lab.engine.corpus.records import Document, Span
from tests.factories.errors import refused

descriptor_pb2, descriptor_pool, message_factory = (
    pytest.importorskip(f"google.protobuf.{name}") for name in ("descriptor_pb2", "descriptor_pool", "message_factory")
)
FIELD = descriptor_pb2.FieldDescriptorProto
MESSAGES = {
    "BytesList": [("value", 1, FIELD.TYPE_BYTES, FIELD.LABEL_REPEATED, "")],
    "Int64List": [("value", 1, FIELD.TYPE_INT64, FIELD.LABEL_REPEATED, "")],
    "Feature": [
        ("bytes_list", 1, FIELD.TYPE_MESSAGE, FIELD.LABEL_OPTIONAL, ".t.BytesList"),
        ("int64_list", 3, FIELD.TYPE_MESSAGE, FIELD.LABEL_OPTIONAL, ".t.Int64List"),
    ],
    "Entry": [
        ("key", 1, FIELD.TYPE_STRING, FIELD.LABEL_OPTIONAL, ""),
        ("value", 2, FIELD.TYPE_MESSAGE, FIELD.LABEL_OPTIONAL, ".t.Feature"),
    ],
    "Features": [("feature", 1, FIELD.TYPE_MESSAGE, FIELD.LABEL_REPEATED, ".t.Entry")],
    "Example": [("features", 1, FIELD.TYPE_MESSAGE, FIELD.LABEL_OPTIONAL, ".t.Features")],
}


def example_class() -> Any:
    """tf.train.Example; a map is encoded as a list of its entries."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label, of in fields:
            message.field.add(name=field, number=number, type=kind, label=label, type_name=of or None)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


EXAMPLE = example_class()


def record(**features: list[Any]) -> bytes:
    example = EXAMPLE()
    for name, values in features.items():
        entry = example.features.feature.add(key=name)
        texts = [value.encode() if isinstance(value, str) else value for value in values]
        (entry.value.int64_list if values and isinstance(values[0], int) else entry.value.bytes_list).value.extend(
            texts
        )
    return framed(example.SerializeToString())


def framed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + b"crc1" + data + b"crc2"


def salient(prefix: str, text: str, *spans: tuple[int, int, str], title: str = "Oslo") -> bytes:
    names = {"spans/": ("start", "limit", "type"), "span_": ("byte_start", "byte_limit", "type")}[prefix]
    columns: list[Any] = [list(column) for column in zip(*spans, strict=True)] or [[], [], []]
    return record(
        title=[title], text=[text], **{f"{prefix}{name}": column for name, column in zip(names, columns, strict=True)}
    )


@pytest.mark.parametrize(
    ("prefix", "name", "packed"),
    [("spans/", "x-train.tfrecord-00000-of-00001", False), ("span_", "public.tfrecord.gz", True)],
)
def test_documents_with_their_spans(tmp_path: Path, prefix: str, name: str, packed: bool) -> None:
    long = "x" * 300 + " Åse."
    data = salient(prefix, "Åse in Oslo.", (0, 4, "PER"), (8, 12, "LOC")) + salient(prefix, long, (301, 305, ""))
    data += salient(prefix, "Nobody.", title="")
    (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
    plain = name.removesuffix(".gz")
    assert find_reader(tmp_path / name).name == "salient_span_tfrecord"
    assert list(read_documents(input_files(tmp_path))) == [
        Document(f"{plain}:1", "Oslo", "Åse in Oslo.", "Oslo", spans=(Span(0, 3, "PER"), Span(7, 11, "LOC"))),
        Document(f"{plain}:2", "Oslo", long, "Oslo", spans=(Span(301, 304, "span"),)),
        Document(f"{plain}:3", "", "Nobody.", f"{plain}:3", spans=()),
    ]


@pytest.mark.parametrize(
    ("data", "part", "word"),
    [
        (salient("spans/", "One.") * 2 + salient("spans/", "Two.")[:-9], "record 3", "cut off"),
        (salient("spans/", "One.") + b"\0\0", "record 2", "cut off"),
        (b"not a record, but a page of text", "record 1", "cut off"),
        (struct.pack("<Q", 3) + b"crc1\xff\xff\xffcrc2", "record 1", "cut off"),
        (framed(b"\x0a\x04\x0a\x02\x08\x05"), "record 1", "cut off"),  # a name that is a number
        (framed(b"\x0a\x04\x0a\x02\x12\x00"), "record 1", "cut off"),  # no name
        (record(title=["T"]), "record 1", "'text' is missing"),
        (record(text=[b"\xff"]), "record 1", "not UTF-8"),
        (salient("spans/", "Åse", (1, 4, "")), "record 1, spans 1", "bytes 1 to 4"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, data: bytes, part: str, word: str) -> None:
    path = tmp_path / "x.tfrecord"
    path.write_bytes(data)
    with refused(word, path=path, part=part):
        list(read_documents(input_files(path)))


def test_a_missing_shard_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "x-train.tfrecord-00000-of-00002").write_bytes(salient("spans/", "One."))
    with refused("only 1 shards of 2", path=tmp_path):
        input_files(tmp_path)
