"""Records of JSON lines, a JSON array or Parquet, and their shapes.

A shape is recognised by the keys of a record. Lines and Parquet are streamed. An array is held in memory as text.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from realm_lab.engine.corpus.readers.inputs import InputFile
from realm_lab.engine.corpus.readers.parquet import parquet_rows
from realm_lab.engine.corpus.readers.registry import Dropped, register_reader
from realm_lab.engine.corpus.records import AnswerKind, Document, Question
from realm_lab.engine.corpus.text_files import (
    MAX_LINE_MB,
    MEGABYTE,
    PARQUET,
    plain_name,
    read_head,
    read_lines,
    read_text,
)
from realm_lab.errors import UserError, in_words

LINE_SUFFIXES = (".jsonl", ".jsonlines", ".ndjson")
DOCUMENT_IDS = ("id", "_id", "docid", "doc_id")  # keys of an id; the first one present counts
QUESTION_IDS = ("id", "_id", "qid", "query_id", "question_id")
_LOOKS_LIKE_ID = re.compile(r"(?:.*[_-])?(?i:p?id|[gu]?uid|docno|idx)|.*[a-z]I[dD]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANKS = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class Record(NamedTuple):
    """One record of a file: its fields, and its position for error messages."""

    file: InputFile  # its name is the first part of generated ids
    number: int  # from 1 (paragraphs of SQuAD: from 0); in JSON lines the line
    fields: Any  # any JSON value; `field` requires a dictionary
    remedy: str  # the expected form
    dropped: Dropped  # counts ids that are not read
    line: int | None = None
    part: str = ""  # of the line or the file, such as "record 3, spans 1"

    def error(self, problem: str, remedy: str = "") -> UserError:
        """Return an error about the record. `remedy` is by default the expected form."""
        return UserError(problem, remedy or self.remedy, path=self.file.path, line=self.line, part=self.part)

    def inside(self, part: str, fields: Any) -> Record:
        """Return a part of the record as a record."""
        return self._replace(part=", ".join(filter(None, (self.part, part))), fields=fields)

    def field(self, key: str, kind: type) -> Any:
        """Return a field. UserError: it is missing, of another type than `kind`, or has half of a surrogate pair."""
        if not isinstance(self.fields, dict):
            raise self.error(f"must be an object, got {in_words(type(self.fields))}")
        if key not in self.fields:
            found = ", ".join(name[:40] for name in list(self.fields)[:6]) or "nothing"
            raise self.error(f"'{key}' is missing (found: {found})")
        value = self.fields[key]
        if not isinstance(value, kind):
            raise self.error(f"'{key}' must be {in_words(kind)}, got {in_words(type(value))}")
        if isinstance(value, str) and _LONE_SURROGATE.search(value):
            raise self.error(f"'{key}' holds half of a surrogate pair, which is no character", "repair the text")
        return value

    def text(self, key: str) -> str:
        """Return a field of text; empty if it is missing."""
        return self.field(key, str) if isinstance(self.fields, dict) and self.fields.get(key) is not None else ""

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the texts of a field that is a list of texts, or one text."""
        value = self.field(key, object)
        values = [value] if isinstance(value, str) else self.field(key, list)
        named = self._replace(fields={f"{key} {position}": text for position, text in enumerate(values, 1)})
        return tuple(named.field(name, str) for name in named.fields)

    def optional_texts(self, key: str) -> tuple[str, ...]:
        """Return `texts` of a field; empty if it is missing or empty."""
        return self.texts(key) if self.fields.get(key) else ()

    def identity(self, *keys: str) -> str:
        """Return the record's id as text: the first of `keys` (default: DOCUMENT_IDS) that it has, else its file and
        number.

        Another id under a further key, or an id under a key that is not read, is counted in `dropped`.
        """
        given = self.given_id(*(keys or DOCUMENT_IDS))
        if given is not None:
            return given
        made = f"{self.file.name}:{self.number}"
        for key, value in self.fields.items() if isinstance(self.fields, dict) else ():
            if value != "" and isinstance(value, int | str) and _LOOKS_LIKE_ID.fullmatch(key):
                self.dropped.leave_out(f"id: '{key[:40]}' is not read, file and line are", made)
        return made

    def given_id(self, *keys: str) -> str | None:
        """Return the record's id as text, under the first of `keys` that it has; None if it has none."""
        fields = self.fields if isinstance(self.fields, dict) else {}
        found = [key for key in keys if fields.get(key) not in (None, "")]
        if not found:
            return None
        value = fields[found[0]]
        identity = str(value) if isinstance(value, int) else str(self.field(found[0], str))
        for key in found[1:]:
            if fields[key] != value:
                self.dropped.leave_out(f"id: '{key}' is not read, '{found[0]}' is", identity)
        return identity

    def within(self, key: str) -> Iterator[Record]:
        """The members of a field that is a list of records."""
        for number, member in enumerate(self.field(key, list), 1):
            yield self.inside(f"{key} {number}", member)._replace(number=number)


Item = TypeVar("Item")
DocumentsOf = Callable[[Record, Dropped], Iterable[Document]]
QuestionsOf = Callable[[Record, Dropped], Iterable[Question]]


def register_shape(
    name: str,
    keys: set[str],
    expected: str,
    *,
    documents: DocumentsOf | None = None,
    questions: QuestionsOf | None = None,
    matches: Callable[[Path, dict[str, Any]], bool] = lambda path, fields: True,
) -> None:
    """Add a shape of records, in JSON lines, a JSON array or Parquet alike.

    A file has the shape if its first record has all `keys` and `matches(path, fields)` is true. `expected` describes a
    record in the remedy of errors.
    """

    def is_it(path: Path, head: str) -> bool:
        fields = first_record(head)
        return keys <= fields.keys() and matches(path, fields)

    is_it.__module__ = matches.__module__
    remedy = f"expected {expected}"
    register_reader(
        name,
        is_it,
        read_documents=None if documents is None else record_reader(documents, remedy),
        read_questions=None if questions is None else record_reader(questions, remedy),
    )


