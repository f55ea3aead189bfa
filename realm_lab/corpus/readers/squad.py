"""SQuAD v1.1 and v2: one JSON object, read whole, or a record each question; each paragraph is a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from realm_lab.corpus.readers.containers import (
    LINE_SUFFIXES,
    Record,
    checked_field,
    first_record,
    identity_of,
    parse,
    passage_id,
    register_shape,
)
from realm_lab.corpus.readers.registry import register_reader
from realm_lab.corpus.records import Document, Question
from realm_lab.corpus.text_files import Source, plain_name
from realm_lab.errors import UserError

DROPPED_UNANSWERABLE = "question: unanswerable"


def readable_title(title: str) -> str:
    """A page name of a URL as people write it: "Jehovah%27s_Witnesses" -> "Jehovah's Witnesses"."""
    try:
        title = unquote(title, errors="strict")
    except UnicodeDecodeError:
        pass  # a plain per cent sign, not an encoding
    return title.replace("_", " ").strip()


def _paragraphs(source: Source) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(article, document id, paragraph) of a SQuAD file; paragraphs are numbered within their title."""
    path = source.path
    content = parse(source.text(), path, None)
    remedy = "expected SQuAD JSON: data[] / title, paragraphs[] / context, qas[]"
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list) or not articles:
        raise UserError(f"{path}: no articles under 'data'; {remedy}")
    numbers: Counter[str] = Counter()
    for position, article in enumerate(articles, 1):
        where = f"{path}, article {position}"
        title = checked_field(article, "title", str, where, remedy)
        for number, paragraph in enumerate(checked_field(article, "paragraphs", list, where, remedy), 1):
            checked_field(paragraph, "context", str, f"{where} ('{title}'), paragraph {number}", remedy)
            yield title, f"{title}#{numbers[title]}", paragraph
            numbers[title] += 1


def _documents(source: Source, dropped: Counter[str]) -> Iterator[Document]:
    for article, identity, paragraph in _paragraphs(source):
        yield Document(identity, readable_title(article), paragraph["context"], article)


def _questions(source: Source, dropped: Counter[str]) -> Iterator[Question]:
    for question, is_impossible in squad_questions(source):
        if is_impossible:
            dropped[DROPPED_UNANSWERABLE] += 1
        else:
            yield question


def squad_questions(source: Source) -> Iterator[tuple[Question, bool | None]]:
    """Every question, and whether it is impossible (None: v1.1, which does not say)."""
    remedy = "expected qas[] / id, question, answers[] / text"
    for _, document, paragraph in _paragraphs(source):
        place = f"{source.path}, paragraph {document}"
        for number, item in enumerate(checked_field(paragraph, "qas", list, place, remedy), 1):
            where = f"{place}, question {number}"
            question = checked_field(item, "question", str, where, remedy)
            answers = checked_field(item, "answers", list, where, remedy)
            texts = tuple(checked_field(answer, "text", str, where, remedy) for answer in answers)
            if item.get("id") is None:
                raise UserError(f"{where}: no 'id'; {remedy}")
            identity = identity_of(item, "", where, remedy)
            is_impossible = (
                checked_field(item, "is_impossible", bool, where, remedy) if "is_impossible" in item else None
            )
            yield Question(identity, question, texts, document), is_impossible


def _flat_document(record: Record, dropped: Counter[str]) -> Iterator[Document]:
    title, context = record.field("title", str), record.field("context", str)
    yield Document(passage_id(title, context), readable_title(title), context, title)


def _flat_question(record: Record, dropped: Counter[str]) -> Iterator[Question]:
    document = passage_id(record.field("title", str), record.field("context", str))
    question, answers = record.field("question", str), record.field("answers", dict)
    texts = Record(f"{record.where}, answers", record.number, answers, record.file, record.remedy).texts("text")
    if not texts:
        dropped[DROPPED_UNANSWERABLE] += 1
        return
    yield Question(record.identity(), question, texts, document)


def _is_squad(path: Path, head: str) -> bool:
    """One JSON object with `data`, or one that goes on over lines; never a file of JSON lines."""
    start = head.lstrip()
    if not start.startswith("{") or plain_name(path).endswith(LINE_SUFFIXES):
        return False
    return "data" in first_record(head) or '"paragraphs"' in head


def register() -> None:
    """Register the formats of this file."""
    register_reader("squad", _is_squad, read_documents=_documents, read_questions=_questions)
    register_shape(
        "hub_squad",
        {"title", "context", "question", "answers"},
        "{id, title, context, question, answers: {text: [texts]}}",
        documents=_flat_document,
        questions=_flat_question,
    )
