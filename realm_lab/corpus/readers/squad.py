"""SQuAD v1.1 and v2: one JSON object, read whole, or a record each question; and paragraphs that a later edition swaps.

Each paragraph is a document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from realm_lab.corpus.readers.containers import (
    LINE_SUFFIXES,
    Record,
    first_record,
    parse,
    passage_id,
    register_shape,
)
from realm_lab.corpus.readers.registry import register_reader
from realm_lab.corpus.records import Document, Question
from realm_lab.corpus.text_files import Source, plain_name
from realm_lab.errors import UserError

LATER = "@new"  # ends the id of a paragraph's later edition


def readable_title(title: str) -> str:
    """A page name of a URL as people write it: "Jehovah%27s_Witnesses" -> "Jehovah's Witnesses"."""
    try:
        title = unquote(title, errors="strict")
    except UnicodeDecodeError:
        pass  # a plain per cent sign, not an encoding
    return title.replace("_", " ").strip()


def _paragraphs(source: Source) -> Iterator[tuple[str, Record]]:
    """(article, paragraph) of a SQuAD file; a paragraph's number is counted within its title, from 0."""
    path = source.path
    content = parse(source.text(), path, None)
    remedy = "expected SQuAD JSON: data[] / title, paragraphs[] / context, qas[]"
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list) or not articles:
        raise UserError(f"{path}: no articles under 'data'; {remedy}")
    numbers: Counter[str] = Counter()
    for position, fields in enumerate(articles, 1):
        article = Record(f"{path}, article {position}", position, fields, plain_name(path), remedy)
        title = article.field("title", str)
        for number, paragraph in enumerate(article.field("paragraphs", list), 1):
            where = f"{article.where} ('{title}'), paragraph {number}"
            Record(where, number, paragraph, article.file, remedy).field("context", str)
            place = f"{path}, paragraph {title}#{numbers[title]}"
            remedy_of_questions = "expected qas[] / id, question, answers[] / text"
            yield title, Record(place, numbers[title], paragraph, article.file, remedy_of_questions)
            numbers[title] += 1


def _documents(source: Source, dropped: Counter[str]) -> Iterator[Document]:
    for article, paragraph in _paragraphs(source):
        context = paragraph.field("context", str)
        yield Document(f"{article}#{paragraph.number}", readable_title(article), context, article)


def _questions(source: Source, dropped: Counter[str]) -> Iterator[Question]:
    for question, is_impossible in squad_questions(source):
        if is_impossible:
            dropped["question: unanswerable"] += 1
        else:
            yield question


def squad_questions(source: Source) -> Iterator[tuple[Question, bool | None]]:
    """Every question, and whether it is impossible (None: v1.1, which does not say)."""
    for article, paragraph in _paragraphs(source):
        for number, fields in enumerate(paragraph.field("qas", list), 1):
            item = paragraph._replace(where=f"{paragraph.where}, question {number}", fields=fields)
            question = item.field("question", str)
            answers = item.field("answers", list)
            texts = tuple(item._replace(fields=answer).field("text", str) for answer in answers)
            if fields.get("id") is None:
                raise UserError(f"{item.where}: no 'id'; {item.remedy}")
            is_impossible = item.field("is_impossible", bool) if "is_impossible" in fields else None
            yield Question(item.identity(), question, texts, f"{article}#{paragraph.number}"), is_impossible


def _flat_document(record: Record, dropped: Counter[str]) -> Iterator[Document]:
    title, context = record.field("title", str), record.field("context", str)
    yield Document(passage_id(title, context), readable_title(title), context, title)


def _flat_question(record: Record, dropped: Counter[str]) -> Iterator[Question]:
    document = passage_id(record.field("title", str), record.field("context", str))
    question, answers = record.field("question", str), record.field("answers", dict)
    texts = record._replace(where=f"{record.where}, answers", fields=answers).texts("text")
    if not texts:
        dropped["question: unanswerable"] += 1
        return
    yield Question(record.identity(), question, texts, document)


def _both_editions(record: Record, dropped: Counter[str]) -> Iterator[Document]:
    """The earlier edition has the id that SQuAD's reader gives the paragraph; the later one ends in LATER."""
    identity, article = _paragraph_id(record), record.field("title", str)
    title = readable_title(article)
    yield Document(identity, title, record.field("old_context", str), article)
    yield Document(identity + LATER, title, record.field("new_context", str), article)


def _swapped_questions(record: Record, dropped: Counter[str]) -> Iterator[Question]:
    """Both kinds; `answers_updated` tells what the later edition answers, the same where nothing was changed."""
    document = _paragraph_id(record)
    for item in record.within("swapped"):
        old, new = item.field("old_answer", str), item.field("new_answer", str)
        yield Question(item.identity(), item.field("question", str), (old,), document, answers_updated=(new,))
    for item in record.within("unchanged"):
        answers = item.texts("answer")
        yield Question(item.identity(), item.field("question", str), answers, document, answers_updated=answers)


def _paragraph_id(record: Record) -> str:
    return f"{record.field('title', str)}#{record.field('paragraph', int)}"


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
    register_shape(
        "swapped_paragraphs",
        {"title", "paragraph", "old_context", "new_context"},
        "{title, paragraph, old_context, new_context, swapped: [{id, question, old_answer, new_answer}], "
        "unchanged: [{id, question, answer}]}",
        documents=_both_editions,
        questions=_swapped_questions,
    )
