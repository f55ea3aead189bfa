"""A corpus source of texts: documents and questions in; passages, tagged sentences and gold rows out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from functools import cached_property, partial
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from realm_lab.engine.corpus.answers import passage_holds
from realm_lab.engine.corpus.cutting import Article, Asked, Cut, Cutter, Kind
from realm_lab.engine.corpus.pool import cut_all
from realm_lab.engine.corpus.records import SPLITS, Document, Question, Split, document_of
from realm_lab.engine.corpus.regex_answers import Patterns
from realm_lab.engine.corpus.sources import SourceRequest
from realm_lab.engine.corpus.store import NO_ROW, Passages
from realm_lab.engine.corpus.vocabulary import load_tokenizer, train_wordpiece
from realm_lab.engine.params.corpus import Corpus
from realm_lab.engine.params.sections import identity_values

CUTTING_VERSION = 2  # raised when the same texts yield other passages, sentences or spans
MOST_CHARACTERS = 8_000_000  # per article: a longer article is cut in parts, and not held in memory as a whole


class TextSource(ABC):
    """Base class of sources of texts; override `documents`, and if needed `pretrain_documents` and `questions`.

    Attributes:
        versions: 2 if `documents(1)` yields the documents after a corpus update.
        uses_seed: true if the texts depend on `request.seed`, so that each seed has a separate corpus.
    """

    versions = 1
    uses_seed: ClassVar[bool] = False
    drops_duplicates = True
    patches: np.ndarray | None = None

    def __init__(self, request: SourceRequest):
        self.request = request
        self.counts: dict[str, Counter[str]] = {}  # part -> number of records left out of it, by reason

    @classmethod
    def identity(cls, corpus: Corpus, options: Any, seed: int) -> dict[str, Any]:
        """Return the options, the version of the cutting, and the seed if the texts depend on it."""
        own = {"source_options": identity_values(options, "corpus.source")} if options is not None else {}
        cutting = {"cutting": [CUTTING_VERSION, version_of("sentencex")]}
        return {"corpus": own, **cutting, **({"seed": seed} if cls.uses_seed else {})}

    @abstractmethod
    def documents(self, version: int = 0) -> Iterator[Document]:
        """Yield the documents of Z, with distinct ids, the documents of an article one after the other."""

    def pretrain_documents(self) -> Iterator[Document]:
        """The documents of X, if `corpus.pretrain_corpus` is separate."""
        return iter(())

    def questions(self, split: Split) -> Iterable[Question]:
        """The questions of a split, with distinct ids."""
        return ()

    @property
    def dropped(self) -> Counter[str]:
        """Counts of records dropped so far, by reason. Reading something again does not count it twice."""
        return sum(self.counts.values(), Counter())

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of `tokenizer.checkpoint`, or one that is learned from the documents."""
        settings = self.request.tokenizer
        if settings.checkpoint is not None:
            return load_tokenizer(Path(settings.checkpoint))
        return train_wordpiece((document.text for document in self.documents()), settings.vocabulary_size)

    def cuts(self, version: int) -> Iterator[Cut]:
        """Yield a version of Z; if X is Z, the first version comes with its sentences."""
        same = self.request.corpus.pretrain_corpus == "same" and not version
        kind: Kind = "passages and sentences" if same else "passages"
        return self._cut(self.documents(version), kind, f"passages-{version}")

    def pretrain_cuts(self) -> Iterator[Cut]:
        """The sentences of the separate pre-training corpus."""
        if self.request.corpus.pretrain_corpus == "same":
            return iter(())
        return self._cut(self.pretrain_documents(), "sentences", "sentences")

    def _cut(self, documents: Iterable[Document], kind: Kind, part: str) -> Iterator[Cut]:
        request, corpus = self.request, self.request.corpus
        lengths = corpus.passage_length, corpus.sentence_length
        make_cutter = partial(Cutter, self.tokenizer.to_str(), *lengths, request.make_tagger)
        return cut_all(make_cutter, neighbours(documents), kind, request.workers, request.kept / part)

    def asked_documents(self) -> frozenset[str]:
        """The documents that questions of any split name."""
        return frozenset(name for split in SPLITS for q in self.questions(split) for name in q.named_documents)

    def asked(self, split: Split, rows: dict[str, list[int]], passages: Passages) -> Iterator[Asked]:
        """Yield the questions of a split. Gold rows are the passages of gold documents (`rows`) that hold an answer;
        if none does and the question has judged documents, all passages of gold documents. Supporting rows are the
        passages of `evidence` that hold an answer; if none does, all passages of `evidence`."""
        patterns = Patterns()

        def passages_of(name: str) -> list[int]:
            """Return the rows of a document, or the row of a passage, ID/N."""
            document = document_of(name)
            if rows.get(name) or not rows.get(document):
                return rows.get(name, [])
            return rows[document][int(name.removeprefix(f"{document}/")) :][:1]

        for question in self.known_questions(split, {document for document, found in rows.items() if found}):
            asked = question.answers, question.answer_kind, patterns, question.id
            own = dict.fromkeys(row for name in question.gold_documents for row in passages_of(name))
            gold = [row for row in own if passage_holds(passages.text.row(row)["body"], *asked)]
            gold = gold or [row for row in own if question.judged]
            relevance = tuple((row, of) for name, of in question.judged for row in passages_of(name) or [NO_ROW])
            evidence = dict.fromkeys(row for name in question.evidence for row in passages_of(name))
            holding = [row for row in evidence if passage_holds(passages.text.row(row)["body"], *asked)]
            question = question._replace(relevance=relevance, supporting=tuple(holding or evidence))
            yield question, question.answers_updated or question.answers, gold

    def known_questions(self, split: Split, known: Set[str]) -> Iterable[Question]:
        """Yield the questions of a split; a gold document that is not in the corpus (`known`) becomes None."""
        for question in self.questions(split):
            yield question if question.document in known else question._replace(document=None)

    def article_batches(self) -> Iterator[pa.RecordBatch] | None:
        """Return None: the reader's warm start reads the passages."""
        return None


def neighbours(documents: Iterable[Document]) -> Iterator[Article]:
    """Group neighbouring documents of one article; an article of more than MOST_CHARACTERS is split."""
    article: Article = []
    size = 0
    for document in documents:
        if article and (document.article != article[0].article or size > MOST_CHARACTERS):
            yield article
            article, size = [], 0
        article.append(document)
        size += len(document.text)
    if article:
        yield article
