"""The registry of formats: how a file is recognised, and which of its records are kept."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.engine.corpus.answers import can_be_scored
from realm_lab.engine.corpus.hash_numbers import HashNumbers
from realm_lab.engine.corpus.readers.inputs import InputFile, is_picture
from realm_lab.engine.corpus.readers.parquet import parquet_head
from realm_lab.engine.corpus.records import Document, Question, text_hash
from realm_lab.engine.corpus.regex_answers import compile_pattern
from realm_lab.engine.corpus.text_files import HEAD_BYTES, PARQUET, open_bytes, read_head
from realm_lab.errors import UserError
from realm_lab.records.code import OURS, outside_digest
from realm_lab.records.plugins import import_plugins

NUMBERED = "~"  # separates an id that several records share from the number of a record


class Dropped(Counter[str]):
    """Counts of dropped records by reason. `first`: reason -> id of the first record, or its `<file>:<line>` if it has
    no id."""

    def __init__(self, watched: Set[str] = frozenset()) -> None:
        super().__init__()
        self.first: dict[str, str] = {}
        self._watched = watched
        self.seen: set[str] = set()  # of the watched ids, those that were left out

    def leave_out(self, reason: str, identity: str) -> None:
        """Count a record that is left out."""
        self[reason] += 1
        self.first.setdefault(reason, identity)
        if identity in self._watched:
            self.seen.add(identity)


DocumentReader = Callable[[InputFile, Dropped], Iterator[Document]]
QuestionReader = Callable[[InputFile, Dropped], Iterator[Question]]


class Reader(NamedTuple):
    """A file format: how it is recognised and read."""

    name: str
    matches: Callable[[Path, str], bool]  # (path, first characters of the text) -> is it this format?
    read_documents: DocumentReader | None = None  # None: this format holds no documents
    read_questions: QuestionReader | None = None  # None: this format holds no questions
    judged_at: Callable[[Path, str], int] | None = None  # (path, document) -> line of its first judgement

    def modules(self, *, custom: bool) -> list[str]:
        """Return the modules that read the format: those of custom code if `custom`, else those of realm_lab."""
        names = {part.__module__ for part in (self.matches, self.read_documents, self.read_questions) if part}
        return sorted(name for name in names if name.startswith(f"{OURS}.") is not custom)


READERS: dict[str, Reader] = {}


def register_reader(name: str, matches: Callable[[Path, str], bool], **reads: Any) -> None:
    """Add a format, `reads` being the other fields of Reader; a known name is replaced. The latest custom
    format that matches a file reads it, or the latest of all if no custom one matches."""
    READERS.pop(name, None)
    READERS[name] = Reader(name, matches, **reads)


def find_reader(path: Path | str) -> Reader:
    """Return the reader for a file, by its name and first characters. UserError: an unknown format."""
    path = Path(path)
    head = "" if is_picture(path) else read_head(path)
    head = parquet_head(path) if head == PARQUET else head
    import_plugins()
    matching = [reader for reader in reversed(READERS.values()) if reader.matches(path, head)]
    reader = max(matching, key=lambda reader: bool(reader.modules(custom=True)), default=None)
    if reader is None:
        raise UserError("format not recognised", f"known are {', '.join(sorted(READERS))}: see docs/data.md", path=path)
    return reader


def has_judgements(path: Path) -> bool:
    """True if the reader for a file is one of judgements. Of other files only the first bytes are read: `find_reader`
    decodes a whole JSON object."""
    import_plugins()
    with open_bytes(path) as file:
        head = file.read(HEAD_BYTES).decode("utf-8", errors="ignore").removeprefix("\ufeff")
    may_be = any(reader.judged_at and reader.matches(path, head) for reader in READERS.values())
    return may_be and find_reader(path).judged_at is not None


def format_modules() -> set[str]:
    """The modules of realm_lab that read a format, also those of its plug-ins."""
    import_plugins()
    return {module for reader in READERS.values() for module in reader.modules(custom=False)}


def custom_formats(files: Iterable[InputFile]) -> dict[str, dict[str, object]]:
    """The custom formats of files: name -> module -> digest of its code."""
    import_plugins()
    if not any(reader.modules(custom=True) for reader in READERS.values()):
        return {}
    found = {reader.name: reader.modules(custom=True) for reader in {find_reader(file.path) for file in files}}
    return {name: {one: outside_digest(one) for one in modules} for name, modules in found.items() if modules}


def read_documents(
    files: Iterable[InputFile],
    dropped: Dropped | None = None,
    wanted: Callable[[Document, InputFile], bool] = lambda document, file: True,
) -> Iterator[Document]:
    """Read the documents of the files of a parameter, in order: those with text or a picture that are `wanted`, each
    with a unique id.

    The first of exact copies (the same id and content) is kept. Another document with a used id gets the next free id
    of ID~2, ID~3, ... Dropped documents are counted in `dropped`, unwanted documents by `wanted` itself. UserError: a
    file cannot be read.
    """
    dropped = Dropped() if dropped is None else dropped
    ids = _OwnIds()
    for file in files:
        reader = find_reader(file.path)
        if reader.read_documents is None:
            raise UserError(f"format '{reader.name}' holds no documents", "name a file of texts", path=file.path)
        for document in reader.read_documents(file, dropped):
            if not document.text.strip() and document.picture is None:
                dropped.leave_out("document: empty text", document.id)
            elif wanted(document, file):
                identity = ids.of(document)
                if identity is None:
                    dropped.leave_out("document: copy of an earlier one", document.id)
                elif identity == document.id:
                    yield document
                else:
                    dropped.leave_out("document: id of an earlier one, kept under another", document.id)
                    yield document._replace(id=identity)


class _OwnIds:
    """The ids of documents that were read."""

    def __init__(self) -> None:
        self._contents = HashNumbers()  # hash of an id -> 31 bits of the hash of its document's content
        self._others: dict[str, set[int]] = {}  # id of several documents -> hashes of their contents except the first

    def of(self, document: Document) -> str | None:
        """Return the document's id, or the next free id if another has it; None for a copy of an earlier document."""
        content = text_hash(*document[1:5], document.picture or "") >> 33
        first = self._add(document.id, content)
        if first is None:
            return document.id
        others = self._others.setdefault(document.id, set())
        if content == first or content in others:
            return None
        others.add(content)
        numbered = (f"{document.id}{NUMBERED}{number}" for number in itertools.count(len(others) + 1))
        return next(identity for identity in numbered if self._add(identity, content) is None)

    def _add(self, identity: str, content: int) -> int | None:
        """Return the hash of the content that the id already has; None if the id is new."""
        before = len(self._contents)
        found = self._contents.setdefault(text_hash(identity), content)
        return found if len(self._contents) == before else None


