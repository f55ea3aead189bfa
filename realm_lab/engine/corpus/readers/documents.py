"""Texts: plain text in paragraphs, and records {id?, title?, text}."""

from __future__ import annotations

import re
from collections.abc import Iterator

from realm_lab.engine.corpus.readers.inputs import InputFile
from realm_lab.engine.corpus.readers.json_records import (
    LINE_SUFFIXES,
    Record,
    open_question,
    record_reader,
    register_shape,
)
from realm_lab.engine.corpus.readers.registry import Dropped, register_reader
from realm_lab.engine.corpus.records import Document, Span
from realm_lab.engine.corpus.salient_spans import merge_spans
from realm_lab.engine.corpus.text_files import HEAD_BYTES, plain_name, read_head, read_lines
from realm_lab.errors import UserError

_TAG = re.compile(r"O|[BIESLUM]-[A-Za-z]\S*")
LONGEST_PARAGRAPH = 100_000  # characters: a longer one is cut at a line end


def _paragraphs(file: InputFile, dropped: Dropped) -> Iterator[Document]:
    """Read paragraphs separated by blank lines. Those of one file are one article, without a title.

    UserError: the file is a table, such as CoNLL's words with their tags.
    """
    if what := _table(read_head(file.path)):
        raise UserError(f"{what}, not text", "convert it to paragraphs with blank lines between them", path=file.path)
    name = file.name
    lines: list[str] = []
    first = size = 0
    for number, line in read_lines(file.path):
        is_blank = not line.strip()
        if lines and (is_blank or size > LONGEST_PARAGRAPH):
            yield Document(f"{name}:{first}", "", "\n".join(lines), name)
            lines, size = [], 0
        if not is_blank:
            first = first if lines else number
            lines.append(line.rstrip("\r\n"))
            size += len(line)
    if lines:
        yield Document(f"{name}:{first}", "", "\n".join(lines), name)


def _table(head: str) -> str:
    """Describe the table in a file's head: words with their tags, or lines of equally many columns; "" for text."""
    is_cut = len(head.encode()) > HEAD_BYTES - 4  # a character cut at the end leaves out up to 3 bytes
    lines = head.split("\n")[: -1 if is_cut else None]
    lines = [line.strip("\r") for line in lines if line.strip() and not line.startswith(("#", "-DOCSTART-"))]
    words = map(str.split, lines)
    if len(lines) > 1 and all(len(own) > 1 and _TAG.fullmatch(own[-1]) for own in words):
        return "has a word and its tags on each line (CoNLL)"
    columns = {line.count("\t") + 1 for line in lines}
    if len(lines) > 1 and len(columns) == 1 and columns != {1}:
        return f"has {columns.pop()} columns on each line"
    return ""


def text_document(record: Record, dropped: Dropped, key: str = "text") -> Iterator[Document]:
    """Yield the text under `key` as a document, with the record's id and title if it has them."""
    identity, title = record.identity(), record.text("title").strip()
    yield Document(identity, title, record.field(key, str), title or identity)


def _marked(record: Record, dropped: Dropped) -> Iterator[Document]:
    """Yield a text whose salient spans the record lists, such as the links that people set in it."""
    identity, title, text = record.identity(), record.text("title").strip(), record.field("text", str)
    spans = []
    for given in record.field("spans", list):
        match given:
            case [int(start), int(end), *label] if 0 <= start < end <= len(text) and len(label) <= 1:
                spans.append(Span(start, end, str(label[0]) if label else "span"))
            case _:
                problem = f"the span {given!r} is not [start, end, label?] in a text of {len(text)} characters"
                raise record.error(problem, "count characters from 0, the end exclusive")
    article = record.text("article") or title or identity
    yield Document(identity, title, text, article, spans=merge_spans(spans))


register_reader(
    "plain_text",
    lambda path, head: plain_name(path).endswith(".txt") and not head.lstrip().startswith(("{", "[")),
    read_documents=_paragraphs,
)
register_reader(  # JSON without a known shape: the reader's error names the missing fields of its first record
    "json_records",
    lambda path, head: head.lstrip().startswith(("{", "[")) or plain_name(path).endswith(LINE_SUFFIXES),
    read_documents=record_reader(text_document, "expected {id?, title?, text}; see docs/data.md"),
    read_questions=record_reader(open_question, "expected {id?, question, answer: [texts]}; see docs/data.md"),
)
register_shape("texts", {"text"}, "{id?, title?, text}", documents=text_document)
register_shape(
    "marked_texts", {"text", "spans"}, "{id?, title?, text, spans: [[start, end, label?]], article?}", documents=_marked
)
