"""A corpus of text files: passages with tagged sentences, and questions (parameters: corpus, corpus.files)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import partial
from pathlib import Path

import numpy as np
from farmhash import Fingerprint64
from tokenizers import Tokenizer

from realm_lab.corpus.answers import passage_holds
from realm_lab.corpus.cutting import OF_UPDATE, Article, Asked, Cut, Cutter, Kind
from realm_lab.corpus.pictures import PATCH_VALUES
from realm_lab.corpus.pool import cut_all
from realm_lab.corpus.readers import Dropped, InputFile, input_files, read_documents, read_questions
from realm_lab.corpus.readers.inputs import is_picture
from realm_lab.corpus.records import SPLITS, Document, Question, Split
from realm_lab.corpus.regex_answers import Patterns
from realm_lab.corpus.salient_spans import MakeTagger, RuleTagger
from realm_lab.corpus.store import Passages
from realm_lab.errors import UserError
from realm_lab.params.corpus import Corpus

MOST_CHARACTERS = 8_000_000  # of an article: what has one name throughout is not held in memory as a whole


class FilesCorpus:
    """The files named in `corpus.files` as a source. Everything streams and repeats exactly.

    `max_articles` counts articles over the files of `knowledge` that no test question comes from. The files that
    test questions come from are kept whole, so that those stay answerable; so are files that only the later version
    (`knowledge_updated`) names.
    """

    drops_duplicates = True  # of passages with the same title and text the first alone is kept

    def __init__(self, corpus: Corpus, kept: Path, workers: int = 1, make_tagger: MakeTagger = RuleTagger):
        """`kept`: a folder for what is cut, until the corpus is written."""
        self._corpus, self._files, self._kept = corpus, corpus.files, kept
        self._workers, self._make_tagger = workers, make_tagger
        self.tokenizer: Tokenizer  # set by whoever wants the documents cut; one may be learned from them first
        self.versions = 2 if corpus.files.knowledge_updated else 1
        self._counts: dict[str, Counter[str]] = {}
        named = input_files(*self._files.knowledge, *self._files.knowledge_updated)
        has_pictures = any(is_picture(file.path) for file in named)
        self.patches = np.empty((0, PATCH_VALUES), np.uint8) if has_pictures else None

    @property
    def dropped(self) -> Counter[str]:
        """What reading left out so far, by reason. Reading something again does not count it twice."""
        return sum(self._counts.values(), Counter())

    def documents(self, version: int = 0) -> Iterator[Document]:
        """The documents of the knowledge corpus, in the order of the files."""
        dropped = Dropped()
        names = self._files.knowledge_updated if version else self._files.knowledge
        limited = _same(names, self._files.knowledge) - _same(names, self._files.questions_test)
        yield from read_documents(input_files(*names), dropped, partial(self._is_wanted, limited, set(), dropped))
        suffix = OF_UPDATE * version
        self._counts[f"documents{suffix}"] = Counter({reason + suffix: count for reason, count in dropped.items()})

    def _is_wanted(
        self, limited: Set[str], articles: set[str], dropped: Counter[str], document: Document, file: InputFile
    ) -> bool:
        """Whether a document's page is of a kind to keep, and of an article that `max_articles` allows."""
        kind = page_kind(document.title)
        limit = self._files.max_articles if file.given in limited else None
        if kind in self._files.drop_pages:
            dropped[f"document: {kind} page"] += 1
        elif limit is None or document.article in articles or len(articles) < limit:
            articles.update([document.article] if limit is not None else [])
            return True
        else:
            dropped["document: beyond corpus.files.max_articles"] += 1
        return False

    def pretrain_documents(self) -> Iterator[Document]:
        """The documents of the separate pre-training corpus."""
        dropped = self._counts["pretrain"] = Dropped()
        wanted = partial(self._is_wanted, set(), set(), dropped)
        return read_documents(input_files(*self._files.pretrain), dropped, wanted)

    def cuts(self, version: int) -> Iterator[Cut]:
        """A version of the knowledge corpus; where X = Z, the first with its sentences."""
        same = self._corpus.pretrain_corpus == "same" and not version
        kind: Kind = "passages and sentences" if same else "passages"
        return self._cut(self.documents(version), kind, self._kept / f"passages-{version}")

    def pretrain_cuts(self) -> Iterator[Cut]:
        """The sentences of the separate pre-training corpus."""
        if self._corpus.pretrain_corpus == "same":
            return iter(())
        return self._cut(self.pretrain_documents(), "sentences", self._kept / "sentences")

    def _cut(self, documents: Iterable[Document], kind: Kind, kept: Path) -> Iterator[Cut]:
        lengths, size = (self._corpus.passage_length, self._corpus.sentence_length), self._files.picture_size
        make_cutter = partial(Cutter, self.tokenizer.to_str(), *lengths, self._make_tagger, size)
        return cut_all(make_cutter, neighbours(documents), kind, self._workers, kept)

    def asked_documents(self) -> frozenset[str]:
        """The documents that questions of any split come from, in the corpus or not. UserError: a file has no question
        that is of use."""
        documents: set[str] = set()
        for split in SPLITS:
            for name in getattr(self._files, f"questions_{split}"):
                dropped = Dropped()
                questions = read_questions(input_files(name), dropped)
                documents.update(question.document for question in questions if question.document is not None)
                if not questions:
                    raise UserError(f"corpus.files.questions_{split}: {name}: {nothing_kept(dropped)}")
        return frozenset(documents)

    def asked(self, split: Split, rows: dict[str, list[int]], passages: Passages) -> Iterator[Asked]:
        """The questions of a split. Gold are the passages of the document (`rows`) that hold an answer."""
        patterns = Patterns()
        for question in self.questions(split, {document for document, found in rows.items() if found}):
            asked = question.answers, question.answer_kind, patterns, question.id
            own = dict.fromkeys(rows.get(question.document or "", ()))
            gold = [row for row in own if passage_holds(passages.text.row(row)["body"], *asked)]
            yield question, question.answers_updated or question.answers, gold

    def questions(self, split: Split, known: Set[str]) -> list[Question]:
        """Questions of a split, an even sample of them where a maximum is given.

        `known` are the documents that are in the corpus, of those asked for. `document` is kept where the corpus holds
        it. A question from a knowledge file whose document is not in the corpus is left out (`max_articles`,
        `drop_pages`); one from another file stays, its gold document unknown. UserError: files are named, and none of
        their questions is left.
        """
        names: list[str] = getattr(self._files, f"questions_{split}")
        maximum = {"train": self._files.max_train_questions, "test": self._files.max_test_questions}.get(split)
        dropped = self._counts[f"questions_{split}"] = Dropped()
        if split == "test" or not self._files.holds_out_dev:
            found = list(self._answerable(names, dropped, known))
        else:
            wanted = split == "dev"
            counted = Dropped() if wanted else dropped  # one file for two splits: what it lacks is told once
            questions = self._answerable(self._files.questions_train, counted, known)
            found = [question for question in questions if is_orqa_dev(question.question) is wanted]
        if names and not found:
            all_dev = "all are development questions; set corpus.files.dev_split: none"
            raise UserError(f"corpus.files.questions_{split}: {nothing_kept(dropped) if dropped else all_dev}")
        return evenly_spaced(found, maximum, dropped)

    def _answerable(self, names: Sequence[str], dropped: Dropped, known: Set[str]) -> Iterator[Question]:
        own = _same(names, self._files.knowledge)

        def wanted(question: Question, file: InputFile) -> bool:
            is_unknown = question.document is not None and question.document not in known
            if is_unknown and file.given in own:
                dropped["question: its document is not in the corpus"] += 1
                return False
            return True

        for question in read_questions(input_files(*names), dropped, wanted):
            yield question if question.document in known else question._replace(document=None)


