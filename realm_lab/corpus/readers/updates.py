"""Records that tell what a later edition of a corpus changes: swapped paragraphs, and cloze items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from realm_lab.corpus.readers.containers import Record, register_shape
from realm_lab.corpus.readers.squad import readable_title
from realm_lab.corpus.records import Document, Question

LATER = "@new"  # ends the id of a paragraph's later edition


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


def _cloze(record: Record, dropped: Counter[str]) -> Iterator[Question]:
    """The sentence with its [MASK] as the question; it was made from the document `source_id`."""
    yield Question(
        record.identity(), record.field("cloze", str), record.texts("answer"), record.field("source_id", str)
    )


def register() -> None:
    """Register the formats of this file."""
    register_shape(
        "swapped_paragraphs",
        {"title", "paragraph", "old_context", "new_context"},
        "{title, paragraph, old_context, new_context, swapped: [{id, question, old_answer, new_answer}], "
        "unchanged: [{id, question, answer}]}",
        documents=_both_editions,
        questions=_swapped_questions,
    )
    register_shape("cloze", {"cloze", "answer"}, "{id, cloze, answer, source_id}", questions=_cloze)
