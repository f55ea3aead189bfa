"""The end of a training stage: its models as folders, its last metrics as results."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from realm_lab import ENGINE_VERSION
from realm_lab.engine.core.process import ranks
from realm_lab.engine.corpus.vocabulary import save_tokenizer
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.folders import write_embedder, write_reader
from realm_lab.engine.models.hub import AnyEncoder, has_segments
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.models.sentence_modules import write_sentence_modules
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.corpus_context import CorpusContext
from realm_lab.records.code_record import read_code
from realm_lab.records.digests import write_last
from realm_lab.records.files import atomic_directory, write_text
from realm_lab.records.run import StageRun

CARD = """\
---
library_name: transformers
tags: [realm, retrieval, open-domain-qa]
---
# {name} of a REALM run (Guu et al. 2020)

Made by realm_lab. `AutoModel.from_pretrained` and `AutoTokenizer.from_pretrained` open this folder, and
`SentenceTransformer` an embedder's: `encode_query(text)`, `encode_document((title, body))`; if there is a folder
document/ in it, its passages are embedded by that one. What transformers has no place for (projections, span head)
is in the other .safetensors files, which realm_lab reads: set `finetune.initial_reader` or
`finetune.initial_retriever` to this folder.
"""


def compile_encoders(params: Params, *encoders: AnyEncoder) -> None:
    """Compile the encoders in place if the parameters ask for it. Names of weights stay; numbers change by rounding."""
    if params.launch.compile:
        for encoder in set(encoders):
            encoder.compile(dynamic=True)


def finish(
    context: CorpusContext, run: StageRun, reader: Reader, embedder: Embedder, null_offset: float, **counts: int
) -> None:
    """Export a reader and an embedder, and end the stage."""

    def write(scratch: Path) -> None:
        write_reader(reader, scratch / "reader", span_head=run.stage == "finetune" and reader.has_span_head)
        write_embedder(embedder, scratch / "embedder", null_offset)
        write_sentence_modules(embedder, scratch / "embedder")
        for name in ("reader", "embedder", *(() if embedder.share_towers else ("embedder/document",))):
            encoder = reader.encoder if name == "reader" else embedder.query_encoder
            segments = has_segments(encoder) if name == "reader" else embedder.reads_segments
            save_tokenizer(context.tokenizer, scratch / name, encoder.shape.positions, segments)
            write_text(scratch / name / "README.md", CARD.format(name=name))

    end_stage(run, write, counts)


def end_stage(run: StageRun, write: Callable[[Path], None], counts: Mapping[str, int]) -> None:
    """Export a folder with `write`, write the last metrics and `counts` as results, drop checkpoints and
    index, all on the first rank."""
    if ranks().rank:
        return
    with atomic_directory(run.path / "model") as scratch:
        write(scratch)
        code = read_code(run.path)
        described = {"stage": run.stage, "key": run.key, "engine_version": ENGINE_VERSION, "code": code and code.digest}
        write_last(scratch / "manifest.json", described)
    close(run, **counts)


def close(run: StageRun, **counts: int) -> None:
    """Write the last metrics and `counts` as results, drop checkpoints and index."""
    last: dict[str, float] = dict(counts)
    for row in run.metrics.rows():
        last |= {name: value for name, value in row.items() if name not in ("step", "time")}
    run.finish(last)
    for name in ("checkpoints", "index"):
        shutil.rmtree(run.path / name, ignore_errors=True)