def record_reader(
    make: Callable[[Record, Dropped], Iterable[Item]], remedy: str
) -> Callable[[InputFile, Dropped], Iterator[Item]]:
    """Return a reader of files of records; `make` turns each record into documents or questions."""

    def read(file: InputFile, dropped: Dropped) -> Iterator[Item]:
        for record in records(file, remedy, dropped):
            yield from make(record, dropped)

    made_by = make.func if isinstance(make, functools.partial) else make
    read.__module__ = made_by.__module__  # a custom format is part of the key of its corpus
    return read


def records(file: InputFile, remedy: str, dropped: Dropped) -> Iterator[Record]:
    """Yield the records of a file one by one."""
    path = file.path
    head = read_head(path)
    if head == PARQUET:
        for number, fields in enumerate(parquet_rows(path), 1):
            yield Record(file, number, fields, remedy, dropped, part=f"record {number}")
    elif head.lstrip().startswith("[") and not plain_name(path).endswith(LINE_SUFFIXES):
        for number, (line, fields) in enumerate(_members(path), 1):
            yield Record(file, number, fields, remedy, dropped, line, f"record {number}")
    else:
        for number, line_text in read_lines(path):
            if line_text.strip():
                yield Record(file, number, parse(line_text, path, number), remedy, dropped, number)


@functools.lru_cache(maxsize=1)  # all formats ask about the same head, which may be long
def first_record(head: str) -> dict[str, Any]:
    """Return the visible part of the first JSON record in a file's head; a value that is cut off is empty."""
    text = head.lstrip()
    if text.startswith("["):
        text = text[1:].lstrip()
    fields: dict[str, Any] = {}
    if not text.startswith("{"):
        return fields
    position = 1
    while True:
        try:
            key, position = _DECODER.raw_decode(text, _blanks(text, position))
            position = _blanks(text, position)
            if not isinstance(key, str) or text[position : position + 1] != ":":
                return fields
            position = _blanks(text, position + 1)
            fields[key] = {'"': "", "[": [], "{": {}}.get(text[position : position + 1])
            fields[key], position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            return fields
        position = _blanks(text, position)
        if text[position : position + 1] != ",":
            return fields
        position += 1


def _members(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line, member) of a JSON array, decoded one at a time."""
    text = read_text(path)
    line, counted, position = 1, 0, _blanks(text, _blanks(text, 0) + 1)
    is_closed = text[position : position + 1] == "]"
    while not is_closed:
        line += text.count("\n", counted, position)
        counted = position
        try:
            value, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            at, reason = (error.pos, error.msg) if isinstance(error, json.JSONDecodeError) else (position, str(error))
            raise _broken(path, 1 + text.count("\n", 0, at), reason) from None
        if end - position > MAX_LINE_MB * MEGABYTE:
            problem = f"a record longer than {MAX_LINE_MB} MB"
            raise UserError(problem, "cut it into several records", path=path, line=line)
        yield line, value
        position = _blanks(text, end)
        is_closed = text[position : position + 1] == "]"
        if text[position : position + 1] == ",":
            position = _blanks(text, position + 1)
        elif not is_closed:
            raise _broken(path, 1 + text.count("\n", 0, position), "Expecting ',' or ']'")
    position = _blanks(text, position + 1)
    if position < len(text):
        raise _broken(path, 1 + text.count("\n", 0, position), "text after the array")


def _broken(path: Path, line: int, reason: str, part: str = "") -> UserError:
    remedy = "repair it, or fetch it again if it is cut off"
    return UserError(f"not valid JSON ({reason})", remedy, path=path, line=line, part=part)


def parse(text: str, path: Path, line: int | None = None) -> Any:
    """Parse JSON of a whole file, or of one `line` of it. The last value of a repeated key counts."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _broken(path, line or error.lineno, error.msg, f"column {error.colno}") from None
    except (RecursionError, ValueError) as error:
        raise UserError(f"not usable JSON ({error})", "repair it", path=path, line=line or 1) from None


def passage_id(title: str, text: str) -> str:
    """Return an id made of title and text, so that a passage with several questions is one document."""
    return f"{title}#{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def open_question(record: Record, dropped: Dropped, kind: AnswerKind = "text") -> Iterator[Question]:
    """Read a question with one answer or a list of them, and its document, groups and evidence if the file has them."""
    question = record.field("question", str)
    answers = record.texts("answers" if "answers" in record.fields and "answer" not in record.fields else "answer")
    document = record.fields.get("document")
    named = record.text("answer_kind")
    if named not in ("", "text", "regex"):
        raise record.error(f"answer_kind '{named}'", "write text or regex")
    kind = "regex" if named == "regex" else "text" if named else kind
    for answer in answers if kind == "text" else ():
        if answer.startswith("[") and _is_list(answer):
            raise record.error(f"the answer {answer[:60]!r} is a list written as text", "write it as a list of texts")
    document = None if document in (None, "") else str(document)
    groups, evidence = record.optional_texts("groups"), record.optional_texts("evidence_ids")
    identity = record.identity(*QUESTION_IDS)
    yield Question(identity, question, answers, document, kind, groups=groups, evidence=evidence)


def _is_list(text: str) -> bool:
    """True for a list of texts as Python or JSON writes it."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def _blanks(text: str, position: int) -> int:
    found = _BLANKS.match(text, position)
    return found.end() if found else position