def questions_in(file: InputFile, dropped: Dropped) -> Iterator[Question]:
    """Return every question of a file."""
    reader = find_reader(file.path)
    if reader.read_questions is None:
        raise UserError(
            f"format '{reader.name}' holds no questions", "name a file of questions and answers", path=file.path
        )
    return reader.read_questions(file, dropped)


def read_questions(
    files: Iterable[InputFile],
    dropped: Dropped | None = None,
    wanted: Callable[[Question, InputFile], bool] = lambda question, file: True,
) -> list[Question]:
    """Read the questions of the files of a parameter, each with text, a unique id, and a usable answer or judged
    documents.

    Answers are stripped (regular expressions are not), and equal answers of a question are merged. Dropped questions
    are counted in `dropped`. An invalid regular expression is counted and kept as an answer that matches nothing, as in
    the released code. Copies, `wanted` and errors: as in `read_documents`.
    """
    dropped = Dropped() if dropped is None else dropped
    found: dict[Question, InputFile] = {}
    for file in files:
        for question in questions_in(file, dropped):
            kept = tuple(_worth_scoring(question, question.answers, dropped))
            text = question.question.strip()
            if not text:
                dropped.leave_out("question: empty text", question.id)
            elif not kept and not question.judged:
                dropped.leave_out("question: no answer", question.id)
            else:
                updated = tuple(_worth_scoring(question, question.answers_updated, dropped))
                question = question._replace(question=text, answers=kept, answers_updated=updated)
                if question in found:
                    dropped.leave_out("question: copy of an earlier one", question.id)
                found.setdefault(question, file)
    own = with_own_ids(list(found), dropped)
    return [question for question, file in zip(own, found.values(), strict=True) if wanted(question, file)]


def with_own_ids(questions: Sequence[Question], dropped: Dropped) -> list[Question]:
    """Rename questions that share an id to ID~1, ID~2, ...

    None of them keeps ID, since a prediction for ID may be for any of them.
    """
    shared = Counter(question.id for question in questions)
    taken, last = set(shared), Counter[str]()
    own = []
    for question in questions:
        identity = question.id
        if shared[identity] > 1:
            dropped.leave_out("question: id of several, kept under others", identity)
            while identity in taken:
                last[question.id] += 1
                identity = f"{question.id}{NUMBERED}{last[question.id]}"
            taken.add(identity)
        own.append(question._replace(id=identity))
    return own


def _worth_scoring(question: Question, answers: tuple[str, ...], dropped: Dropped) -> Iterator[str]:
    is_regex = question.answer_kind == "regex"
    for answer in dict.fromkeys(answer if is_regex else answer.strip() for answer in answers):
        if not can_be_scored(answer, question.answer_kind):
            dropped.leave_out("answer: normalises to nothing", question.id)
            continue
        try:
            if is_regex:
                compile_pattern(answer)
        except ValueError:
            dropped.leave_out("answer: not a valid regular expression, kept and matches nothing", question.id)
        yield answer
