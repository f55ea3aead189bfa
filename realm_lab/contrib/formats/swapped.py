"""Paragraphs of SQuAD with answers swapped in a later version, for a corpus update. Each version is a document."""

from __future__ import annotations

from collections.abc import Iterator

from realm_lab.engine.corpus.readers.json_records import Record, register_shape
from realm_lab.engine.corpus.readers.registry import Dropped
from realm_lab.engine.corpus.readers.squad import readable_title
from realm_lab.engine.corpus.records import Document, Question

LATER = "@new"  # ends the id of a paragraph's later version


def _both_versions(record: Record, dropped: Dropped) -> Iterator[Document]:
    """Yield both versions of a paragraph: the earlier with the id from SQuAD's reader, the later with LATER added."""
    identity, article = _paragraph_id(record), record.field("title", str)
    title = readable_title(article)
    yield Document(identity, title, record.field("old_context", str), article)
    yield Document(identity + LATER, title, record.field("new_context", str), article)


def _swapped_questions(record: Record, dropped: Dropped) -> Iterator[Question]:
    """Yield the questions with a swapped answer, and the unchanged ones, whose `answers_updated` equals `answers`."""
    document = _paragraph_id(record)
    for item in record.within("swapped"):
        old, new = item.field("old_answer", str), item.field("new_answer", str)
        yield Question(item.identity(), item.field("question", str), (old,), document, answers_updated=(new,))
    for item in record.within("unchanged"):
        answers = item.texts("answer")
        yield Question(item.identity(), item.field("question", str), answers, document, answers_updated=answers)


def _paragraph_id(record: Record) -> str:
    return f"{record.field('title', str)}#{record.field('paragraph', int)}"


register_shape(
    "swapped_paragraphs",
    {"title", "paragraph", "old_context", "new_context"},
    "{title, paragraph, old_context, new_context, swapped: [{id, question, old_answer, new_answer}], "
    "unchanged: [{id, question, answer}]}",
    documents=_both_versions,
    questions=_swapped_questions,
)
