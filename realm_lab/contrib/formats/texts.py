"""Texts: WikiText's articles under " = Title = ", and records of WikiExtractor, Pyserini and TensorFlow Datasets."""

from __future__ import annotations

import html
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from realm_lab.engine.corpus.readers.documents import text_document
from realm_lab.engine.corpus.readers.inputs import InputFile
from realm_lab.engine.corpus.readers.json_records import Record, register_shape
from realm_lab.engine.corpus.readers.registry import Dropped, register_reader
from realm_lab.engine.corpus.records import Document, Span
from realm_lab.engine.corpus.salient_spans import merge_spans
from realm_lab.engine.corpus.text_files import read_lines

SPAN = ("start", "limit", "type")  # fields of a span of TFDS's salient_span_wikipedia


def _heading(line: str) -> tuple[int, str]:
    """Return (level, title) of a line " = = Title = = "; level 0: no heading."""
    words = line.split()
    level = 0
    while 2 * level + 2 < len(words) and words[level] == "=" == words[-1 - level]:
        level += 1
    return level, " ".join(words[level : len(words) - level])


def _wikitext(file: InputFile, dropped: Dropped) -> Iterator[Document]:
    """Yield a document for each article, with a line for each paragraph; headings of sections are left out."""
    title, first = "", 0
    lines: list[str] = []

    def document() -> Document:
        identity = f"{file.name}:{first}"
        return Document(identity, title, "\n".join(lines), identity)  # several articles have the title "<unk>"

    for number, line in read_lines(file.path):
        level, heading = _heading(line)
        if level == 1:
            if first:
                yield document()
            title, lines, first = heading, [], number
        elif not level and line.strip():
            lines.append(line.strip())
            first = first or number
    if first:
        yield document()


def _is_wikitext(path: Path, head: str) -> bool:
    first = next((line for line in head.split("\n") if line.strip()), "")
    return _heading(first)[0] == 1


def salient_document(record: Record, dropped: Dropped) -> Iterator[Document]:
    """Yield a text with the spans of REALM's authors: a list of {start, limit, type} in bytes, or three lists."""
    identity, title, text = record.identity(), record.text("title").strip(), record.field("text", str)
    given = record.field("spans", object)
    if isinstance(given, dict):
        columns = record.inside("spans", given)
        rows = zip(*(columns.field(name, list) for name in SPAN), strict=False)
        given = [dict(zip(SPAN, row, strict=True)) for row in rows]
    data, spans = text.encode(), []
    for span in record._replace(fields={"spans": given}).within("spans"):
        start, limit = span.field("start", int), span.field("limit", int)
        try:
            before, inside = data[:start].decode(), data[start:limit].decode()
        except UnicodeDecodeError:
            inside = ""
        if not (0 <= start < limit <= len(data) and inside):
            problem = f"bytes {start} to {limit} are no characters of a text of {len(data)} bytes"
            raise span.error(problem, "count bytes from 0, the limit exclusive")
        spans.append(Span(len(before), len(before) + len(inside), span.text("type") or "span"))
    yield Document(identity, title, text, title or identity, spans=merge_spans(spans))


def _has_limits(path: Path, fields: dict[str, Any]) -> bool:
    """True if spans have the form of TFDS."""
    spans = fields["spans"]
    first = spans[0] if isinstance(spans, list) and spans else spans
    return isinstance(first, dict) and (not first or "limit" in first)


def _extracted(record: Record, dropped: Dropped) -> Iterator[Document]:
    """Undo WikiExtractor's escapes of HTML, and remove the title that its older versions repeat above the text."""
    title, text = html.unescape(record.text("title")).strip(), html.unescape(record.field("text", str))
    identity = record.identity()
    yield Document(identity, title, text.removeprefix(f"{title}\n\n" if title else ""), title or identity)


register_reader("wikitext", _is_wikitext, read_documents=_wikitext)
register_shape("pyserini", {"contents"}, "{id?, title?, contents}", documents=partial(text_document, key="contents"))
register_shape(
    "salient_span_wikipedia",
    {"text", "spans"},
    "{title, text, spans: {start: [bytes], limit: [bytes], type: [texts]}} (TFDS's salient_span_wikipedia)",
    documents=salient_document,
    matches=_has_limits,
)
register_shape(
    "wikiextractor",
    {"id", "url", "title", "text"},
    "{id, url, title, text} of WikiExtractor --json",
    documents=_extracted,
    matches=lambda path, fields: path.name.startswith("wiki_") or "revid" in fields,
)
