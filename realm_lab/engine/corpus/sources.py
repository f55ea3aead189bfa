"""Corpus sources: the origin of passages, sentences and questions. `corpus.source` names one.

A source is a class that is called with a SourceRequest. A source of texts is a subclass of TextSource (text_source.py),
which cuts, tags and tokenises them. Another source yields the rows of a prepared corpus itself, as the toy world does.
`corpus.tagger` names the class that finds salient spans. Each process that cuts texts makes one object of this class.
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

from realm_lab.engine.corpus.cutting import Asked, Cut
from realm_lab.engine.corpus.records import Split
from realm_lab.engine.corpus.salient_spans import MakeTagger, Tagger
from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.params.corpus import Corpus
from realm_lab.engine.params.parameters import Tokenizer as TokenizerSettings
from realm_lab.engine.params.sections import Section
from realm_lab.records.plugins import Kind, Plugin

PARAMETER = "corpus.source"


@dataclass(frozen=True)
class SourceRequest:
    """The argument of a corpus source.

    Attributes:
        corpus, tokenizer: the parameters of these names.
        longest_answer: wordpieces, `finetune.max_span_wordpieces`.
        seed: the entry `seed` of the source's `identity`; 0 without one.
        kept: a folder for cuts, until the corpus is written.
        workers: number of processes that may cut.
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
    """The inputs of a prepared corpus. Passages, sentences and articles stream, the same ones at each reading."""

    versions: int  # of Z: 2 with a corpus update
    drops_duplicates: bool  # keep only the first of the passages with the same title and text
    patches: np.ndarray | None  # patches to write before those of the cuts; None: Z has no pictures

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the texts."""

    @property
    def dropped(self) -> Counter[str]:
        """Counts of dropped records so far, by reason."""

    @classmethod
    def identity(cls, corpus: Corpus, options: Any, seed: int) -> dict[str, Any]:
        """Return everything that determines the texts, as a part of the prepared corpus's key; the parameters of
        cutting and of the tokenizer are added by `prepare`. With an entry `seed` each seed has a separate corpus. The
        required entry `corpus` is merged into the key's parameters of the corpus. UserError: no such texts."""

    def cuts(self, version: int) -> Iterator[Cut]:
        """Yield a version of Z, in row order; if X is Z, the first version comes with its sentences."""

    def pretrain_cuts(self) -> Iterator[Cut]:
        """Yield the sentences that `cuts` does not yield: X, if it is another corpus than Z, or held-out sentences."""

    def asked_documents(self) -> Collection[str]:
        """The documents whose rows `asked` needs."""

    def asked(self, split: Split, rows: dict[str, list[int]], passages: Passages) -> Iterator[Asked]:
        """Yield the questions of a split. `rows`: document -> rows of its passages, for each of `asked_documents`."""

    def article_batches(self) -> Iterator[pa.RecordBatch] | None:
        """Return filler articles for the reader's warm start (columns: store.Articles); None if the warm start reads
        Z."""


CORPUS_SOURCES: Kind[Callable[..., Source]] = Kind("corpus source", "Class", "request")
CORPUS_SOURCES.declare("files", "realm_lab.engine.corpus.files_corpus:FilesCorpus")
CORPUS_SOURCES.declare(
    "toy", "realm_lab.engine.worlds.source:ToySource", "realm_lab.engine.worlds.settings:WorldOptions"
)
register_source = CORPUS_SOURCES.register  # makes a source selectable as `corpus.source: NAME`


def corpus_source(corpus: Corpus) -> Plugin[Callable[..., Source]]:
    """Return the source that `corpus.source` names. UserError: there is no such source, or an option is wrong."""
    return CORPUS_SOURCES.choose(PARAMETER, corpus.source)


def source_options(corpus: Corpus) -> Any:
    """The options of the source, with their defaults, as its Section; None: it has none."""
    return corpus_source(corpus).options


class TaggerFolder(Section):
    """Options of tagger `model` (contrib/tagger.py). The files of the folder are part of the key of a corpus."""

    folder: str
    """A Hugging Face token-classification folder with safetensors."""


TAGGERS: Kind[Callable[..., Tagger]] = Kind("tagger", "Class")
TAGGERS.declare("exact", "realm_lab.engine.corpus.salient_spans:NoTags")
TAGGERS.declare("rule", "realm_lab.engine.corpus.salient_spans:RuleTagger")
register_tagger = TAGGERS.register  # makes a tagger selectable as `corpus.tagger: NAME`


def corpus_tagger(corpus: Corpus) -> Plugin[Callable[..., Tagger]]:
    """Return the plug-in of the tagger that `corpus.tagger` names. UserError: no such tagger, or a wrong option."""
    return TAGGERS.choose("corpus.tagger", corpus.tagger)
