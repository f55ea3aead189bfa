"""SQuAD v1.1 and v2, one JSON object that is read whole; and paragraphs with answers swapped in a later version.

Each paragraph is a document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from realm_lab.engine.corpus.readers.inputs import InputFile
from realm_lab.engine.corpus.readers.json_records import (
    LINE_SUFFIXES,
    Record,
    first_record,
    parse,
    register_shape,
)
from realm_lab.engine.corpus.readers.registry import Dropped, register_reader
from realm_lab.engine.corpus.records import Document, Question
from realm_lab.engine.corpus.text_files import plain_name, read_text
from realm_lab.errors import UserError

LATER = "@new"  # ends the id of a paragraph's later version


def readable_title(title: str) -> str:
    """A page name of a URL as people write it: "Jehovah%27s_Witnesses" -> "Jehovah's Witnesses"."""
    try:
        title = unquote(title, errors="strict")
    except UnicodeDecodeError:
        pass  # a plain per cent sign, not an encoding
    return title.replace("_", " ").strip()


def _paragraphs(file: InputFile, dropped: Dropped) -> Iterator[tuple[str, Record]]:
    """Yield (article, paragraph) of a SQuAD file; a paragraph's number is counted within its title, from 0."""
    path = file.path
    content = parse(read_text(path), path)
    remedy = "expected SQuAD JSON: data[] / title, paragraphs[] / context, qas[] / id, question, answers[] / text"
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list) or not articles:
        raise UserError("no articles under 'data'", remedy, path=path)
    numbers: Counter[str] = Counter()
    for position, fields in enumerate(articles, 1):
        article = Record(file, position, fields, remedy, dropped, part=f"article {position}")
        title = article.field("title", str)
        for number, paragraph in enumerate(article.field("paragraphs", list), 1):
            found = article.inside(f"paragraph {number}", paragraph)._replace(number=numbers[title])
            found.field("context", str)
            yield title, found._replace(part=f"paragraph {title}#{numbers[title]}")
            numbers[title] += 1


def _documents(file: InputFile, dropped: Dropped) -> Iterator[Document]:
    for article, paragraph in _paragraphs(file, dropped):
        context = paragraph.field("context", str)
        yield Document(f"{article}#{paragraph.number}", readable_title(article), context, article)


def _questions(file: InputFile, dropped: Dropped) -> Iterator[Question]:
    for article, paragraph in _paragraphs(file, dropped):
        for number, fields in enumerate(paragraph.field("qas", list), 1):
            item = paragraph.inside(f"question {number}", fields)
            question = item.field("question", str)
            answers = item.field("answers", list)
            texts = tuple(item._replace(fields=answer).field("text", str) for answer in answers)
            if fields.get("id") is None:
                raise item.error("no 'id'")
            if "is_impossible" in fields and item.field("is_impossible", bool):
                dropped.leave_out("question: unanswerable", item.identity())
            else:
                yield Question(item.identity(), question, texts, f"{article}#{paragraph.number}")


def _both_versions(record: Record, dropped: Dropped) -> Iterator[Document]:
    """Yield a paragraph's earlier version, with the id that SQuAD's reader gives it, and the later, ending in LATER."""
    identity, article = _paragraph_id(record), record.field("title", str)
    title = readable_title(article)
    yield Document(identity, title, record.field("old_context", str), article)
    yield Document(identity + LATER, title, record.field("new_context", str), article)


def _swapped_questions(record: Record, dropped: Dropped) -> Iterator[Question]:
    """Read both kinds; `answers_updated` has the answers in the later version, the same if nothing was changed."""
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
    """One JSON object with `data`, also over several lines; never a file of JSON lines."""
    start = head.lstrip()
    if not start.startswith("{") or plain_name(path).endswith(LINE_SUFFIXES):
        return False
    return "data" in first_record(head) or '"paragraphs"' in head


register_reader("squad", _is_squad, read_documents=_documents, read_questions=_questions)
register_shape(
    "swapped_paragraphs",
    {"title", "paragraph", "old_context", "new_context"},
    "{title, paragraph, old_context, new_context, swapped: [{id, question, old_answer, new_answer}], "
    "unchanged: [{id, question, answer}]}",
    documents=_both_versions,
    questions=_swapped_questions,
)
