"""A small corpus of random wordpieces, as long as those of the corpus that is planned for.

Speed depends on lengths, not on what the text says. So measuring and planning work before anything is prepared.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from realm_lab.core.files import digest
from realm_lab.core.seeding import numpy_generator
from realm_lab.corpus.prepare import corpus_inputs
from realm_lab.corpus.store import (
    NO_ROW,
    Passages,
    PreparedCorpus,
    RaggedWriter,
    Sentences,
    TextTableWriter,
    token_dtype,
)
from realm_lab.corpus.toy_world import ToyWorld
from realm_lab.corpus.vocabulary import SPECIAL_TOKENS, SpecialIds
from realm_lab.errors import UserError
from realm_lab.models.folders import read_config
from realm_lab.params.parameters import Params
from realm_lab.systems.identity import Plan, corpus_folder

FULL_TITLE = 4  # wordpieces of a title where no corpus says
SPECIALS = 3  # [CLS] title [SEP] body [SEP]
SPAN = 3  # wordpieces of a salient span where no corpus says


class Sample(NamedTuple):
    """A corpus to measure with, and what it stands for."""

    passages: Passages
    sentences: Sentences
    special: SpecialIds
    vocabulary_size: int
    corpus_passages: int | None  # of the prepared corpus, where there is one
    source: str  # of the lengths, for people


class Lengths(NamedTuple):
    """Wordpieces without specials: of title, body and sentence, and of the span that is masked."""

    title_N: np.ndarray
    body_N: np.ndarray
    sentence_N: np.ndarray
    span_N: np.ndarray


def write_sample(params: Params, root: Path, folder: Path, rows: int) -> Sample:
    """Write `rows` passages and as many sentences into `folder`; the same every time."""
    prepared = _prepared(params, root)
    if prepared is None:
        lengths, source = _full(params, rows), "every passage and sentence as long as the parameters allow"
        corpus_passages, size = None, _vocabulary_size(params)
    else:
        lengths, source = _measured(prepared, rows), f"lengths of the prepared corpus {prepared.folder.name}"
        corpus_passages, size = len(prepared.passages()), prepared.manifest.vocabulary_size
    dtype, special = token_dtype(size), SpecialIds(*range(len(SPECIAL_TOKENS)))
    generator = numpy_generator(0, "planner-sample", rows)

    def write(part: str, name: str, lengths_N: np.ndarray) -> None:
        writer = RaggedWriter(folder / part, name, dtype)
        tokens = generator.integers(len(special), size, int(lengths_N.sum()))
        writer.append(
            tokens[end - length : end].tolist() for length, end in zip(lengths_N, lengths_N.cumsum(), strict=True)
        )
        writer.close()

    write("passages", "titles", lengths.title_N)
    write("passages", "bodies", lengths.body_N)
    write("sentences", "tokens", lengths.sentence_N)
    for part, name, values in (
        ("passages", "sentence_starts", [[0]] * rows),
        ("sentences", "spans", [[0, int(end)] for end in np.minimum(lengths.span_N, lengths.sentence_N)]),
    ):
        writer = RaggedWriter(folder / part, name, np.int32)
        writer.append(values)
        writer.close()
    np.arange(rows, dtype=np.int32).tofile(folder / "passages" / "articles.bin")
    TextTableWriter(folder / "passages" / "text.arrow", Passages.SCHEMA).close()
    for name in ("origins", "gold"):
        np.full(rows, NO_ROW, np.int32).tofile(folder / "sentences" / f"{name}.bin")
    passages, sentences = Passages(folder / "passages", dtype), Sentences(folder / "sentences", dtype)
    return Sample(passages, sentences, special, size, corpus_passages, source)


def _prepared(params: Params, root: Path) -> PreparedCorpus | None:
    """The corpus of the first seed, where it has been prepared; files that are not there yet are no obstacle."""
    try:
        plan = Plan("realm", params.seeds[0], digest(corpus_inputs(params, params.seeds[0])), {})
    except UserError:
        return None
    folder = corpus_folder(root, plan)
    return PreparedCorpus(folder) if (folder / "manifest.json").exists() else None


def _measured(corpus: PreparedCorpus, rows: int) -> Lengths:
    """Lengths of evenly spaced passages and sentences."""
    passages, sentences = corpus.passages(), corpus.sentences()
    row_N = np.arange(rows) * len(passages) // rows
    salient = sentences.rows_with_spans()
    chosen = salient if len(salient) else np.arange(len(sentences))
    sentence_N = chosen[np.arange(rows) * len(chosen) // rows]
    spans = [sentences.salient_spans(row) for row in sentence_N]
    width_N = [int(np.diff(span, axis=1).mean().round()) if len(span) else SPAN for span in spans]
    return Lengths(
        passages.titles.lengths[row_N],
        passages.bodies.lengths[row_N],
        sentences.tokens.lengths[sentence_N],
        np.array(width_N),
    )


def _full(params: Params, rows: int) -> Lengths:
    corpus = params.corpus
    title = min(FULL_TITLE, corpus.passage_length - SPECIALS - 1)
    body, sentence = corpus.passage_length - SPECIALS - title, corpus.sentence_length - 2
    return Lengths(*(np.full(rows, value, np.int64) for value in (title, body, sentence, min(SPAN, sentence))))


def _vocabulary_size(params: Params) -> int:
    folder = params.model.checkpoint or params.tokenizer.checkpoint
    if folder is not None and (Path(folder) / "config.json").exists():
        return int(read_config(Path(folder))["vocab_size"])
    if params.corpus.source == "toy":
        toy = params.corpus.toy
        world = ToyWorld(toy.entities, toy.fillers_per_entity, toy.changed_fraction, 0, toy.restate_facts)
        return len(SPECIAL_TOKENS) + len(world.vocabulary)
    return params.tokenizer.vocabulary_size
