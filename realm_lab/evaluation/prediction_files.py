"""Predictions and retrieved passages made elsewhere, in the formats of the field, matched with their questions.

Answers: SQuAD's {id: text}; JSON lines or a JSON array of {id | question, prediction} (ORQA, REALM, DrQA; Hugging
Face's `prediction_text`); DPR's array of {question, predictions: [{prediction: {text}}]}, the first of which counts;
or plain text, one answer a line in the order of the questions. Retrieval: DPR's array of {question, ctxs: [{id, title,
text, has_answer}]}.

A question without an answer in the file, with two different ones, or an answer to no question is told of by name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.corpus.readers import find_reader
from realm_lab.corpus.readers.registry import questions_in
from realm_lab.corpus.records import Question
from realm_lab.corpus.store import Questions
from realm_lab.corpus.text_files import Source, plain_name
from realm_lab.errors import UserError
from realm_lab.evaluation.open_qa import SquadVersion

ANSWER_KEYS = ("prediction", "prediction_text", "predictions", "ctxs")
REMEDY = "expected {id: answer}, records with id or question and prediction, or one answer a line"


class References(NamedTuple):
    """Questions to score, all that the file has: none is left out for an odd answer."""

    questions: list[Question]
    squad_version: SquadVersion | None  # None: not a file of SQuAD


class Context(NamedTuple):
    """A retrieved passage."""

    id: str | None
    title: str
    text: str | None
    has_answer: bool | None  # as the file says


class Entry(NamedTuple):
    """What a file says of one question."""

    where: str
    id: str | None
    question: str | None
    prediction: str | None
    contexts: tuple[Context, ...] | None
    answers: tuple[str, ...]  # references that the file itself has


class Matched(NamedTuple):
    """Entries by question: `entries[i]` is that of question i, None where there is none to score."""

    entries: list[Entry | None]
    missing: list[str]  # ids of questions without an entry
    contradictory: list[str]  # ids of questions with several entries that differ: none of them is scored
    repeated: list[str]  # ids of questions with several entries that agree
    surplus: list[str]  # ids or texts of entries that belong to no question


def read_references(path: Path) -> References:
    """The questions of a file, in its order.

    Raises:
        UserError: the file is missing, broken or of no known format, or two questions have one id.
    """
    if find_reader(path).name == "squad":
        found = _squad(path)
    else:
        questions = [q._replace(question=q.question.strip()) for q in questions_in(Source(path), Counter())]
        found = References(questions, None)
    if not found.questions:
        raise UserError(f"{path}: no questions; name a file of questions and answers")
    twice = [name for name, count in Counter(question.id for question in found.questions).items() if count > 1]
    if twice:
        raise UserError(f"{path}: {len(twice)} ids stand twice, '{twice[0]}' first; give each question its own")
    return found


def stored_questions(stored: Questions) -> list[Question]:
    """The questions of a prepared corpus as records."""
    rows = zip(stored.ids, stored.texts, stored.answers, stored.answer_kinds, stored.answers_updated, strict=True)
    return [
        Question(identity, text, tuple(answers), None, "regex" if kind == "regex" else "text", tuple(updated))
        for identity, text, answers, kind, updated in rows
    ]


def _squad(path: Path) -> References:
    """A SQuAD file with its unanswerable questions (v2.0), which hold no answer."""
    paragraphs = [p for article in _json(Source(path).text(), path)["data"] for p in article["paragraphs"]]
    items = [item for paragraph in paragraphs for item in paragraph["qas"]]
    questions = [
        Question(str(item["id"]), item["question"].strip(), tuple(a["text"] for a in item["answers"]), None)
        for item in items
    ]
    return References(questions, "2.0" if any("is_impossible" in item for item in items) else "1.1")


def read_entries(path: Path, questions: Sequence[Question] | None) -> list[Entry]:
    """What a file of predictions says; `questions` are needed for plain text alone.

    Raises:
        UserError: the file is missing or broken, a record has no answer, or plain text not a line for each question.
    """
    text = Source(path).text()
    head, name = text.lstrip()[:1], plain_name(path)
    if name.endswith(".txt") or head not in ("{", "["):
        return _lines(path, text, questions)
    if head == "[":
        members = enumerate(_json(text, path), 1)
        return [_entry(f"{path}, record {number}", record) for number, record in members]
    if not name.endswith((".jsonl", ".jsonlines", ".ndjson")):
        try:
            pairs = json.loads(text, object_pairs_hook=list)
        except ValueError:
            pairs = None  # several objects: JSON lines
        if pairs is not None and not {key for key, _ in pairs} & set(ANSWER_KEYS):
            return [_entry(f"{path}, '{key}'", {"id": key, "prediction": value}) for key, value in pairs]
    lines = enumerate(text.split("\n"), 1)
    return [_entry(f"{path}, line {n}", _json(line, path, n)) for n, line in lines if line.strip()]


def _lines(path: Path, text: str, questions: Sequence[Question] | None) -> list[Entry]:
    if questions is None:
        raise UserError(f"{path}: plain text says nothing of its questions; name them with --questions")
    lines = text.removesuffix("\n").split("\n")
    if len(lines) != len(questions):
        raise UserError(f"{path}: {len(lines)} lines for {len(questions)} questions; write one a line, in their order")
    return [
        Entry(f"{path}, line {number}", question.id, None, line.strip(), None, ())
        for number, (line, question) in enumerate(zip(lines, questions, strict=True), 1)
    ]


def _entry(where: str, record: Any) -> Entry:
    if not isinstance(record, dict):
        raise UserError(f"{where}: a {type(record).__name__} where an object should be; {REMEDY}")
    identity = next((record[key] for key in ("id", "question_id", "qid") if record.get(key) is not None), None)
    question = record.get("question")
    if identity is None and not isinstance(question, str):
        raise UserError(f"{where}: neither 'id' nor 'question' (found: {', '.join(list(record)[:6])}); {REMEDY}")
    if not any(key in record for key in ANSWER_KEYS):
        raise UserError(f"{where}: none of {', '.join(ANSWER_KEYS)} (found: {', '.join(list(record)[:6])}); {REMEDY}")
    return Entry(
        where,
        None if identity is None else str(identity),
        question.strip() if isinstance(question, str) else None,
        _prediction(where, record),
        tuple(_contexts(where, record["ctxs"])) if "ctxs" in record else None,
        tuple(map(str, record.get("answers") or ())),
    )


def _prediction(where: str, record: dict[str, Any]) -> str | None:
    """The predicted text; None where the record says that there is none (null)."""
    value = next((record[key] for key in ANSWER_KEYS[:3] if key in record), None)
    if isinstance(value, list):  # DPR: the best of several numbers of passages, the first is the one reported
        value = value[0] if value else None
    while isinstance(value, dict):
        value = value.get("prediction", value.get("text"))
    if value is not None and not isinstance(value, str):
        raise UserError(f"{where}: the prediction is a {type(value).__name__}, not a text; {REMEDY}")
    return value


def _contexts(where: str, members: Any) -> Iterator[Context]:
    if not isinstance(members, list):
        raise UserError(f"{where}: 'ctxs' is a {type(members).__name__}, not a list; expected DPR's retrieved passages")
    for number, member in enumerate(members, 1):
        if not isinstance(member, dict) or not {"text", "has_answer"} & member.keys():
            raise UserError(f"{where}, passage {number}: neither 'text' nor 'has_answer'; expected DPR's passages")
        flag = member.get("has_answer")
        identity = member.get("id", member.get("passage_id"))
        yield Context(
            None if identity is None else str(identity),
            str(member.get("title") or ""),
            member.get("text"),
            None if flag is None else bool(flag),
        )


def match(entries: Sequence[Entry], questions: Sequence[Question]) -> Matched:
    """Each entry to its question: by id, else by the question's text.

    A text that several questions share goes to all of them where the file has it once, and in order where it has it as
    often as they are.
    """
    by_id = {question.id: row for row, question in enumerate(questions)}
    by_text: dict[str, list[int]] = {}
    for row, question in enumerate(questions):
        by_text.setdefault(question.question, []).append(row)
    found: dict[int, list[Entry]] = {}
    texts: dict[str, list[Entry]] = {}
    surplus = []
    for entry in entries:
        if entry.id is not None and entry.id in by_id:
            found.setdefault(by_id[entry.id], []).append(entry)
        elif entry.question is not None and entry.question in by_text:
            texts.setdefault(entry.question, []).append(entry)
        else:
            surplus.append(entry.question or entry.id or entry.where)
    for text, several in texts.items():
        rows = by_text[text]
        if len(several) == len(rows):
            for row, entry in zip(rows, several, strict=True):
                found.setdefault(row, []).append(entry)
        else:
            for row in rows:
                found.setdefault(row, []).extend(several)
    result = Matched([None] * len(questions), [], [], [], surplus)
    for row, question in enumerate(questions):
        several = found.get(row, [])
        said = {(entry.prediction, entry.contexts) for entry in several}
        if not several or said == {(None, None)}:
            result.missing.append(question.id)
        elif len(said) > 1:
            result.contradictory.append(question.id)
        else:
            result.entries[row] = several[0]
            if len(several) > 1:
                result.repeated.append(question.id)
    return result


def own_questions(path: Path, entries: Sequence[Entry]) -> list[Question]:
    """Questions and references that a retrieval file brings along.

    Raises:
        UserError: it has none.
    """
    if any(entry.question is None or not entry.answers for entry in entries):
        raise UserError(f"{path}: no answers to score with; name the questions with --questions")
    return [
        Question(entry.id or f"{plain_name(path)}:{number}", entry.question or "", entry.answers, None)
        for number, entry in enumerate(entries, 1)
    ]


def _json(text: str, path: Path, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        place = f", line {line}" if line else ""
        raise UserError(f"{path}{place}: not valid JSON ({error}); write the file again") from None
