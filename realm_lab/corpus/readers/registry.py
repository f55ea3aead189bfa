"""The registry of formats: how a file is recognised, and what of its records is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.corpus.answers import normalise_answer
from realm_lab.corpus.readers.data_sets import files_of
from realm_lab.corpus.readers.parquet import is_parquet, parquet_head
from realm_lab.corpus.records import Document, Question
from realm_lab.corpus.regex_answers import compile_pattern
from realm_lab.corpus.text_files import Source, read_head
from realm_lab.errors import UserError

DocumentReader = Callable[[Source, Counter[str]], Iterator[Document]]
QuestionReader = Callable[[Source, Counter[str]], Iterator[Question]]


class Reader(NamedTuple):
    """A file format: how it is recognised and read."""

    name: str
    matches: Callable[[Path, str], bool]  # (path, first characters of the text) -> is it this format?
    read_documents: DocumentReader | None = None  # None: this format holds no documents
    read_questions: QuestionReader | None = None  # None: this format holds no questions
    counts: Callable[[Source], dict[str, int]] | None = None  # what else `realm-lab prepare --count` shows


READERS: dict[str, Reader] = {}


def register_reader(name: str, matches: Callable[[Path, str], bool], **reads: Any) -> None:
    """Add a format, `reads` being the other fields of Reader; the latest is asked first, a known name is replaced."""
    READERS.pop(name, None)
    READERS[name] = Reader(name, matches, **reads)


def find_reader(path: Path | str) -> Reader:
    """The reader for a file, by its name and first characters; an unknown format is a UserError."""
    path = Path(path)
    head = parquet_head(path) if is_parquet(path) else read_head(path)
    for reader in reversed(READERS.values()):
        if reader.matches(path, head):
            return reader
    raise UserError(f"{path}: format not recognised; known are {', '.join(sorted(READERS))}: see docs/data.md")


def read_documents(name: Path | str, dropped: Counter[str] | None = None, unique: bool = True) -> Iterator[Document]:
    """The documents of a file, a folder or a data set of the Hugging Face Hub (hf://owner/name), in its order.

    What is left out is counted in `dropped`. Ids are unique, unless the caller sees to that (`unique=False`): it takes
    the memory of all ids. A file that cannot be read is a UserError.
    """
    dropped = Counter() if dropped is None else dropped
    streams = (documents_in(Source(path), dropped) for path in files_of(name))
    return keep_documents(chain.from_iterable(streams), dropped, unique)


def read_questions(
    name: Path | str, dropped: Counter[str] | None = None, problems: list[str] | None = None
) -> Iterator[Question]:
    """The questions of a file, a folder or a Hub data set, each with at least one answer that is worth scoring.

    Answers are stripped (regular expressions are not) and those that occur twice are merged. Ids are unique; what is
    left out is counted in `dropped`. An invalid regular expression stays, so that evaluation scores its question as the
    released code does (wrong); it is counted too, and named by a sentence in `problems`. Errors: as read_documents.
    """
    dropped = Counter() if dropped is None else dropped
    streams = (questions_in(Source(path), dropped) for path in files_of(name))
    return keep_questions(chain.from_iterable(streams), dropped, [] if problems is None else problems)


def documents_in(source: Source, dropped: Counter[str]) -> Iterator[Document]:
    """Every document of one file, as its format reads it."""
    reader = find_reader(source.path)
    if reader.read_documents is None:
        raise UserError(f"{source.path}: format '{reader.name}' holds no documents; name a file of texts")
    return reader.read_documents(source, dropped)


def questions_in(source: Source, dropped: Counter[str]) -> Iterator[Question]:
    """Every question of one file, as its format reads it."""
    name, _, _, read, _ = find_reader(source.path)
    if read is None:
        raise UserError(f"{source.path}: format '{name}' holds no questions; name a file of questions and answers")
    return read(source, dropped)


def keep_documents(documents: Iterable[Document], dropped: Counter[str], unique: bool = True) -> Iterator[Document]:
    """Those with text and, where `unique` asks for it, an id of their own."""
    seen: set[str] = set()
    for document in documents:
        if not document.text.strip():
            dropped["document: empty text"] += 1
        elif document.id in seen:
            dropped["document: duplicate id"] += 1
        else:
            if unique:
                seen.add(document.id)
            yield document


def keep_questions(questions: Iterable[Question], dropped: Counter[str], problems: list[str]) -> Iterator[Question]:
    """Those with text, an id of their own and an answer; answers cleaned."""
    seen: set[str] = set()
    for question in questions:
        kept = tuple(_worth_scoring(question, question.answers, dropped, problems))
        text = question.question.strip()
        if not text:
            dropped["question: empty text"] += 1
        elif question.id in seen:
            dropped["question: duplicate id"] += 1
        elif not kept:
            dropped["question: no answer"] += 1
        else:
            seen.add(question.id)
            updated = tuple(_worth_scoring(question, question.answers_updated, dropped, problems))
            yield question._replace(question=text, answers=kept, answers_updated=updated)


def _worth_scoring(
    question: Question, answers: tuple[str, ...], dropped: Counter[str], problems: list[str]
) -> Iterator[str]:
    is_regex = question.answer_kind == "regex"
    for answer in dict.fromkeys(answer if is_regex else answer.strip() for answer in answers):
        if not (answer.strip() if is_regex else normalise_answer(answer)):  # it would equal all others of its kind
            dropped["answer: normalises to nothing"] += 1
            continue
        try:
            if is_regex:
                compile_pattern(answer)
        except ValueError as error:
            dropped["answer: not a valid regular expression, kept and matches nothing"] += 1
            shown = answer if len(answer) <= 60 else f"{answer[:60]}..."
            problems.append(f"question '{question.id}': '{shown}' is not a regular expression ({error})")
        yield answer
