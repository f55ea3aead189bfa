"""A corpus of text files: passages with tagged sentences, and questions (parameters: corpus, corpus.files)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from realm_lab.core.files import digest, digest_file
from realm_lab.corpus.chunking import cut_document, split_sentences
from realm_lab.corpus.readers import DROPPED_DUPLICATE_DOCUMENT, read_documents, read_questions
from realm_lab.corpus.records import Document, Passage, Question, Sentence
from realm_lab.corpus.salient_spans import Tagger, find_tagger
from realm_lab.corpus.vocabulary import token_counter, tokenizer_digest
from realm_lab.errors import UserError
from realm_lab.parameters import Corpus, Files

Split = Literal["train", "dev", "test"]

CUTTING_VERSION = 1  # raise it when the same files yield other passages, sentences or spans
DROPPED_NOT_IN_CORPUS = "question: its article is outside max_articles"
DROPPED_SAMPLED = "question: not in the sample"


class FilesCorpus:
    """The files named in `corpus.files`, cut, tagged and sampled. Everything streams and repeats exactly.

    `max_articles` counts articles over the files of `knowledge` that no test question comes from. The files that
    test questions come from are kept whole, so that those stay answerable; so are files that only the later edition
    (`knowledge_updated`) names.
    """

    def __init__(self, files: Files, corpus: Corpus, tokenizer: Tokenizer | None, updated: bool = False):
        """`updated` reads `knowledge_updated` (the later edition) in the place of `knowledge`.

        Without a tokenizer only `documents`, `pretrain_sentences` and `questions` can be read: enough to learn one.
        """
        self._files, self._corpus, self._tokenizer = files, corpus, tokenizer
        self._knowledge = files.knowledge_updated if updated else files.knowledge
        if not self._knowledge:
            raise UserError(f"corpus.files.knowledge{'_updated' if updated else ''} is empty: name at least one file")
        self._tagger: Tagger = find_tagger(corpus.tagger)
        self._counts: dict[str, Counter[str]] = {}
        self._document_ids: frozenset[str] | None = None

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
        seen: set[str] = set()
        for name in self._knowledge:
            limit = self._files.max_articles if _resolved(name) in limited else None
            for document in read_documents(name, dropped):
                if limit is not None and document.article not in articles:
                    if len(articles) >= limit:
                        continue
                    articles.add(document.article)
                if document.id in seen:
                    dropped[DROPPED_DUPLICATE_DOCUMENT] += 1
                    continue
                seen.add(document.id)
                yield document

    def passages(self) -> Iterator[tuple[Passage, list[Sentence]]]:
        """Each passage with its sentences, tagged; `sentence.passage` is the passage's id."""
        counts = self._counts["passages"] = Counter()
        count_tokens = token_counter(self.tokenizer)
        for article, context in _with_context(self.documents()):
            for document in article:
                offsets = split_sentences(document.text)
                for passage, inside in cut_document(
                    document, offsets, count_tokens, self._corpus.passage_length, counts
                ):
                    yield passage, self._tagged(document, inside, context, passage)

    def pretrain_sentences(self) -> Iterator[Sentence] | None:
        """Tagged sentences of the separate pre-training corpus; None where `corpus.files.pretrain` is empty."""
        if not self._files.pretrain:
            return None
        return self._separate_sentences()

    def questions(self, split: Split) -> Iterator[Question]:
        """Questions of a split, an even sample of them where a maximum is given.

        `document` is kept where the corpus holds it. A question from a knowledge file whose document is not in
        the corpus (`max_articles`) is left out; one from another file stays, its gold document unknown.
        """
        names: list[str] = getattr(self._files, f"questions_{split}")
        maximum = {"train": self._files.max_train_questions, "test": self._files.max_test_questions}.get(split)
        dropped = self._counts[f"questions_{split}"] = Counter()
        return iter(evenly_spaced(list(self._answerable(names, dropped)), maximum, dropped))

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
                "files": {role: [digest_file(Path(name)) for name in names] for role, names in roles.items()},
                "limits": {name: getattr(self._files, name) for name in limits},
                "passage_length": self._corpus.passage_length,
                "tagger": self._corpus.tagger,
                "tokenizer": tokenizer_digest(self.tokenizer),
            }
        )

    def _answerable(self, names: Sequence[str], dropped: Counter[str]) -> Iterator[Question]:
        if self._document_ids is None:
            self._document_ids = frozenset(document.id for document in self.documents())
        knowledge = {_resolved(name) for name in self._knowledge}
        for name in names:
            own = _resolved(name) in knowledge
            for question in read_questions(name, dropped):
                if question.document is None or question.document in self._document_ids:
                    yield question
                elif own:
                    dropped[DROPPED_NOT_IN_CORPUS] += 1
                else:
                    yield question._replace(document=None)

    def _separate_sentences(self) -> Iterator[Sentence]:
        dropped = self._counts["pretrain"] = Counter()
        documents = (document for name in self._files.pretrain for document in read_documents(name, dropped))
        for article, context in _with_context(documents):
            for document in article:
                yield from self._tagged(document, split_sentences(document.text), context, None)

    def _tagged(
        self, document: Document, offsets: Sequence[tuple[int, int]], context: str, passage: Passage | None
    ) -> list[Sentence]:
        texts = [document.text[start:end] for start, end in offsets]
        identity = passage.id if passage else None
        return [Sentence(text, self._tagger(text, context), identity, document.article) for text in texts]


def evenly_spaced(questions: list[Question], maximum: int | None, dropped: Counter[str]) -> list[Question]:
    """At most `maximum` of the questions, evenly spaced over the list, in its order; the rest is counted."""
    if maximum is None or len(questions) <= maximum:
        return questions
    dropped[DROPPED_SAMPLED] += len(questions) - maximum
    return [questions[number * len(questions) // maximum] for number in range(maximum)]


def _with_context(documents: Iterator[Document]) -> Iterator[tuple[list[Document], str]]:
    """Neighbouring documents of one article, with the text of them all."""
    for _, group in itertools.groupby(documents, key=lambda document: document.article):
        article = list(group)
        yield article, "\n".join(document.text for document in article)


def _resolved(name: str) -> Path:
    return Path(name).resolve()
