"""Readers of the formats of the field: files in, `Document` and `Question` records out.

A format is recognised by the file's name and first characters. Known: SQuAD v1.1 and v2 (JSON), JSON lines
and JSON arrays of {id?, title?, text} or of {id?, question, answer | answers, document?} (NQ-Open,
WebQuestions and CuratedTREC as DrQA writes them), and DPR's psgs_w100.tsv. Each may be compressed with
gzip, bzip2 or Zstandard. `register_reader` adds a format.

Bad input is a UserError that names file, line (or article and paragraph) and remedy. A record that is
well-formed but of no use is left out and counted by reason in the `dropped` argument.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from realm_lab.corpus.answers import normalise_answer
from realm_lab.corpus.records import Document, Question
from realm_lab.corpus.text_files import plain_name, read_head, read_lines, read_text
from realm_lab.errors import UserError

DROPPED_EMPTY_TEXT = "document: empty text"
DROPPED_DUPLICATE_DOCUMENT = "document: duplicate id"
DROPPED_EMPTY_QUESTION = "question: empty text"
DROPPED_DUPLICATE_QUESTION = "question: duplicate id"
DROPPED_NO_ANSWER = "question: no answer"
DROPPED_EMPTY_ANSWER = "answer: normalises to nothing"

DocumentReader = Callable[[Path, Counter[str]], Iterator[Document]]
QuestionReader = Callable[[Path, Counter[str]], Iterator[Question]]


class Reader(NamedTuple):
    """A file format: how it is recognised and read."""

    name: str
    matches: Callable[[Path, str], bool]  # (path, first characters of the text) -> is it this format?
    read_documents: DocumentReader | None  # None: this format holds no documents
    read_questions: QuestionReader | None  # None: this format holds no questions


READERS: dict[str, Reader] = {}


def register_reader(
    name: str,
    matches: Callable[[Path, str], bool],
    *,
    read_documents: DocumentReader | None = None,
    read_questions: QuestionReader | None = None,
) -> None:
    """Add a format; the latest registration is asked first, a known name is replaced."""
    READERS.pop(name, None)
    READERS[name] = Reader(name, matches, read_documents, read_questions)


def find_reader(path: Path | str) -> Reader:
    """The reader for a file, by its name and first characters; an unknown format is a UserError."""
    head = read_head(Path(path))
    for reader in reversed(READERS.values()):
        if reader.matches(Path(path), head):
            return reader
    raise UserError(
        f"{path}: format not recognised; expected SQuAD JSON, JSON lines with 'text' or 'question' and 'answer', "
        "or a TSV with the header id, text, title"
    )


def read_documents(path: Path | str, dropped: Counter[str] | None = None) -> Iterator[Document]:
    """The documents of a file, in its order. Ids are unique; what is left out is counted in `dropped`.

    Raises:
        UserError: the file is missing, empty, cut off, wrongly encoded or of the wrong shape.
    """
    reader = find_reader(path)
    if reader.read_documents is None:
        raise UserError(f"{path}: format '{reader.name}' holds no documents; name a file of texts")
    dropped = Counter() if dropped is None else dropped
    seen: set[str] = set()
    for document in reader.read_documents(Path(path), dropped):
        if not document.text.strip():
            dropped[DROPPED_EMPTY_TEXT] += 1
        elif document.id in seen:
            dropped[DROPPED_DUPLICATE_DOCUMENT] += 1
        else:
            seen.add(document.id)
            yield document


def read_questions(path: Path | str, dropped: Counter[str] | None = None) -> Iterator[Question]:
    """The questions of a file, in its order, each with at least one answer that is worth scoring.

    Answers are stripped and those that occur twice are merged. Ids are unique; what is left out is counted in
    `dropped`.

    Raises:
        UserError: the file is missing, empty, cut off, wrongly encoded or of the wrong shape.
    """
    reader = find_reader(path)
    if reader.read_questions is None:
        raise UserError(f"{path}: format '{reader.name}' holds no questions; name a file of questions and answers")
    dropped = Counter() if dropped is None else dropped
    seen: set[str] = set()
    for question in reader.read_questions(Path(path), dropped):
        kept = []
        for answer in dict.fromkeys(answer.strip() for answer in question.answers):
            if not normalise_answer(answer):  # it would equal every other answer of its kind
                dropped[DROPPED_EMPTY_ANSWER] += 1
            else:
                kept.append(answer)
        text = question.question.strip()
        if not text:
            dropped[DROPPED_EMPTY_QUESTION] += 1
        elif question.id in seen:
            dropped[DROPPED_DUPLICATE_QUESTION] += 1
        elif not kept:
            dropped[DROPPED_NO_ANSWER] += 1
        else:
            seen.add(question.id)
            yield question._replace(question=text, answers=tuple(kept))


def readable_title(title: str) -> str:
    """A page name of a URL as people write it: "Jehovah%27s_Witnesses" -> "Jehovah's Witnesses"."""
    try:
        title = unquote(title, errors="strict")
    except UnicodeDecodeError:
        pass  # a plain per cent sign, not an encoding
    return title.replace("_", " ").strip()


# SQuAD ----------------------------------------------------------------------------------------------------------


def _squad_paragraphs(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(article, document id, paragraph) of a SQuAD file; paragraphs are numbered within their title."""
    content = _parse(read_text(path), path, None)
    remedy = "expected SQuAD JSON: data[] / title, paragraphs[] / context, qas[]"
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list) or not articles:
        raise UserError(f"{path}: no articles under 'data'; {remedy}")
    numbers: Counter[str] = Counter()
    for position, article in enumerate(articles, 1):
        where = f"{path}, article {position}"
        title = _field(article, "title", str, where, remedy)
        for number, paragraph in enumerate(_field(article, "paragraphs", list, where, remedy), 1):
            _field(paragraph, "context", str, f"{where} ('{title}'), paragraph {number}", remedy)
            yield title, f"{title}#{numbers[title]}", paragraph
            numbers[title] += 1


