"""Tables: TSV or CSV of documents (DPR's psgs_w100.tsv) or questions (DPR's qa.csv), and CuratedTREC (unquoted)."""

from __future__ import annotations

import ast
import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from realm_lab.engine.corpus.readers.documents import text_document
from realm_lab.engine.corpus.readers.inputs import InputFile
from realm_lab.engine.corpus.readers.json_records import Record, open_question
from realm_lab.engine.corpus.readers.registry import Dropped, register_reader
from realm_lab.engine.corpus.records import Document, Question
from realm_lab.engine.corpus.text_files import MAX_LINE_MB, MEGABYTE, plain_name, read_lines
from realm_lab.errors import UserError

DPR_HEADER = ["id", "text", "title"]
TREC_COLUMNS = 4
LISTS = ("answer", "answers", "groups")  # columns whose cells may be a list of texts, as Python or JSON writes it
DOCUMENTS = "expected columns id, text, title (psgs_w100.tsv of DPR), named by a header; id and title are optional"
QUESTIONS = "expected the columns question, answer under a header, or separated by a tab without one (DPR's qa.csv)"


def is_header(names: Sequence[str]) -> bool:
    """True for names of columns of documents or of questions."""
    return "text" in names or ("question" in names and bool({"answer", "answers"} & {*names}))


def table_records(
    file: InputFile, remedy: str, dropped: Dropped, known: Callable[[Sequence[str]], bool] = is_header
) -> Iterator[Record]:
    """Yield the rows as records with the names in the header; without a header: question, answer. Columns may be quoted
    as in CSV. `known`: true for the names of a header."""
    path = file.path
    csv.field_size_limit(MAX_LINE_MB * MEGABYTE)  # a quote without its end would read all the rest
    _, first = next(read_lines(path))
    delimiter, header = _delimiter(first), _header(first, known)
    names = header or ["question", "answer"]
    if not header and delimiter != "\t":  # any file with commas could be read as questions
        raise UserError("no such header", remedy, path=path, line=1)
    rows = csv.reader((line for _, line in read_lines(path)), delimiter=delimiter, strict=True)
    line = 1
    try:
        for row in rows:
            record = Record(file, line, {}, remedy, dropped, line)
            if row and len(row) != len(names):
                raise record.error(f"{len(row)} columns, not {len(names)}", f"{remedy}, or the file is cut off")
            if row and not (header and line == 1):
                cells = zip(names, row, strict=True)
                yield record._replace(fields={name: _cell(name, cell, record) for name, cell in cells})
            line = rows.line_num + 1
    except csv.Error as error:
        kind = "TSV" if delimiter == "\t" else "CSV"
        raise UserError(
            f"not readable as {kind} ({error})", f"close its quotes; {remedy}", path=path, line=line
        ) from None


def _documents(file: InputFile, dropped: Dropped) -> Iterator[Document]:
    for record in table_records(file, DOCUMENTS, dropped):
        yield from text_document(record, dropped)


def _questions(file: InputFile, dropped: Dropped) -> Iterator[Question]:
    for record in table_records(file, QUESTIONS, dropped):
        yield from open_question(record, dropped)


def _cell(name: str, cell: str, record: Record) -> Any:
    """Return the text of a cell, or the list of texts in it."""
    if name in LISTS and cell.startswith("[") and cell.endswith("]"):
        try:
            return ast.literal_eval(cell)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise record.error(f"'{name}' is no list of texts", "write it as ['one', 'two']") from None
    return cell


def _delimiter(first: str) -> str:
    return next((mark for mark in "\t;" if mark in first), ",")


def _header(first: str, known: Callable[[Sequence[str]], bool] = is_header) -> list[str]:
    """Return the names of the columns; an empty list if the first line is no header."""
    names = [name.strip(' "\r\n').lower() for name in first.split(_delimiter(first))]
    return names if known(names) else []


def _first_header(head: str) -> list[str]:
    return _header(head.split("\n", 1)[0])


def _is_table(path: Path) -> bool:
    return plain_name(path).endswith((".tsv", ".csv"))


def _trec_questions(file: InputFile, dropped: Dropped) -> Iterator[Question]:
    """Read lines of id, type, question and pattern. Further tabs belong to the pattern, as in question 462."""
    for number, line in read_lines(file.path):
        if not line.strip():
            continue
        columns = line.rstrip("\r\n").split("\t", TREC_COLUMNS - 1)
        if len(columns) < TREC_COLUMNS:
            raise UserError(
                f"{len(columns)} columns",
                "expected id, type, question, pattern (CuratedTREC), or the file is cut off",
                path=file.path,
                line=number,
            )
        identity, _, question, pattern = columns
        yield Question(identity, question, (pattern,), None, "regex")


def _is_trec(path: Path, head: str) -> bool:
    first = head.split("\n", 1)[0].split("\t")
    return len(first) >= TREC_COLUMNS and first[0].isdecimal() and not head.startswith(("{", "["))


register_reader(
    "question_table",
    lambda path, head: _is_table(path) or "question" in _first_header(head),
    read_questions=_questions,
)
register_reader(
    "text_table",
    lambda path, head: head.startswith("\t".join(DPR_HEADER)) or (_is_table(path) and "text" in _first_header(head)),
    read_documents=_documents,
)
register_reader("curated_trec_table", _is_trec, read_questions=_trec_questions)