def nothing_kept(dropped: Dropped) -> str:
    """Why a file gives no questions, and what to do."""
    reasons = "; ".join(f"{count} × {reason}" for reason, count in dropped.items())
    why = f"dropped: {reasons}" if reasons else "there is none"
    return f"no question is kept ({why}); name a file of questions with answers"


def is_orqa_dev(question: str) -> bool:
    """Whether a training question is one of ORQA's development questions (code: create_data_splits).

    TensorFlow's `to_hash_bucket_fast(question, 100000)`, which is FarmHash's Fingerprint64 of the text to the letter,
    is 0 modulo 10."""
    return bool(Fingerprint64(question.encode()) % 100_000 % 10 == 0)


def evenly_spaced(questions: list[Question], maximum: int | None, dropped: Counter[str]) -> list[Question]:
    """At most `maximum` of the questions, evenly spaced over the list, in its order; the rest is counted."""
    if maximum is None or len(questions) <= maximum:
        return questions
    dropped["question: not in the sample"] += len(questions) - maximum
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


def page_kind(title: str) -> str | None:
    """The kind of a page that is no article: list, index, outline or disambiguation (official code, ORQA)."""
    for kind in ("list", "index", "outline"):
        if title.startswith(f"{kind.capitalize()} of "):
            return kind
    return "disambiguation" if "(disambiguation)" in title else None


def _same(names: Iterable[str], others: Iterable[str]) -> set[str]:
    """Those of the names that are files of the others too, however each is written."""
    files = {Path(name).resolve() for name in others}
    return {name for name in names if Path(name).resolve() in files}