def _squad_documents(path: Path, dropped: Counter[str]) -> Iterator[Document]:
    for article, identity, paragraph in _squad_paragraphs(path):
        yield Document(identity, readable_title(article), paragraph["context"], article)


def _squad_questions(path: Path, dropped: Counter[str]) -> Iterator[Question]:
    remedy = "expected qas[] / id, question, answers[] / text"
    for _, document, paragraph in _squad_paragraphs(path):
        for number, item in enumerate(_field(paragraph, "qas", list, f"{path}, paragraph {document}", remedy), 1):
            where = f"{path}, paragraph {document}, question {number}"
            answers = _field(item, "answers", list, where, remedy)
            texts = tuple(_field(answer, "text", str, where, remedy) for answer in answers)
            identity = _identity(item, f"{document}?{number}", where, remedy)
            yield Question(identity, _field(item, "question", str, where, remedy), texts, document)


# JSON lines and JSON arrays -------------------------------------------------------------------------------------


def _line_records(path: Path) -> Iterator[tuple[str, int, Any]]:
    """(place, number, record) of each line that is not blank."""
    for number, line in read_lines(path):
        if line.strip():
            yield f"{path}, line {number}", number, _parse(line, path, number)


def _array_records(path: Path) -> Iterator[tuple[str, int, Any]]:
    """(place, number, record) of each member of a JSON array."""
    for number, record in enumerate(_parse(read_text(path), path, None), 1):
        yield f"{path}, record {number}", number, record


def _documents_of(records: Callable[[Path], Iterable[tuple[str, int, Any]]]) -> DocumentReader:
    def read(path: Path, dropped: Counter[str]) -> Iterator[Document]:
        remedy = "expected {id?, title?, text}"
        for where, number, record in records(path):
            text = _field(record, "text", str, where, remedy)
            identity = _identity(record, f"{plain_name(path)}:{number}", where, remedy)
            title = _field(record, "title", str, where, remedy) if record.get("title") is not None else ""
            yield Document(identity, title.strip(), text, title.strip() or identity)

    return read


