"""The cuts of `prepare` so far, kept on disk until the corpus is written: a stopped preparation resumes from
there. A file holds one run of articles as streams of Arrow, with the reasons to drop in the first one's metadata."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from realm_lab.core.files import atomic_write
from realm_lab.corpus.cutting import PARTS, Cut
from realm_lab.corpus.pictures import PATCH_VALUES

DROPPED, PATCHES = b"dropped", "patches"


def write_cut(path: Path, cut: Cut) -> None:
    """Write a cut, atomically."""
    passages = cut.passages.replace_schema_metadata({DROPPED: json.dumps(cut.dropped)})
    batches = [passages, *(cut.sentences[part] for part in PARTS)]
    if cut.patches is not None:
        rows = pa.array([row.tobytes() for row in cut.patches], pa.binary(PATCH_VALUES))
        batches.append(pa.RecordBatch.from_arrays([rows], [PATCHES]))
    with atomic_write(path, "wb") as file:
        for batch in batches:
            with pa.ipc.new_stream(file, batch.schema) as stream:
                stream.write_batch(batch)


def read_cut(path: Path) -> Cut:
    """Read a file of `write_cut`."""
    batches = []
    with pa.OSFile(str(path)) as file:
        while file.tell() < file.size():
            [batch] = pa.ipc.open_stream(file)
            batches.append(batch)
    passages, *others = batches
    dropped = Counter[str](json.loads(passages.schema.metadata[DROPPED]))
    sentences = dict(zip(PARTS, others, strict=False))
    patches = None
    if len(others) > len(PARTS):
        rows = b"".join(others[-1][PATCHES].to_pylist())
        patches = np.frombuffer(rows, np.uint8).reshape(-1, PATCH_VALUES)
    return Cut(passages.replace_schema_metadata(None), sentences, dropped, patches)
