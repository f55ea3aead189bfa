"""Records, whatever holds them: JSON lines, a JSON array or Parquet; and the registry of their shapes.

A shape is known by the keys of a record. All three containers are streamed: of an array, one member at a time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.corpus.readers.parquet import is_parquet, parquet_rows
from realm_lab.corpus.readers.registry import DocumentReader, QuestionReader, register_reader
from realm_lab.corpus.records import Document, Question
from realm_lab.corpus.text_files import MAX_LINE_MB, MEGABYTE, Source, plain_name, read_head
from realm_lab.errors import UserError

LINE_SUFFIXES = (".jsonl", ".jsonlines", ".ndjson")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANKS = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class Record(NamedTuple):
    """One record of a file: its fields, and where it stands for error messages."""

    where: str  # "<path>, line 3"
    number: int  # from 1; of JSON lines the line
    fields: Any  # a dictionary, once `field` has been asked
    file: str  # name of the file, of which ids are made
    remedy: str  # what was expected

    def field(self, key: str, kind: type) -> Any:
        """A field that must be there, checked as `checked_field` does."""
        return checked_field(self.fields, key, kind, self.where, self.remedy)

    def text(self, key: str) -> str:
        """A field of text; empty where there is none."""
        return self.field(key, str) if isinstance(self.fields, dict) and self.fields.get(key) is not None else ""

    def texts(self, key: str) -> tuple[str, ...]:
        """A field that is a list of texts, or one text."""
        value = self.field(key, object)
        values = [value] if isinstance(value, str) else self.field(key, list)
        for place, text in enumerate(values, 1):
            checked_field({f"{key} {place}": text}, f"{key} {place}", str, self.where, self.remedy)
        return tuple(values)

    def identity(self, key: str = "id") -> str:
        """The record's id as text; file and number where it has none."""
        return identity_of(self.fields, f"{self.file}:{self.number}", self.where, self.remedy, key)

    def within(self, key: str) -> Iterator[Record]:
        """The members of a field that is a list of records."""
        for number, member in enumerate(self.field(key, list), 1):
            yield Record(f"{self.where}, {key} {number}", number, member, self.file, self.remedy)


