"""A corpus of text files: passages with tagged sentences, and questions (parameters: corpus, corpus.files)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from realm_lab.engine.core.hub import is_dataset
from realm_lab.engine.corpus.cutting import OF_UPDATE
from realm_lab.engine.corpus.fingerprint import fingerprint64
from realm_lab.engine.corpus.pictures import PATCH_VALUES
from realm_lab.engine.corpus.readers import (
    Dropped,
    InputFile,
    digest_input,
    find_reader,
    input_files,
    read_documents,
    read_questions,
)
from realm_lab.engine.corpus.readers.inputs import is_picture, queries_of
from realm_lab.engine.corpus.readers.registry import custom_formats, has_judgements
from realm_lab.engine.corpus.records import SPLITS, Document, Question, Split, document_of
from realm_lab.engine.corpus.sources import SourceRequest
from realm_lab.engine.corpus.text_source import TextSource
from realm_lab.engine.params.corpus import Corpus, Files
from realm_lab.engine.params.sections import identity_values
from realm_lab.errors import UserError
from realm_lab.records.files import digest_file

FILE_ROLES: dict[str, Split | None] = {  # parameter of corpus.files -> split of its questions; None: documents
    **dict.fromkeys(("knowledge", "knowledge_updated", "pretrain")),
    **{f"questions_{split}": split for split in SPLITS},
}


class FilesCorpus(TextSource):
    """The files named in `corpus.files` as a source. Documents stream, and are the same each time they are read.

    `max_articles` is the most articles of all files of `knowledge` together, except files that `questions_test` names
    too. These are kept whole, so that their questions stay answerable. Files that only the later version
    (`knowledge_updated`) names are kept whole as well.
    """

    def __init__(self, request: SourceRequest):
        super().__init__(request)
        self._files = request.corpus.files
        self._left_out: set[str] = set()  # documents that questions name, but the parameters or the format leave out
        self.versions = 2 if self._files.knowledge_updated else 1
        named = input_files(*self._files.knowledge, *self._files.knowledge_updated)
        has_pictures = any(is_picture(file.path) for file in named)
        self.patches = np.empty((0, PATCH_VALUES), np.uint8) if has_pictures else None

    @classmethod
    def identity(cls, corpus: Corpus, options: None, seed: int) -> dict[str, Any]:
        """The parameters `corpus.files` and the content of the files. UserError: a file does not exist."""
        files, described = corpus.files, identity_values(corpus.files)
        if not files.holds_out_dev:
            described.pop("dev_split")  # it splits nothing
        splits: dict[str, list[Split | None]] = {}
        for role, split in FILE_ROLES.items():
            for path in getattr(files, role):
                if not is_dataset(path) and not Path(path).exists():
                    name = f"corpus.files.{role}"
                    raise UserError(f"{name}: {path}: no such file", "check the path", parameter=name)
                splits.setdefault(path, []).append(split)
        found = super().identity(corpus, options, seed) | {"corpus": {"files": described}}
        found["files"] = {path: digest_input(path, *splits[path]) for path in sorted(splits)}
        if judging := dict(_judgements(files)):
            found["judgements"] = judging
        read = [file for role, split in FILE_ROLES.items() for file in input_files(*getattr(files, role), split=split)]
        if custom := custom_formats(read):
            found["formats"] = custom
        if any(file.is_renamed for file in read):
            found["ids"] = "of files that share a name"
        return found

    def documents(self, version: int = 0) -> Iterator[Document]:
        """The documents of the knowledge corpus, in the order of the files."""
        dropped = Dropped(self._asked)
        names = self._files.knowledge_updated if version else self._files.knowledge
        limited = _same(names, self._files.knowledge) - _same(names, self._files.questions_test)
        yield from read_documents(input_files(*names), dropped, partial(self._is_wanted, limited, set(), dropped))
        self._left_out |= dropped.seen
        suffix = OF_UPDATE * version
        self.counts[f"documents{suffix}"] = Counter({reason + suffix: count for reason, count in dropped.items()})

    def _is_wanted(
        self, limited: Set[str], articles: set[str], dropped: Dropped, document: Document, file: InputFile
    ) -> bool:
        """True if a document is a page of a kind to keep, and its article is not beyond `max_articles`."""
        kind = page_kind(document.title)
        limit = self._files.max_articles if file.given in limited else None
        if kind in self._files.drop_pages:
            dropped.leave_out(f"document: {kind} page", document.id)
        elif limit is None or document.article in articles or len(articles) < limit:
            articles.update([document.article] if limit is not None else [])
            return True
        else:
            dropped.leave_out("document: beyond corpus.files.max_articles", document.id)
        return False

    def pretrain_documents(self) -> Iterator[Document]:
        """The documents of the separate pre-training corpus."""
        dropped = self.counts["pretrain"] = Dropped()
        wanted = partial(self._is_wanted, set(), set(), dropped)
        return read_documents(input_files(*self._files.pretrain), dropped, wanted)

    def asked_documents(self) -> frozenset[str]:
        """The documents that questions of any split name, in the corpus or not. UserError: a file of questions has no
        usable question."""
        return self._asked

    @cached_property
    def _asked(self) -> frozenset[str]:
        documents: set[str] = set()
        for split in SPLITS:
            for name in getattr(self._files, f"questions_{split}"):
                dropped = Dropped()
                questions = read_questions(input_files(name, split=split), dropped)
                documents.update(name for question in questions for name in question.named_documents)
                if not questions:
                    parameter = f"corpus.files.questions_{split}"
                    raise UserError(f"{parameter}: {name}: {nothing_kept(dropped)}", parameter=parameter)
        return frozenset(documents)

    def known_questions(self, split: Split, known: Set[str]) -> list[Question]:
        """Questions of a split, an even sample of them if a maximum is given.

        `known` are the documents of `asked_documents` that are in the corpus. A question loses a `document` that is
        not known. If a question from a knowledge file has gold documents and none of them is in the corpus
        (`max_articles`, `drop_pages`), it is left out; a question from another file stays. UserError: files are named,
        and no question is left, or a file of judgements names a document that no knowledge file has.
        """
        names: list[str] = getattr(self._files, f"questions_{split}")
        maximum = {"train": self._files.max_train_questions, "test": self._files.max_test_questions}.get(split)
        dropped = self.counts[f"questions_{split}"] = Dropped()
        if split == "test" or not self._files.holds_out_dev:
            found = list(self._answerable(split, names, dropped, known))
        else:
            wanted = split == "dev"
            counted = Dropped() if wanted else dropped  # one file for two splits: faults are counted once
            questions = self._answerable("train", self._files.questions_train, counted, known)
            found = [question for question in questions if is_orqa_dev(question.question) is wanted]
        if names and not found:
            why = nothing_kept(dropped) if dropped else "all are development questions"
            remedy, parameter = "" if dropped else "set corpus.files.dev_split: none", f"corpus.files.questions_{split}"
            raise UserError(f"{parameter}: {why}", remedy, parameter=parameter)
        return evenly_spaced(found, maximum, dropped)

    def _answerable(self, split: Split, names: Sequence[str], dropped: Dropped, known: Set[str]) -> Iterator[Question]:
        own = _same(names, self._files.knowledge)
        files = input_files(*names, split=split)
        judging = {file.path: found for file in files if (found := find_reader(file.path).judged_at)}

        def wanted(question: Question, file: InputFile) -> bool:
            if file.path in judging:
                for document, _ in question.judged:
                    if not {document, document_of(document)} & (known | self._left_out):
                        problem = f"the document '{document[:60]}' is in no file of corpus.files.knowledge"
                        remedy, line = "name the corpus that these judgements are of", judging[file.path]
                        raise UserError(problem, remedy, path=file.path, line=line(file.path, document))
                return True
            gold = question.gold_documents
            if gold and file.given in own and not any({name, document_of(name)} & known for name in gold):
                dropped["question: its document is not in the corpus"] += 1
                return False
            return True

        for question in read_questions(files, dropped, wanted):
            yield question if question.document in known else question._replace(document=None)


def _judgements(files: Files) -> Iterator[tuple[str, list[str]]]:
    """Yield (split and name, digests) of each file of judgements and its file of queries."""
    for split in SPLITS:
        for file in input_files(*getattr(files, f"questions_{split}"), split=split):
            if has_judgements(file.path):
                yield f"{split}: {file.given}", [digest_file(file.path), digest_file(queries_of(file.path))]


def nothing_kept(dropped: Dropped) -> str:
    """Explain why a file gives no questions, and what to do."""
    reasons = "; ".join(f"{count} × {reason}" for reason, count in dropped.items())
    why = f"dropped: {reasons}" if reasons else "there is none"
    return f"no question is kept ({why}); name a file of questions with answers"


def is_orqa_dev(question: str) -> bool:
    """True if a training question is one of ORQA's development questions (code: create_data_splits).

    The test is TensorFlow's `to_hash_bucket_fast(question, 100000) % 10 == 0`, the hash being FarmHash's
    Fingerprint64 of the exact text."""
    return fingerprint64(question.encode()) % 100_000 % 10 == 0


def evenly_spaced(questions: list[Question], maximum: int | None, dropped: Counter[str]) -> list[Question]:
    """Return at most `maximum` questions, evenly spaced over the list, in its order; `dropped` counts the others."""
    if maximum is None or len(questions) <= maximum:
        return questions
    dropped["question: not in the sample"] += len(questions) - maximum
    return [questions[number * len(questions) // maximum] for number in range(maximum)]


def page_kind(title: str) -> str | None:
    """The kind of a page: list, index, outline or disambiguation; None: an article (official code, ORQA)."""
    for kind in ("list", "index", "outline"):
        if title.startswith(f"{kind.capitalize()} of "):
            return kind
    return "disambiguation" if "(disambiguation)" in title else None


def _same(names: Iterable[str], others: Iterable[str]) -> set[str]:
    """Return the names of files that `others` also names, even by another path."""
    files = {Path(name).resolve() for name in others}
    return {name for name in names if Path(name).resolve() in files}
