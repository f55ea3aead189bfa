"""A corpus of text files: passages with tagged sentences, and questions (parameters: corpus, corpus.files)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from importlib.metadata import version
from itertools import chain, compress, islice
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import Tokenizer

from realm_lab.core.files import digest
from realm_lab.corpus.cutting import Article, CutSettings
from realm_lab.corpus.first_seen import FirstSeen, text_hash
from realm_lab.corpus.readers import DROPPED_DUPLICATE_DOCUMENT, digest_input, read_documents, read_questions
from realm_lab.corpus.records import Document, Question
from realm_lab.corpus.salient_spans import find_tagger
from realm_lab.corpus.splits import is_orqa_dev
from realm_lab.corpus.text_files import Limits
from realm_lab.corpus.vocabulary import tokenizer_digest
from realm_lab.errors import UserError
from realm_lab.params.parameters import Corpus, Files

Split = Literal["train", "dev", "test"]

CUTTING_VERSION = 1  # raise it when the same files yield other passages, sentences or spans
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
TOGETHER = 256  # documents whose ids are looked up in one go
MOST_CHARACTERS = 8_000_000  # of an article: what has one name throughout is not held in memory as a whole
DROPPED_NOT_IN_CORPUS = "question: its document is not in the corpus"
DROPPED_BEYOND_LIMIT = "document: beyond corpus.files.max_articles"
DROPPED_SAMPLED = "question: not in the sample"


class FilesCorpus:
    """The files named in `corpus.files`, cut, tagged and sampled. Everything streams and repeats exactly.

    `max_articles` counts articles over the files of `knowledge` that no test question comes from. The files that
    test questions come from are kept whole, so that those stay answerable; so are files that only the later edition
    (`knowledge_updated`) names.
    """

    def __init__(self, files: Files, corpus: Corpus, tokenizer: Tokenizer | None, updated: bool = False):
        """`updated` reads `knowledge_updated` (the later edition) in the place of `knowledge`.

        Without a tokenizer only documents, articles and questions can be read: enough to learn one.
        """
        self._files, self._corpus, self._tokenizer = files, corpus, tokenizer
        self._knowledge = files.knowledge_updated if updated else files.knowledge
        self._limits = Limits(files.max_line_mb, files.max_expansion)
        if not self._knowledge:
            raise UserError(f"corpus.files.knowledge{'_updated' if updated else ''} is empty: name at least one file")
        find_tagger(corpus.tagger)
        self._counts: dict[str, Counter[str]] = {}
        self._found: frozenset[str] | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that passages are measured with."""
        assert self._tokenizer is not None, "give FilesCorpus a tokenizer"
        return self._tokenizer

    @property
    def dropped(self) -> Counter[str]:
        """What was left out or cut so far, by reason. Reading something again does not count it twice."""
        return sum(self._counts.values(), Counter())

    def documents(self) -> Iterator[Document]:
        """The documents of the knowledge corpus, in the order of the files."""
        dropped = self._counts["documents"] = Counter()
        limited = {_resolved(name) for name in self._files.knowledge}
        limited -= {_resolved(name) for name in self._files.questions_test}
        articles: set[str] = set()
        seen = FirstSeen()
        for name in self._knowledge:
            limit = self._files.max_articles if _resolved(name) in limited else None
            wanted = self._wanted(read_documents(name, dropped, self._limits, unique=False), articles, limit, dropped)
            yield from unique(wanted, seen, dropped)

    def _wanted(
        self, documents: Iterable[Document], articles: set[str], limit: int | None, dropped: Counter[str]
    ) -> Iterator[Document]:
        """Documents of articles that `max_articles` allows, and whose page is not of a kind to drop."""
        for document in documents:
            kind = page_kind(document.title)
            if kind in self._files.drop_pages:
                dropped[f"document: {kind} page"] += 1
            elif limit is None or document.article in articles:
                yield document
            elif len(articles) < limit:
                articles.add(document.article)
                yield document
            else:
                dropped[DROPPED_BEYOND_LIMIT] += 1

    def articles(self) -> Iterator[Article]:
        """The documents, those of one article together where they are neighbours."""
        return neighbours(self.documents())

    def pretrain_articles(self) -> Iterator[Article] | None:
        """The documents of the separate pre-training corpus; None where `corpus.files.pretrain` is empty."""
        if not self._files.pretrain:
            return None
        dropped = self._counts["pretrain"] = Counter()
        read = (read_documents(name, dropped, self._limits, unique=False) for name in self._files.pretrain)
        wanted = (unique(self._wanted(documents, set(), None, dropped), FirstSeen(), dropped) for documents in read)
        return neighbours(chain.from_iterable(wanted))

    def cut_settings(self) -> CutSettings:
        """How the documents are cut, for a Cutter."""
        corpus = self._corpus
        tokenizer = self.tokenizer.to_str()
        return CutSettings(tokenizer, corpus.passage_length, corpus.sentence_length, find_tagger(corpus.tagger))

    def asked_documents(self) -> frozenset[str]:
        """The documents that questions of any split come from, in the corpus or not."""
        names = {name for split in SPLITS for name in getattr(self._files, f"questions_{split}")}
        questions = (question for name in sorted(names) for question in read_questions(name, limits=self._limits))
        return frozenset(question.document for question in questions if question.document is not None)

    def questions(self, split: Split, known: Set[str] | None = None) -> Iterator[Question]:
        """Questions of a split, an even sample of them where a maximum is given.

        `known` are the documents that are in the corpus, of those asked for; None: it is read to find out.

        `document` is kept where the corpus holds it. A question from a knowledge file whose document is not in
        the corpus is left out (`max_articles`, `drop_pages`); one from another file stays, its gold document unknown.
        """
        names: list[str] = getattr(self._files, f"questions_{split}")
        maximum = {"train": self._files.max_train_questions, "test": self._files.max_test_questions}.get(split)
        dropped = self._counts[f"questions_{split}"] = Counter()
        if self._files.dev_split == "none" or split == "test":
            return iter(evenly_spaced(list(self._answerable(names, dropped, known)), maximum, dropped))
        wanted = split == "dev"
        counted = Counter[str]() if wanted else dropped  # one file for two splits: what it lacks is told once
        questions = self._answerable(self._files.questions_train, counted, known)
        return iter(evenly_spaced([q for q in questions if is_orqa_dev(q.question) is wanted], maximum, dropped))

    def digest(self) -> str:
        """SHA-256 of the input files' bytes and of the parameters and vocabulary that decide how they are cut."""
        roles = {
            "knowledge": self._knowledge,
            "pretrain": self._files.pretrain,
            "questions_train": self._files.questions_train,
            "questions_dev": self._files.questions_dev,
            "questions_test": self._files.questions_test,
        }
        limits = ("max_articles", "max_train_questions", "max_test_questions")
        return digest(
            {
                "version": [CUTTING_VERSION, version("sentencex")],
                "files": {role: [digest_input(name) for name in names] for role, names in roles.items()},
                "limits": {name: getattr(self._files, name) for name in limits},
                "passage_length": self._corpus.passage_length,
                "tagger": self._corpus.tagger,
                "tokenizer": tokenizer_digest(self.tokenizer),
                "drop_pages": sorted(self._files.drop_pages),
            }
            | ({} if self._files.dev_split == "none" else {"dev_split": self._files.dev_split})
        )

    def _answerable(self, names: Sequence[str], dropped: Counter[str], known: Set[str] | None) -> Iterator[Question]:
        if known is None and self._found is None:
            asked = self.asked_documents()
            self._found = frozenset(document.id for document in self.documents() if document.id in asked)
        known = self._found if known is None else known
        assert known is not None
        knowledge = {_resolved(name) for name in self._knowledge}
        for name in names:
            own = _resolved(name) in knowledge
            for question in read_questions(name, dropped, self._limits):
                if question.document is None or question.document in known:
                    yield question
                elif own:
                    dropped[DROPPED_NOT_IN_CORPUS] += 1
                else:
                    yield question._replace(document=None)


