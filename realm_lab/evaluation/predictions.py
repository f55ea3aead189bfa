"""Predictions made elsewhere, scored against questions with references; no model is read.

A file is JSON lines, a JSON array or Parquet of records with `id` or `question`, and with `prediction` (a text) or
`ctxs` (retrieved passages [{text}], best first, as DPR writes them); or SQuAD's one object {id: answer}.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from realm_lab.corpus.answers import passage_holds
from realm_lab.corpus.readers.inputs import InputFile
from realm_lab.corpus.readers.json_records import LINE_SUFFIXES, QUESTION_IDS, Record, first_record, parse, records
from realm_lab.corpus.readers.registry import Dropped, questions_in, with_own_ids
from realm_lab.corpus.records import Question
from realm_lab.corpus.regex_answers import Patterns
from realm_lab.corpus.store import Questions
from realm_lab.corpus.text_files import plain_name, read_head, read_text
from realm_lab.errors import UserError
from realm_lab.evaluation.open_qa import f1, matches

DEPTHS = (1, 5, 20)
REMEDY = "expected records with id or question, and with prediction or ctxs; or one object {id: answer}"

Given = str | tuple[str, ...]  # an answer, or the texts of passages


def read_references(path: Path) -> list[Question]:
    """The questions of a file, in its order, whatever their answers; their ids as `prepare` makes them.

    A file without questions is a UserError.
    """
    dropped = Dropped()
    found = [question._replace(question=question.question.strip()) for question in questions_in(_file(path), dropped)]
    if not found:
        raise UserError(f"{path}: no questions; name a file of questions and answers")
    return with_own_ids([*dict.fromkeys(found)], dropped)


def stored_questions(stored: Questions) -> list[Question]:
    """The questions of a prepared corpus as records."""
    paths = [tuple(stored.paths[number].tolist()) for number in range(len(stored))]
    texts = stored.answers, stored.answer_kinds, stored.answers_updated, stored.groups, paths
    columns = zip(stored.ids, stored.texts, *texts, strict=True)
    return [
        Question(n, q, tuple(own), None, kind, tuple(new), tuple(of), path)
        for n, q, own, kind, new, of, path in columns
    ]


def score_predictions(path: Path, questions: Sequence[Question]) -> dict[str, Any]:
    """Exact match and F1 of a file's answers, or recall@k of its passages, over all `questions`.

    A question without a prediction (`missing`), or with two that differ (`contradictory`), counts as wrong; predictions
    for no question (`surplus`) are left out. The ids of each are in the result.
    """
    given, surplus = _matched(path, questions)
    missing = [question.id for question, found in zip(questions, given, strict=True) if not found]
    contradictory = [question.id for question, found in zip(questions, given, strict=True) if len(found) > 1]
    single = [next(iter(found)) if len(found) == 1 else None for found in given]
    pairs = list(zip(questions, single, strict=True))
    patterns = Patterns()
    scores: dict[str, list[float]] = {}
    if any(isinstance(prediction, tuple) for prediction in single):
        ranks = [_rank(prediction, question, patterns) for question, prediction in pairs]
        scores = {f"recall_at_{depth}": [float(rank <= depth) for rank in ranks] for depth in DEPTHS}
    else:
        answers = [(q, p if isinstance(p, str) else None) for q, p in pairs]
        scores["exact_match"] = [
            float(p is not None and matches(p, q.answers, q.answer_kind, patterns, q.id)) for q, p in answers
        ]
        scores["f1"] = [0.0 if p is None else f1(p, q.answers) for q, p in answers if q.answer_kind == "text"]
    means = {name: sum(values) / len(values) for name, values in scores.items() if values}
    faults = {"missing": missing, "contradictory": contradictory, "surplus": surplus}
    problems = [problem._asdict() for problem in patterns.problems]
    return {"file": str(path), "questions": len(questions), **means, **faults, "pattern_problems": problems}


def _matched(path: Path, questions: Sequence[Question]) -> tuple[list[set[Given]], list[str]]:
    """The different predictions for each question, by its id, else by its text; and what belongs to none."""
    rows: dict[tuple[str, str], list[int]] = {}
    for row, question in enumerate(questions):
        for key in (("id", question.id), ("question", question.question)):
            rows.setdefault(key, []).append(row)
    given: list[set[Given]] = [set() for _ in questions]
    surplus = []
    for record in _records(path):
        prediction = _prediction(record)
        identity = record.given_id(*QUESTION_IDS) or ""
        text = record.text("question").strip()
        if not identity and not text:
            raise UserError(f"{record.where}: neither 'id' nor 'question'; {REMEDY}")
        found = rows.get(("id", identity)) or rows.get(("question", text))
        if not found:
            surplus.append(identity or text)
        if found and prediction is not None:
            for row in found:
                given[row].add(prediction)
    return given, surplus


def _file(path: Path) -> InputFile:
    return InputFile(path, plain_name(path), str(path))


def _records(path: Path) -> Iterator[Record]:
    name = plain_name(path)
    head = read_head(path)
    keys = first_record(head).keys()
    if head.lstrip().startswith("{") and not name.endswith(LINE_SUFFIXES) and not keys & {"prediction", "ctxs"}:
        for identity, answer in parse(read_text(path), path).items():
            fields = {"id": identity, "prediction": answer}
            yield Record(f"{path}, '{identity[:60]}'", 0, fields, name, REMEDY, Dropped())
    else:
        yield from records(_file(path), REMEDY, Dropped())


def _prediction(record: Record) -> Given | None:
    if isinstance(record.fields, dict) and "ctxs" in record.fields and "prediction" not in record.fields:
        return tuple(passage.field("text", str) for passage in record.within("ctxs"))
    return None if record.field("prediction", object) is None else str(record.field("prediction", str))


def _rank(passages: Given | None, question: Question, patterns: Patterns) -> float:
    """1-based place of the first passage that holds an answer, or infinity."""
    for place, text in enumerate(passages if isinstance(passages, tuple) else (), 1):
        if passage_holds(text, question.answers, question.answer_kind, patterns, question.id):
            return place
    return float("inf")
