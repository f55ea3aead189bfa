"""Records of questions: WebQuestions, CuratedTREC, TriviaQA, TimeQA, NQ with gold passages, QED.

CuratedTREC's answers are regular expressions. As JSON lines (DrQA's form) it looks like any other data set: answers are
read as expressions in a file with "trec" in its name, and in a record with "answer_kind": "regex".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from realm_lab.engine.corpus.readers.inputs import InputFile
from realm_lab.engine.corpus.readers.json_records import (
    LINE_SUFFIXES,
    Record,
    first_record,
    open_question,
    parse,
    passage_id,
    register_shape,
)
from realm_lab.engine.corpus.readers.registry import Dropped, register_reader
from realm_lab.engine.corpus.records import Document, Question
from realm_lab.engine.corpus.text_files import plain_name, read_text


def _level_question(record: Record, dropped: Dropped) -> Iterator[Question]:
    """Yield a question of TimeQA with its level in the id, since easy and hard questions share ids."""
    for question in open_question(record, dropped):
        yield question._replace(id=f"{question.id}?{record.field('level', str)}")


def _web_question(record: Record, dropped: Dropped) -> Iterator[Question]:
    yield Question(record.identity("qId"), record.field("qText", str), record.texts("answers"), None)


def _trivia_questions(file: InputFile, dropped: Dropped) -> Iterator[Question]:
    """Read TriviaQA as one JSON object, as its authors distribute it. The test files have no answers."""
    remedy = "expected TriviaQA: {Data: [{Question, QuestionId, Answer: {Aliases: [texts]}}]}"
    whole = Record(file, 0, parse(read_text(file.path), file.path), remedy, dropped)
    for record in whole.within("Data"):
        identity, question = record.identity("QuestionId"), record.field("Question", str)
        answers: tuple[str, ...] = ()
        if record.fields.get("Answer") is not None:
            given = record.inside("Answer", record.field("Answer", dict))
            people = given.texts("HumanAnswers") if "HumanAnswers" in given.fields else ()
            answers = given.text("Value"), *given.texts("Aliases"), *people
        yield Question(identity, question, answers, None)


def _trivia_question(record: Record, dropped: Dropped) -> Iterator[Question]:
    """Yield a question of TriviaQA on the Hub. Test questions have the value "<unk>" in place of answers."""
    given = record.inside("answer", record.field("answer", dict))
    answers = given.text("value"), *given.texts("aliases")
    if answers == ("<unk>",):
        answers = ()
    yield Question(record.identity("question_id"), record.field("question", str), answers, None)


def _is_trivia(path: Path, head: str) -> bool:
    return "Data" in first_record(head) and not plain_name(path).endswith(LINE_SUFFIXES)


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
register_reader("triviaqa", _is_trivia, read_questions=_trivia_questions)
register_shape(
    "triviaqa_records",
    {"question", "question_id", "answer"},
    "{question, question_id, answer: {value, aliases: [texts]}} (TriviaQA of the Hub)",
    questions=_trivia_question,
    matches=lambda path, fields: isinstance(fields["answer"], dict) and "aliases" in fields["answer"],
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