def evenly_spaced(questions: list[Question], maximum: int | None, dropped: Counter[str]) -> list[Question]:
    """At most `maximum` of the questions, evenly spaced over the list, in its order; the rest is counted."""
    if maximum is None or len(questions) <= maximum:
        return questions
    dropped[DROPPED_SAMPLED] += len(questions) - maximum
    return [questions[number * len(questions) // maximum] for number in range(maximum)]


def neighbours(documents: Iterable[Document]) -> Iterator[Article]:
    """Neighbouring documents of one article together; an article of more than MOST_CHARACTERS in parts."""
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


def unique(documents: Iterable[Document], seen: FirstSeen, dropped: Counter[str]) -> Iterator[Document]:
    """Documents whose id has not been seen; ids are remembered as hashes."""
    stream = iter(documents)
    while batch := list(islice(stream, TOGETHER)):
        is_new = seen.add(np.array([text_hash(document.id) for document in batch], np.uint64)).is_new_N
        dropped[DROPPED_DUPLICATE_DOCUMENT] += len(batch) - int(is_new.sum())
        yield from compress(batch, is_new)


def page_kind(title: str) -> str | None:
    """The kind of a page that is no article: list, index, outline or disambiguation (official code, ORQA)."""
    for kind in ("list", "index", "outline"):
        if title.startswith(f"{kind.capitalize()} of "):
            return kind
    return "disambiguation" if "(disambiguation)" in title else None


def _resolved(name: str) -> Path:
    return Path(name).resolve()