def _questions_of(records: Callable[[Path], Iterable[tuple[str, int, Any]]]) -> QuestionReader:
    def read(path: Path, dropped: Counter[str]) -> Iterator[Question]:
        remedy = "expected {id?, question, answer: [texts], document?}"
        for where, number, record in records(path):
            question = _field(record, "question", str, where, remedy)
            key = "answers" if "answer" not in record and "answers" in record else "answer"
            answers = [record[key]] if isinstance(record.get(key), str) else _field(record, key, list, where, remedy)
            for place, answer in enumerate(answers, 1):
                _field({f"{key} {place}": answer}, f"{key} {place}", str, where, remedy)
            identity = _identity(record, f"{plain_name(path)}:{number}", where, remedy)
            document = record.get("document")
            yield Question(identity, question, tuple(answers), None if document is None else str(document))

    return read


# DPR ------------------------------------------------------------------------------------------------------------


def _dpr_documents(path: Path, dropped: Counter[str]) -> Iterator[Document]:
    rows = csv.reader((line for _, line in read_lines(path)), delimiter="\t", strict=True)
    remedy = "expected three columns: id, text, title (psgs_w100.tsv of DPR)"
    try:
        header = next(rows)
        if header[:3] != ["id", "text", "title"]:
            raise UserError(f"{path}, line 1: header {header}; {remedy}")
        for row in rows:
            if len(row) != 3:
                raise UserError(f"{path}, line {rows.line_num}: {len(row)} columns; {remedy}, or the file is cut off")
            identity, text, title = row
            yield Document(identity, title.strip(), text, title.strip() or identity)
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.line_num}: not readable as TSV ({error}); {remedy}") from None


# Shared ---------------------------------------------------------------------------------------------------------

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def _parse(text: str, path: Path, line: int | None) -> Any:
    """JSON of a line or of a whole file."""
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


def _field(record: Any, key: str, kind: type, where: str, remedy: str) -> Any:
    """`record[key]`, checked: an object that has the key, of the right type, with proper Unicode."""
    if not isinstance(record, dict):
        raise UserError(f"{where}: a {type(record).__name__} where an object should be; {remedy}")
    if key not in record:
        found = ", ".join(list(record)[:6]) or "nothing"
        raise UserError(f"{where}: '{key}' is missing (found: {found}); {remedy}")
    value = record[key]
    if not isinstance(value, kind):
        raise UserError(f"{where}: '{key}' is a {type(value).__name__}, not a {kind.__name__}; {remedy}")
    if isinstance(value, str) and _LONE_SURROGATE.search(value):
        raise UserError(f"{where}: '{key}' holds half of a surrogate pair, which is no character; repair the text")
    return value


def _identity(record: dict[str, Any], default: str, where: str, remedy: str) -> str:
    """The record's id as text; `default` where it has none."""
    value = record.get("id")
    if isinstance(value, int):
        return str(value)
    return default if value is None else str(_field(record, "id", str, where, remedy))


def _is_lines(path: Path, head: str) -> bool:
    """JSON lines: by name, or because the first line is an object of its own that is not a SQuAD file."""
    name = plain_name(path)
    if name.endswith((".jsonl", ".jsonlines", ".ndjson")):
        return True
    if not head.lstrip().startswith("{"):
        return False
    line, line_end, _ = head.lstrip().partition("\n")
    try:
        return "data" not in json.loads(line)
    except ValueError:
        return not line_end and '"data"' not in line  # one line, longer than the head


register_reader(
    "squad",
    lambda path, head: head.lstrip().startswith("{") and (plain_name(path).endswith(".json") or '"paragraphs"' in head),
    read_documents=_squad_documents,
    read_questions=_squad_questions,
)
register_reader(
    "json_lines",
    _is_lines,
    read_documents=_documents_of(_line_records),
    read_questions=_questions_of(_line_records),
)
register_reader(
    "json_array",
    lambda path, head: head.lstrip().startswith("[") and not plain_name(path).endswith((".jsonl", ".jsonlines")),
    read_documents=_documents_of(_array_records),
    read_questions=_questions_of(_array_records),
)
register_reader(
    "dpr_tsv",
    lambda path, head: plain_name(path).endswith(".tsv") or head.startswith("id\ttext\ttitle"),
    read_documents=_dpr_documents,
)
