"""Records of questions: NQ-Open, WebQuestions, CuratedTREC, TimeQA, NQ with gold passages, QED, cloze items.

CuratedTREC's answers are regular expressions. As JSON lines (DrQA's form) it looks like any other set: it is recognised
by "trec" in the file's name, or by "answer_kind": "regex" in a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from realm_lab.corpus.readers.json_records import QUESTION_IDS, Record, open_question, passage_id, register_shape
from realm_lab.corpus.readers.registry import Dropped
from realm_lab.corpus.records import Document, Question
from realm_lab.corpus.text_files import plain_name


def _level_question(record: Record, dropped: Dropped) -> Iterator[Question]:
    """Its easy and its hard questions share their ids."""
    for question in open_question(record, dropped):
        yield question._replace(id=f"{question.id}?{record.field('level', str)}")


def _web_question(record: Record, dropped: Dropped) -> Iterator[Question]:
    yield Question(record.identity("qId"), record.field("qText", str), record.texts("answers"), None)


def _passage(record: Record, title_key: str, text_key: str) -> Document:
    title, text = record.field(title_key, str).strip(), record.field(text_key, str)
    return Document(passage_id(title, text), title, text, title)


def _gold_document(record: Record, dropped: Dropped) -> Iterator[Document]:
    yield _passage(record, "title", "passage")


def _gold_question(record: Record, dropped: Dropped) -> Iterator[Question]:
    for question in open_question(record, dropped):
        yield question._replace(document=_passage(record, "title", "passage").id)


def _qed_document(record: Record, dropped: Dropped) -> Iterator[Document]:
    yield _passage(record, "title_text", "paragraph_text")


def _qed_question(record: Record, dropped: Dropped) -> Iterator[Question]:
    answers = []
    for choice in record.field("original_nq_answers", list):
        spans = record._replace(fields={"answer": choice}).within("answer")
        answers.append(" ".join(span.field("string", str) for span in spans))
    question, document = record.field("question_text", str), _passage(record, "title_text", "paragraph_text").id
    yield Question(record.identity("example_id"), question, tuple(answers), document)


def _cloze(record: Record, dropped: Dropped) -> Iterator[Question]:
    """The sentence with its [MASK] as the question; it was made from the document `source_id`."""
    yield Question(
        record.identity(*QUESTION_IDS),
        record.field("cloze", str),
        record.texts("answer"),
        record.field("source_id", str),
    )


register_shape("open_questions", {"question"}, "{id?, question, answer: [texts], document?}", questions=open_question)
register_shape(
    "timeqa",
    {"id", "title", "question", "answer", "level"},
    "{id, title, question, answer: [texts], level}",
    questions=_level_question,
)
register_shape(
    "curated_trec",
    {"question", "answer"},
    "{question, answer: [regular expression]}",
    questions=partial(open_question, kind="regex"),
    matches=lambda path, fields: "trec" in plain_name(path),
)
register_shape("webquestions", {"qText", "answers"}, "{qId, qText, answers: [texts]}", questions=_web_question)
register_shape(
    "nq_gold_passages",
    {"question", "answer", "title", "passage"},
    "{question, answer: [texts], title, passage}",
    documents=_gold_document,
    questions=_gold_question,
)
register_shape(
    "qed",
    {"example_id", "question_text", "paragraph_text"},
    "{example_id, title_text, question_text, paragraph_text, original_nq_answers: [[{string}]]}",
    documents=_qed_document,
    questions=_qed_question,
)
register_shape("cloze", {"cloze", "answer"}, "{id, cloze, answer, source_id}", questions=_cloze)
