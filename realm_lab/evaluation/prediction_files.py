"""Predictions and retrieved passages made elsewhere, in the formats of the field, matched with their questions.

Answers: SQuAD's {id: text}; records of {id | question, prediction} (ORQA, REALM, DrQA; Hugging Face's
`prediction_text`); DPR's {question, predictions: [{prediction: {text}}]}, the first of which counts; or plain text, one
answer a line in the order of the questions. Retrieval: DPR's {question, ctxs: [{id, title, text, has_answer}]}.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from realm_lab.corpus.readers import find_reader
from realm_lab.corpus.readers.containers import LINE_SUFFIXES, Record, records
from realm_lab.corpus.readers.parquet import is_parquet
from realm_lab.corpus.readers.registry import questions_in
from realm_lab.corpus.readers.squad import squad_questions
from realm_lab.corpus.records import Question
from realm_lab.corpus.store import Questions
from realm_lab.corpus.text_files import Source, plain_name, read_head
from realm_lab.errors import UserError
from realm_lab.evaluation.open_qa import SquadVersion

ANSWER_KEYS = ("prediction", "prediction_text", "predictions", "ctxs")
FAULTS = ("missing", "contradictory", "repeated", "surplus")
REMEDY = "expected {id: answer}, records with id or question and prediction, or one answer a line"


class References(NamedTuple):
    """Questions to score, all that the file has: none is left out for an odd answer."""

    questions: list[Question]
    squad_version: SquadVersion | None  # None: not a file of SQuAD


class Context(NamedTuple):
    """A retrieved passage, as far as the file describes it."""

    id: str | None
    text: str | None
    has_answer: bool | None


class Entry(NamedTuple):
    """What a file says of one question."""

    where: str
    id: str | None
    question: str | None
    prediction: str | None
    contexts: tuple[Context, ...] | None = None
    answers: tuple[str, ...] = ()  # references that the file itself has


class Matched(NamedTuple):
    """Entries by question: `entries[i]` is that of question i, None where there is none to score.

    `faults` has the ids of questions without an entry ("missing"), with several that differ ("contradictory": none of
    them is scored) or agree ("repeated"), and of entries that belong to no question ("surplus").
    """

    entries: list[Entry | None]
    faults: dict[str, list[str]]


def read_references(path: Path) -> References:
    """The questions of a file, in its order; two with one id are a UserError."""
    version: SquadVersion | None = None
    if find_reader(path).name == "squad":  # with its unanswerable questions (v2.0), which hold no answer
        pairs = list(squad_questions(Source(path)))
        found = [question for question, _ in pairs]
        version = "2.0" if any(flag is not None for _, flag in pairs) else "1.1"
    else:
        found = list(questions_in(Source(path), Counter()))
    if not found:
        raise UserError(f"{path}: no questions; name a file of questions and answers")
    twice = [name for name, count in Counter(question.id for question in found).items() if count > 1]
    if twice:
        raise UserError(f"{path}: {len(twice)} ids are there twice, '{twice[0]}' first; give each question its own")
    return References([question._replace(question=question.question.strip()) for question in found], version)


def stored_questions(stored: Questions) -> list[Question]:
    """The questions of a prepared corpus as records."""
    documents = [None] * len(stored)
    columns = (stored.ids, stored.texts, stored.answers, documents, stored.answer_kinds, stored.answers_updated)
    rows = map(Question, *columns)
    return [row._replace(answers=tuple(row.answers), answers_updated=tuple(row.answers_updated)) for row in rows]


def read_entries(path: Path, questions: Sequence[Question] | None) -> list[Entry]:
    """What a file of predictions says; `questions` are needed for plain text alone."""
    name, head = plain_name(path), "" if is_parquet(path) else read_head(path, may_be_blank=True).lstrip()[:1]
    if not is_parquet(path) and (name.endswith(".txt") or head not in ("{", "[")):
        return _lines(path, questions)
    if head == "{" and not name.endswith(LINE_SUFFIXES):
        try:
            pairs = json.loads(Source(path).text(), object_pairs_hook=list)
        except (ValueError, RecursionError):
            pairs = None  # several objects: JSON lines; or broken, which reading it so tells
        if pairs is not None and not {key for key, _ in pairs} & set(ANSWER_KEYS):
            rows = [{"id": key, "prediction": value} for key, value in pairs]
            return [_entry(Record(f"{path}, '{row['id'][:60]}'", 0, row, name, REMEDY)) for row in rows]
    return [_entry(record) for record in records(Source(path), REMEDY)]


def _lines(path: Path, questions: Sequence[Question] | None) -> list[Entry]:
    if questions is None:
        raise UserError(f"{path}: plain text says nothing of its questions; name them with --questions")
    lines = Source(path).text().removesuffix("\n").split("\n")
    if len(lines) != len(questions):
        raise UserError(f"{path}: {len(lines)} lines for {len(questions)} questions; write one a line, in their order")
    return [Entry(f"{path}", asked.id, None, line.strip()) for line, asked in zip(lines, questions, strict=True)]


def _entry(record: Record) -> Entry:
    if not isinstance(record.fields, dict) or not record.fields.keys() & set(ANSWER_KEYS):
        record.field(ANSWER_KEYS[0], object)  # says what was found
    fields = record.fields
    identity = _identity(record, "id", "question_id", "qid")
    question = record.text("question").strip()
    if identity is None and not question:
        raise UserError(f"{record.where}: neither 'id' nor 'question'; {REMEDY}")
    # The predicted text; None where the record says that there is none (null).
    value = next((fields[key] for key in ANSWER_KEYS[:3] if key in fields), None)
    if isinstance(value, list):  # DPR: the best of several numbers of passages, the first is the one reported
        value = value[0] if value else None
    while isinstance(value, dict):
        value = value.get("prediction", value.get("text"))
    return Entry(
        record.where,
        identity,
        question or None,
        None if value is None else record._replace(fields={"prediction": value}).field("prediction", str),
        tuple(map(_context, record.within("ctxs"))) if "ctxs" in fields else None,
        record.texts("answers") if fields.get("answers") is not None else (),
    )


def _identity(record: Record, *keys: str) -> str | None:
    return next((record.identity(key) for key in keys if record.fields.get(key) is not None), None)


def _context(passage: Record) -> Context:
    if not isinstance(passage.fields, dict) or not {"text", "has_answer"} & passage.fields.keys():
        passage.field("text", str)  # says what was found
    text, flag = (
        None if passage.fields.get(key) is None else passage.field(key, kind)
        for key, kind in (("text", str), ("has_answer", bool))
    )
    return Context(_identity(passage, "id", "passage_id"), text, flag)


def match(entries: Sequence[Entry], questions: Sequence[Question]) -> Matched:
    """Each entry to its question: by id, else by the question's text.

    A text that several questions share goes to all of them where the file has it once, and in order where it has it as
    often as they are.
    """
    by_id = {question.id: row for row, question in enumerate(questions)}
    by_text: dict[str, list[int]] = {}
    for row, question in enumerate(questions):
        by_text.setdefault(question.question, []).append(row)
    found: list[list[Entry]] = [[] for _ in questions]
    texts: dict[str, list[Entry]] = {}
    faults: dict[str, list[str]] = {name: [] for name in FAULTS}
    for entry in entries:
        if entry.id is not None and entry.id in by_id:
            found[by_id[entry.id]].append(entry)
        elif entry.question is not None and entry.question in by_text:
            texts.setdefault(entry.question, []).append(entry)
        else:
            faults["surplus"].append(entry.question or entry.id or entry.where)
    for text, several in texts.items():
        rows = by_text[text]
        for place, row in enumerate(rows):
            found[row] += [several[place]] if len(several) == len(rows) else several
    chosen: list[Entry | None] = []
    for question, several in zip(questions, found, strict=True):
        answers = {(entry.prediction, entry.contexts) for entry in several}
        fault = "contradictory" if len(answers) > 1 else "repeated" if len(several) > 1 else ""
        fault = "missing" if answers <= {(None, None)} else fault
        if fault:
            faults[fault].append(question.id)
        chosen.append(several[0] if fault in ("", "repeated") else None)
    return Matched(chosen, faults)


def own_questions(path: Path, entries: Sequence[Entry]) -> Iterator[Question]:
    """Questions and references that a retrieval file brings along; one that has none is a UserError."""
    for number, entry in enumerate(entries, 1):
        if entry.question is None or not entry.answers:
            raise UserError(f"{path}: no answers to score with; name the questions with --questions")
        yield Question(entry.id or f"{plain_name(path)}:{number}", entry.question, entry.answers, None)
