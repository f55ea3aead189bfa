"""Records of questions: open questions such as NQ-Open's, and cloze items."""

from __future__ import annotations

from collections.abc import Iterator

from realm_lab.engine.corpus.readers.json_records import QUESTION_IDS, Record, open_question, register_shape
from realm_lab.engine.corpus.readers.registry import Dropped
from realm_lab.engine.corpus.records import Question


def _cloze(record: Record, dropped: Dropped) -> Iterator[Question]:
    """Read a cloze item as a question: the sentence with its [MASK]. Its document is `source_id`, the source of the
    sentence, and the documents `evidence_ids` support the answer."""
    yield Question(
        record.identity(*QUESTION_IDS),
        record.field("cloze", str),
        record.texts("answer"),
        record.field("source_id", str) or None,
        evidence=record.optional_texts("evidence_ids"),
    )


register_shape("open_questions", {"question"}, "{id?, question, answer: [texts], document?}", questions=open_question)
register_shape("cloze", {"cloze", "answer"}, "{id, cloze, answer, source_id}", questions=_cloze)
