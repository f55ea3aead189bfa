"""Shards of a corpus that is prepared: runs of whole articles, cut and tokenised, each in a file named by content.

Where one shard ends is decided by its articles alone (content-defined chunking), so a document that is added or taken
away changes one shard or two and leaves the others as they are. The name is a digest of everything that decides what is
in it: the documents, the tokenizer, the tagger, the lengths, the code. So a shard may be kept for ever and is never
wrong; a file that is not whole is made again.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from safetensors.numpy import load, save

from realm_lab.core.files import atomic_write, digest, digest_file
from realm_lab.corpus import chunking, cutting, dates, salient_spans, vocabulary
from realm_lab.corpus.cutting import PARTS, Article, CutSettings, Cutter, RaggedBuffer
from realm_lab.corpus.first_seen import text_hash
from realm_lab.corpus.records import Passage
from realm_lab.corpus.writers import batched

SHARD_CHARACTERS = 2_000_000  # of text, on average: some 1,700 passages of 288 wordpieces, and 10 MB of file
LEAST, MOST = 0.25, 4.0  # of that
PASSAGE_SCHEMA = pa.schema([(name, pa.string()) for name in Passage._fields])
PASSAGES_TOGETHER = 256  # whose sentences are encoded in one call
NO_PASSAGE = -1
_DIGEST_BYTES = 32

Kind = Literal["passages", "passages and sentences", "sentences"]
Arrays = dict[str, np.ndarray]


class Shard(NamedTuple):
    """What is in a shard.

    Of passages: `text` (an Arrow record batch), `titles`, `bodies`, `starts` (ragged), `articles` and `contents` (their
    hashes). Of each part of the sentences: `tokens`, `spans` (ragged), `origins` (row in this shard). A ragged array x
    is `x.values` and `x.lengths`.
    """

    arrays: Arrays
    dropped: dict[str, int]

    def text(self) -> pa.RecordBatch:
        """The passages' text."""
        return pa.ipc.read_record_batch(pa.py_buffer(self.arrays["text"]), PASSAGE_SCHEMA)


def grouped(articles: Iterable[Article]) -> Iterator[list[Article]]:
    """Articles in runs of about SHARD_CHARACTERS; an article ends its run by chance, more likely a long one."""
    run: list[Article] = []
    size = 0
    least, most = int(LEAST * SHARD_CHARACTERS), int(MOST * SHARD_CHARACTERS)
    for article in articles:
        length = sum(len(document.text) + len(document.title) for document in article)
        run.append(article)
        size += length
        by_chance = text_hash(article[-1].article) / 2**64 < length / (SHARD_CHARACTERS - least)
        if size >= most or (size >= least and by_chance):
            yield run
            run, size = [], 0
    if run:
        yield run


def identity(settings: CutSettings, tagger: object) -> str:
    """Digest of what decides, beside the documents, what is in a shard; `tagger` describes it."""
    modules = (chunking, cutting, dates, salient_spans, vocabulary, sys.modules[__name__])
    make: Any = settings.make_tagger
    maker = inspect.getmodule(getattr(make, "func", make))
    source = getattr(maker, "__file__", None)
    return digest(
        {
            "code": [digest_file(Path(str(module.__file__))) for module in modules],
            "packages": [version(name) for name in ("sentencex", "tokenizers", "regex")],
            "settings": [settings.tokenizer, settings.passage_length, settings.sentence_length],
            "tagger": [tagger, digest_file(Path(source)) if source else None],
        }
    )


def shard_key(made_by: str, kind: Kind, articles: Sequence[Article]) -> str:
    """The name of the shard of some articles; `made_by` is an `identity`."""
    found = hashlib.sha256(f"{made_by}/{kind}".encode())
    for article in articles:
        for document in article:
            fields = [field.encode() for field in (document.id, document.title, document.article, document.text)]
            found.update(np.array([len(field) for field in fields], np.int64).tobytes())
            found.update(b"".join(fields))
        found.update(b"end of article")
    return found.hexdigest()[:32]


def make_shard(cutter: Cutter, kind: Kind, articles: Sequence[Article]) -> Shard:
    """Cut, tag and tokenise some articles."""
    dropped: Counter[str] = Counter()
    buffers = {f"{part}.{name}": RaggedBuffer() for part in PARTS for name in ("tokens", "spans")}
    origins: dict[str, list[int]] = {part: [] for part in PARTS}
    if kind == "sentences":
        for row in cutter.sentences(articles, dropped):
            _add_sentence(row, NO_PASSAGE, buffers, origins)
        return Shard(_sentence_arrays(buffers, origins), dict(dropped))
    passages: list[Passage] = []
    ragged = {name: RaggedBuffer() for name in ("titles", "bodies", "starts")}
    for cuts in batched(cutter.passages(articles, dropped, tagged=kind != "passages"), PASSAGES_TOGETHER):
        if kind != "passages":
            for place, row in cutter.sentences_of(cuts, dropped):
                _add_sentence(row, len(passages) + place, buffers, origins)
        for cut in cuts:
            ragged["titles"].add(cut.title)
            ragged["starts"].add(cut.starts)
            ragged["bodies"].add([*chain.from_iterable(cut.tokens)])
            passages.append(cut.passage)
    arrays = {} if kind == "passages" else _sentence_arrays(buffers, origins)
    for name, buffer in ragged.items():
        arrays |= _ragged(name, buffer)
    columns = [pa.array([passage[place] for passage in passages], pa.string()) for place in range(len(Passage._fields))]
    batch = pa.RecordBatch.from_arrays(columns, schema=PASSAGE_SCHEMA)
    arrays["text"] = np.frombuffer(batch.serialize(), np.uint8)
    arrays["articles"] = np.array([text_hash(passage.article) for passage in passages], np.uint64)
    arrays["contents"] = np.array([text_hash(passage.title, passage.body) for passage in passages], np.uint64)
    return Shard(arrays, dict(dropped))


def write_shard(path: Path, shard: Shard) -> None:
    """Write a shard, atomically, with its digest at the end."""
    arrays = {name: np.ascontiguousarray(array) for name, array in shard.arrays.items()}
    data = save(arrays, {"dropped": json.dumps(shard.dropped)})
    with atomic_write(path, "wb") as file:
        file.write(data)
        file.write(hashlib.sha256(data).digest())


def read_shard(path: Path) -> Shard | None:
    """A shard; None where it is not there, or not as it was written."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    body, found = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != found:
        return None
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    return Shard(load(body), json.loads(header["__metadata__"]["dropped"]))


def _add_sentence(
    row: cutting.SentenceRow, origin: int, buffers: dict[str, RaggedBuffer], origins: dict[str, list[int]]
) -> None:
    buffers[f"{row.part}.tokens"].add(row.tokens)
    buffers[f"{row.part}.spans"].add(row.spans)
    origins[row.part].append(origin)


def _sentence_arrays(buffers: dict[str, RaggedBuffer], origins: dict[str, list[int]]) -> Arrays:
    arrays = {f"{part}.origins": np.array(rows, np.int32) for part, rows in origins.items()}
    for name, buffer in buffers.items():
        arrays |= _ragged(name, buffer)
    return arrays


def _ragged(name: str, buffer: RaggedBuffer) -> Arrays:
    return {
        f"{name}.values": np.frombuffer(buffer.values, np.int32),
        f"{name}.lengths": np.frombuffer(buffer.lengths, np.int32),
    }
