"""SQuAD v1.1 and v2, one JSON object that is read whole. Each paragraph is a document."""

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
)
from realm_lab.engine.corpus.readers.registry import Dropped, register_reader
from realm_lab.engine.corpus.records import Document, Question
from realm_lab.engine.corpus.text_files import plain_name, read_text
from realm_lab.errors import UserError


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


def _is_squad(path: Path, head: str) -> bool:
    """True for one JSON object with `data` or `paragraphs`, on any number of lines; false for JSON lines."""
    start = head.lstrip()
    if not start.startswith("{") or plain_name(path).endswith(LINE_SUFFIXES):
        return False
    return "data" in first_record(head) or '"paragraphs"' in head


register_reader("squad", _is_squad, read_documents=_documents, read_questions=_questions)