DocumentsOf = Callable[[Record, Counter[str]], Iterable[Document]]
QuestionsOf = Callable[[Record, Counter[str]], Iterable[Question]]


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

    A file has it where its first record has all `keys` and `matches(path, fields)` holds; the latest registration is
    asked first. `expected` is the remedy of error messages.
    """

    def is_it(path: Path, head: str) -> bool:
        fields = first_record(head)
        return keys <= fields.keys() and matches(path, fields)

    remedy = f"expected {expected}"
    register_reader(
        name,
        is_it,
        read_documents=None if documents is None else documents_reader(documents, remedy),
        read_questions=None if questions is None else questions_reader(questions, remedy),
    )


def documents_reader(documents: DocumentsOf, remedy: str) -> DocumentReader:
    """A reader of files of records that hold documents."""

    def read(source: Source, dropped: Counter[str]) -> Iterator[Document]:
        for record in records(source, remedy):
            yield from documents(record, dropped)

    return read


def questions_reader(questions: QuestionsOf, remedy: str) -> QuestionReader:
    """A reader of files of records that hold questions."""

    def read(source: Source, dropped: Counter[str]) -> Iterator[Question]:
        for record in records(source, remedy):
            yield from questions(record, dropped)

    return read


def records(source: Source, remedy: str) -> Iterator[Record]:
    """The records of a file, streaming."""
    name = plain_name(source.path)
    if is_parquet(source.path):
        for number, fields in enumerate(parquet_rows(source), 1):
            yield Record(f"{source.path}, record {number}", number, fields, name, remedy)
    elif read_head(source.path).lstrip().startswith("[") and not name.endswith(LINE_SUFFIXES):
        for number, (line, fields) in enumerate(_Array(source).members(), 1):
            yield Record(f"{source.path}, record {number} (line {line})", number, fields, name, remedy)
    else:
        for number, line_text in source.lines():
            if line_text.strip():
                fields = parse(line_text, source.path, number)
                yield Record(f"{source.path}, line {number}", number, fields, name, remedy)


@functools.lru_cache(maxsize=4)
def first_record(head: str) -> dict[str, Any]:
    """What the head of a file shows of its first JSON record; a value that is cut off is the empty one of its type."""
    text = head.lstrip()
    if text.startswith("["):
        text = text[1:].lstrip()
    fields: dict[str, Any] = {}
    if not text.startswith("{"):
        return fields
    place = 1
    while True:
        try:
            key, place = _DECODER.raw_decode(text, _blanks(text, place))
            place = _blanks(text, place)
            if not isinstance(key, str) or text[place : place + 1] != ":":
                return fields
            place = _blanks(text, place + 1)
            fields[key] = {'"': "", "[": [], "{": {}}.get(text[place : place + 1])
            fields[key], place = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            return fields
        place = _blanks(text, place)
        if text[place : place + 1] != ",":
            return fields
        place += 1


class _Array:
    """A JSON array that is read a piece at a time."""

    def __init__(self, source: Source):
        self._path, self._chunks = source.path, source.chunks()
        self._text, self._place = "", 0
        self._line, self._counted = 1, 0  # `_line` is that of _text[_counted]

    def members(self) -> Iterator[tuple[int, Any]]:
        """(line, member)"""
        self._next()
        self._place += 1  # "["
        separator = "[" if self._next() != "]" else "]"
        while separator != "]":
            yield self._member()
            separator = self._next()
            if separator == ",":
                self._place += 1
                self._next()
            elif separator != "]":
                raise self._fail("Expecting ',' or ']'", self._place)
        self._place += 1
        if self._next():
            raise self._fail("text after the array", self._place)

    def _member(self) -> tuple[int, Any]:
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._place)
            except (ValueError, RecursionError) as error:
                at, reason = self._place, str(error)
                if isinstance(error, json.JSONDecodeError):
                    at, reason = error.pos, error.msg
                size = len(self._text) - self._place
                if size > MAX_LINE_MB * MEGABYTE:
                    raise UserError(
                        f"{self._path}, line {self._line_of(self._place)}: a record longer than {MAX_LINE_MB} MB; "
                        "cut it into several records"
                    ) from None
                at_end = at + 16 >= len(self._text) or reason.startswith("Unterminated")
                if at_end and self._more(size):
                    continue
                raise self._fail(reason, len(self._text) if at_end else at) from None
            if end == len(self._text) and self._more():
                continue  # a number may go on
            line = self._line_of(self._place)
            self._place = end
            return line, value

    def _next(self) -> str:
        """The next character that is no blank; empty at the end of the file."""
        self._place = _blanks(self._text, self._place)
        while self._place == len(self._text) and self._more():
            self._place = _blanks(self._text, self._place)
        return self._text[self._place : self._place + 1]

    def _more(self, size: int = 1) -> bool:
        """Forget what was read and have at least `size` more characters; False at the end."""
        self._line_of(self._place)
        parts = [self._text[self._place :]]
        self._place = self._counted = 0
        while size > 0 and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk)
            size -= len(chunk)
        self._text = "".join(parts)
        return any(parts[1:])

    def _line_of(self, place: int) -> int:
        self._line += self._text.count("\n", self._counted, place)
        self._counted = place
        return self._line

    def _fail(self, reason: str, at: int) -> UserError:
        remedy = "the file looks cut off; fetch it again" if at >= len(self._text.rstrip()) - 1 else "repair it"
        return UserError(f"{self._path}, line {self._line_of(at)}: not valid JSON ({reason}); {remedy}")


def parse(text: str, path: Path, line: int | None) -> Any:
    """JSON of a line or of a whole file. Of a key that comes twice the last value counts."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = line or error.lineno
        at_end = error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated")
        if not text.endswith("\n") if line else at_end:
            remedy = "the file looks cut off; fetch it again"
        else:
            remedy = "repair or delete the line" if line else "repair it"
        raise UserError(f"{path}, line {at}, column {error.colno}: not valid JSON ({error.msg}); {remedy}") from None
    except (RecursionError, ValueError) as error:
        raise UserError(f"{path}, line {line or 1}: not usable JSON ({error}); repair it") from None


def checked_field(record: Any, key: str, kind: type, where: str, remedy: str) -> Any:
    """`record[key]`, checked: an object that has the key, of the right type, with proper Unicode."""
    if not isinstance(record, dict):
        raise UserError(f"{where}: a {type(record).__name__} where an object should be; {remedy}")
    if key not in record:
        found = ", ".join(name[:40] for name in list(record)[:6]) or "nothing"
        raise UserError(f"{where}: '{key}' is missing (found: {found}); {remedy}")
    value = record[key]
    if not isinstance(value, kind):
        raise UserError(f"{where}: '{key}' is a {type(value).__name__}, not a {kind.__name__}; {remedy}")
    if isinstance(value, str) and _LONE_SURROGATE.search(value):
        raise UserError(f"{where}: '{key}' holds half of a surrogate pair, which is no character; repair the text")
    return value


def identity_of(record: Any, default: str, where: str, remedy: str, key: str = "id") -> str:
    """The record's id as text; `default` where it has none."""
    value = record.get(key) if isinstance(record, dict) else None
    if isinstance(value, int):
        return str(value)
    return default if value is None else str(checked_field(record, key, str, where, remedy))


def passage_id(title: str, text: str) -> str:
    """An id made of the content, so that the passage of two questions is one document."""
    return f"{title}#{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _blanks(text: str, place: int) -> int:
    found = _BLANKS.match(text, place)
    return found.end() if found else place
