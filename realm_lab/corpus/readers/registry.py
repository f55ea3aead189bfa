"""The registry of formats: how a file is recognised, and what of its records is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.corpus.answers import normalise_answer
from realm_lab.corpus.hash_numbers import HashNumbers
from realm_lab.corpus.readers.inputs import files_of, is_picture
from realm_lab.corpus.readers.parquet import parquet_head
from realm_lab.corpus.records import Document, Question, text_hash
from realm_lab.corpus.regex_answers import compile_pattern
from realm_lab.corpus.text_files import PARQUET, read_head
from realm_lab.errors import UserError

DocumentReader = Callable[[Path, Counter[str]], Iterator[Document]]
QuestionReader = Callable[[Path, Counter[str]], Iterator[Question]]


class Dropped(Counter[str]):
    """What is left out, counted by reason; `first` has the id of the first of each, which is `<file>:<line>` where
    there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, str] = {}

    def leave_out(self, reason: str, identity: str) -> None:
        """Count one."""
        self[reason] += 1
        self.first.setdefault(reason, identity)


class Reader(NamedTuple):
    """A file format: how it is recognised and read."""

    name: str
    matches: Callable[[Path, str], bool]  # (path, first characters of the text) -> is it this format?
    read_documents: DocumentReader | None = None  # None: this format holds no documents
    read_questions: QuestionReader | None = None  # None: this format holds no questions


READERS: dict[str, Reader] = {}


def register_reader(name: str, matches: Callable[[Path, str], bool], **reads: Any) -> None:
    """Add a format, `reads` being the other fields of Reader; the latest is asked first, a known name is replaced."""
    READERS.pop(name, None)
    READERS[name] = Reader(name, matches, **reads)


def find_reader(path: Path | str) -> Reader:
    """The reader for a file, by its name and first characters; an unknown format is a UserError."""
    path = Path(path)
    head = "" if is_picture(path) else read_head(path)
    head = parquet_head(path) if head == PARQUET else head
    for reader in reversed(READERS.values()):
        if reader.matches(path, head):
            return reader
    raise UserError(f"{path}: format not recognised; known are {', '.join(sorted(READERS))}: see docs/data.md")


def read_documents(
    name: Path | str,
    dropped: Dropped | None = None,
    seen: HashNumbers | None = None,
    wanted: Callable[[Document], bool] = lambda document: True,
) -> Iterator[Document]:
    """The documents of a file or folder, in its order: those with text, that are `wanted`, with an id of their own.

    What is left out is counted in `dropped`, the unwanted by `wanted` itself. `seen` has the hashes of the ids that
    were there before, of other files too where it is given. A file that cannot be read is a UserError.
    """
    dropped, seen = Dropped() if dropped is None else dropped, HashNumbers() if seen is None else seen
    for path in files_of(name):
        reader = find_reader(path)
        if reader.read_documents is None:
            raise UserError(f"{path}: format '{reader.name}' holds no documents; name a file of texts")
        for document in reader.read_documents(path, dropped):
            if not document.text.strip() and document.picture is None:
                dropped.leave_out("document: empty text", document.id)
            elif wanted(document):
                before = len(seen)
                if seen.setdefault(text_hash(document.id), before) == before:
                    yield document
                else:
                    dropped.leave_out("document: duplicate id", document.id)


def questions_in(path: Path, dropped: Counter[str]) -> Iterator[Question]:
    """Every question of one file, as its format reads it."""
    reader = find_reader(path)
    if reader.read_questions is None:
        raise UserError(f"{path}: format '{reader.name}' holds no questions; name a file of questions and answers")
    return reader.read_questions(path, dropped)


def read_questions(name: Path | str, dropped: Dropped | None = None) -> Iterator[Question]:
    """The questions of a file or folder, each with text, an id of its own and an answer that is worth scoring.

    Answers are stripped (regular expressions are not) and those that occur twice are merged; what is left out is
    counted in `dropped`. An invalid regular expression is counted and stays, so that evaluation scores its question as
    the released code does (wrong). Errors: as read_documents.
    """
    dropped = Dropped() if dropped is None else dropped
    seen: set[str] = set()
    for path in files_of(name):
        for question in questions_in(path, dropped):
            kept = tuple(_worth_scoring(question, question.answers, dropped))
            text = question.question.strip()
            if not text:
                dropped.leave_out("question: empty text", question.id)
            elif question.id in seen:
                dropped.leave_out("question: duplicate id", question.id)
            elif not kept:
                dropped.leave_out("question: no answer", question.id)
            else:
                seen.add(question.id)
                updated = tuple(_worth_scoring(question, question.answers_updated, dropped))
                yield question._replace(question=text, answers=kept, answers_updated=updated)


def _worth_scoring(question: Question, answers: tuple[str, ...], dropped: Dropped) -> Iterator[str]:
    is_regex = question.answer_kind == "regex"
    for answer in dict.fromkeys(answer if is_regex else answer.strip() for answer in answers):
        if not (answer.strip() if is_regex else normalise_answer(answer)):  # it would equal all others of its kind
            dropped.leave_out("answer: normalises to nothing", question.id)
            continue
        try:
            if is_regex:
                compile_pattern(answer)
        except ValueError:
            dropped.leave_out("answer: not a valid regular expression, kept and matches nothing", question.id)
        yield answer
