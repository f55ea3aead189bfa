"""Records of texts: plain {id?, title?, text}, WikiExtractor, Wikipedia of the Hub, HotpotQA, dated news."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator

from realm_lab.corpus.readers.containers import LINE_SUFFIXES, Record, record_reader, register_shape
from realm_lab.corpus.readers.questions import open_question
from realm_lab.corpus.readers.registry import register_reader
from realm_lab.corpus.records import Document, Span
from realm_lab.corpus.text_files import plain_name
from realm_lab.errors import UserError


def plain_document(record: Record, dropped: Counter[str]) -> Iterator[Document]:
    """A text with what else is known of it."""
    text = _text(record)
    identity, title = record.identity(), record.text("title").strip()
    date = record.text("date").strip()
    yield Document(identity, title, text, title or identity, date, _links(record, text, dropped))


def _extracted(record: Record, dropped: Counter[str]) -> Iterator[Document]:
    """WikiExtractor escapes HTML, and older versions repeat the title above the text."""
    title, text = html.unescape(record.text("title")).strip(), html.unescape(_text(record))
    if title:
        text = text.removeprefix(f"{title}\n\n")
    identity = record.identity()
    yield Document(identity, title, text, title or identity)


def _text(record: Record) -> str:
    """A text, or HotpotQA's list of sentences (with their blanks) or of paragraphs of sentences."""
    value = record.field("text", object)
    if not isinstance(value, list):
        return str(record.field("text", str))
    is_nested = bool(value) and all(isinstance(member, list) for member in value)
    paragraphs = (
        record._replace(fields={"text": member}).texts("text") for member in (value if is_nested else [value])
    )
    return "\n".join(map("".join, paragraphs))


def _links(record: Record, text: str, dropped: Counter[str]) -> tuple[Span, ...]:
    """Gold mentions [start, end, page], as they are; what is no place in the text is counted."""
    spans = []
    for link in record.field("links", list) if record.fields.get("links") else ():
        if not isinstance(link, list) or len(link) != 3 or not isinstance(link[2], str):
            raise UserError(f"{record.where}: a link is not [start, end, page] but {str(link)[:60]}; repair it")
        start, end, page = link
        if type(start) is type(end) is int and 0 <= start < end <= len(text):
            spans.append(Span(start, end, page))
        else:
            dropped["link: not a place in the text"] += 1
    return tuple(spans)


def register() -> None:
    """Register the formats of this file."""
    register_reader(  # what begins as JSON and has no shape that is known: reading it says what its first record lacks
        "json_records",
        lambda path, head: head.lstrip().startswith(("{", "[")) or plain_name(path).endswith(LINE_SUFFIXES),
        read_documents=record_reader(plain_document, "expected {id?, title?, text}; see docs/data.md"),
        read_questions=record_reader(open_question, "expected {id?, question, answer: [texts]}; see docs/data.md"),
    )
    register_shape("texts", {"text"}, "{id?, title?, text}", documents=plain_document)
    register_shape(
        "hotpotqa",
        {"title", "text"},
        "{title, text: [sentences]}",
        documents=plain_document,
        matches=lambda path, fields: isinstance(fields["text"], list),
    )
    register_shape(
        "dated_news",
        {"date", "text"},
        "{id?, date, title?, text, links?: [[start, end, page]]}",
        documents=plain_document,
    )
    register_shape(
        "hub_wikipedia",
        {"id", "url", "title", "text"},
        "{id, url, title, text}",
        documents=plain_document,
        matches=lambda path, fields: "date" not in fields and isinstance(fields["text"], str),
    )
    register_shape(
        "wikiextractor",
        {"id", "url", "title", "text"},
        "{id, url, title, text} of WikiExtractor --json",
        documents=_extracted,
        matches=lambda path, fields: (
            isinstance(fields["text"], str) and (path.name.startswith("wiki_") or "revid" in fields)
        ),
    )
