"""Corpus sources: where passages, sentences and questions come from. `corpus.source` names one.

A source is a class that is called with a SourceRequest. One of texts is a subclass of TextSource (text_source.py),
which cuts, tags and tokenises them; any other yields the rows of a prepared corpus itself, as the toy world does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from realm_lab.core.plugins import Chosen, Kind
from realm_lab.corpus.cutting import Asked, Cut
from realm_lab.corpus.records import Split
from realm_lab.corpus.salient_spans import MakeTagger
from realm_lab.corpus.store import Passages
from realm_lab.params.corpus import Corpus
from realm_lab.params.parameters import Tokenizer as TokenizerSettings

PARAMETER = "corpus.source"


@dataclass(frozen=True)
class SourceRequest:
    """What a corpus source is called with.

    Attributes:
        corpus, tokenizer: the parameters of these names.
        longest_answer: wordpieces, `finetune.max_span_wordpieces`.
        seed: that of the run, if the identity of the source has one; else 0.
        kept: a folder for what is cut, until the corpus is written.
        workers: processes that may cut.
        make_tagger: makes the tagger that `corpus.tagger` names, once in each process.
    """

    corpus: Corpus
    tokenizer: TokenizerSettings
    longest_answer: int
    seed: int
    kept: Path
    workers: int
    make_tagger: MakeTagger


class Source(Protocol):
    """What a prepared corpus is assembled from. Everything streams and repeats exactly."""

    versions: int  # of Z: 2 with a corpus update
    drops_duplicates: bool  # keep the first alone of the passages with the same title and text
    patches: np.ndarray | None  # the first pixels of pictures; None: Z has no pictures

    @property
    def tokenizer(self) -> Tokenizer:
        """What the texts are tokenised with."""

    @property
    def dropped(self) -> Counter[str]:
        """What was left out so far, by reason."""

    @classmethod
    def identity(cls, corpus: Corpus, options: Any, seed: int) -> dict[str, Any]:
        """What the texts depend on beside the name of the source, how they are cut and the tokenizer. It is part of the
        key of the prepared corpus; with `seed` in it each seed has a corpus of its own, and `corpus` adds to the
        parameters of the corpus. UserError: there are no such texts."""

    def cuts(self, version: int) -> Iterator[Cut]:
        """A version of Z, in row order; if X is Z, the first with its sentences."""

    def pretrain_cuts(self) -> Iterator[Cut]:
        """The sentences of X, if it is another corpus than Z."""

    def asked_documents(self) -> Collection[str]:
        """The documents whose rows `asked` needs to know."""

    def asked(self, split: Split, rows: dict[str, list[int]], passages: Passages) -> Iterator[Asked]:
        """The questions of a split. `rows` are those of the passages of the documents that are asked about."""

    def article_batches(self) -> Iterator[pa.RecordBatch] | None:
        """Throw-away articles for the reader's warm start, of the columns of store.Articles; None: it reads Z."""


CORPUS_SOURCES: Kind[Callable[..., Source]] = Kind("corpus source", "Class", "request")
CORPUS_SOURCES.declare("files", "realm_lab.corpus.files_corpus:FilesCorpus")
CORPUS_SOURCES.declare("toy", "realm_lab.worlds.source:ToySource", "realm_lab.worlds.settings:WorldOptions")
register_source = CORPUS_SOURCES.register  # makes a source selectable as `corpus.source: NAME`


def corpus_source(corpus: Corpus) -> Chosen[Callable[..., Source]]:
    """What `corpus.source` names. UserError: there is no such source, or an option is wrong."""
    return CORPUS_SOURCES.choose(PARAMETER, corpus.source)


def source_options(corpus: Corpus) -> Any:
    """The options of the source, as its model, with their defaults; None: it has none."""
    return corpus_source(corpus).options
