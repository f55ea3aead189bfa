"""What begins as JSON and has no shape that is known: reading it says what its first record lacks."""

from __future__ import annotations

from realm_lab.corpus.readers.containers import LINE_SUFFIXES, documents_reader, questions_reader
from realm_lab.corpus.readers.questions import open_question
from realm_lab.corpus.readers.registry import register_reader
from realm_lab.corpus.readers.texts import plain_document
from realm_lab.corpus.text_files import plain_name


def register() -> None:
    """Register the formats of this file."""
    register_reader(
        "json_records",
        lambda path, head: head.lstrip().startswith(("{", "[")) or plain_name(path).endswith(LINE_SUFFIXES),
        read_documents=documents_reader(plain_document, "expected {id?, title?, text}; see docs/data.md"),
        read_questions=questions_reader(open_question, "expected {id?, question, answer: [texts]}; see docs/data.md"),
    )
