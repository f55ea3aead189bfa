"""Score predictions of other systems against questions with references; no model is read.

A file is JSON lines, a JSON array, Parquet, CSV or TSV of records with `id` or `question`, and with `prediction` (a
text), `ctxs` (retrieved passages [{id, text}], best first, as DPR writes them) or both; SQuAD's one object
{id: answer}; or a TREC run file (run_file.py).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import numpy as np

from realm_lab.contrib.formats.questions_with_passages import PASSAGE_IDS
from realm_lab.contrib.formats.tables import table_records
from realm_lab.contrib.formats.trec import is_qrels, judgements
from realm_lab.engine.corpus.answers import can_be_scored, passage_holds
from realm_lab.engine.corpus.readers.inputs import InputFile, find_queries
from realm_lab.engine.corpus.readers.json_records import (
    LINE_SUFFIXES,
    QUESTION_IDS,
    Record,
    first_record,
    parse,
    records,
)
from realm_lab.engine.corpus.readers.registry import Dropped, questions_in, with_own_ids
from realm_lab.engine.corpus.records import Question, document_of
from realm_lab.engine.corpus.regex_answers import Patterns
from realm_lab.engine.corpus.text_files import PARQUET, plain_name, read_head, read_lines, read_text
from realm_lab.engine.evaluation.judged import graded_scores, own_document
from realm_lab.engine.evaluation.open_qa import f1, matches
from realm_lab.errors import UserError

DEPTHS = (1, 5, 20)
T = TypeVar("T")
REMEDY = (
    "expected records with id or question, and with prediction or ctxs (JSON, Parquet, CSV or TSV), one object "
    "{id: answer}, or a TREC run (docs/evaluation.md)"
)
RUN = re.compile(r"\S+\s+\S+\s+\S+\s+\d+\s+\S+\s+\S.*")  # query, Q0, document, rank, score, tag


class Given(NamedTuple):
    """The distinct predictions for one question: answers, and lists of passages as (id or "", text)."""

    answers: set[str]
    passages: set[tuple[tuple[str, str], ...]]


def read_references(path: Path) -> list[Question]:
    """Read the questions of a file, in its order, whatever their answers, with ids as `prepare` makes them.

    Judgements (qrels) may lack the texts of their queries: predictions are then matched only by ids. UserError: a file
    without questions.
    """
    dropped = Dropped()
    if is_qrels(path, read_head(path)) and find_queries(path)[0] is None:
        judged: dict[str, dict[str, int]] = {}
        for _, query, document, relevance in judgements(path):
            judged.setdefault(query, {})[document] = relevance
        found = [Question(query, query, (), None, judged=tuple(grades.items())) for query, grades in judged.items()]
    else:
        read = (one._replace(question=one.question.strip()) for one in questions_in(_file(path), dropped))
        found = with_own_ids([*dict.fromkeys(read)], dropped)
    if not found:
        raise UserError("no questions", "name a file of questions and answers", path=path)
    return found


def scorable(questions: Sequence[Question]) -> tuple[list[Question], list[str]]:
    """Return the questions that can be scored, with blank references removed, and the ids of the others. As in
    `prepare`, a question cannot be scored if all its references, or all updated ones, normalise to nothing."""
    kept, unscorable = [], []
    for question in questions:
        both = question.answers, question.answers_updated or question.answers
        if all(any(can_be_scored(answer, question.answer_kind) for answer in answers) for answers in both):
            old, new = (tuple(filter(str.strip, answers)) for answers in (question.answers, question.answers_updated))
            kept.append(question._replace(answers=old, answers_updated=new))
        else:
            unscorable.append(question.id)
    return kept, unscorable


def score_predictions(path: Path, questions: Sequence[Question]) -> dict[str, Any]:
    """Compute exact match and F1 of a file's answers, and recall@k of its passages, each over all scorable `questions`.
    Questions that name their evidence get evidence@k of the passages' ids, and of their texts if the file has them.
    Questions with judged documents get the measures of trec_eval (`graded_scores`), and need no answers.

    Counted as wrong, and listed by id in the result: a question without a prediction (`missing`); one without an answer
    or without passages in a file that has both (`without_answer`, `without_passages`); and one with two different
    predictions (`contradictory`). Left out, and listed: questions without a scorable reference (`unscorable`),
    predictions for no question (`surplus`), and retrieved documents that are the judged question itself (`itself`, as
    in BEIR). UserError: there is nothing to score.
    """
    given, surplus = _matched(path, questions)
    if not any(found.answers or found.passages for found in given):
        others = f"; it has {len(surplus)} for others, such as '{surplus[0][:60]}'" if surplus else ""
        raise UserError(
            f"no prediction for any of the {len(questions)} questions, such as '{questions[0].id[:60]}'{others}",
            "name the questions that they are for with --questions, with the same ids or texts",
            path=path,
        )
    scored, unscorable = scorable(questions)
    by_id = {question.id: found for question, found in zip(questions, given, strict=True)}
    pairs = [(question, by_id[question.id]) for question in scored]
    judged = {question.id: question for question in questions if question.judged}
    unscorable = [identity for identity in unscorable if identity not in judged]
    everyone = [(q, by_id[q.id]) for q in (judged | {question.id: question for question in scored}).values()]
    has_passages = any(found.passages for _, found in everyone)
    has_answers = any(found.answers for _, found in everyone)
    listed = [passage for _, found in everyone for passages in found.passages for passage in passages]
    has_ids, has_texts = any(name for name, _ in listed), any(text for _, text in listed)
    patterns = Patterns()
    scores: dict[str, list[float]] = {}
    if has_answers:
        answers = [(q, _single(found.answers)) for q, found in pairs]
        scores["exact_match"] = [
            float(p is not None and matches(p, q.answers, q.answer_kind, patterns, q.id)) for q, p in answers
        ]
        scores["f1"] = [0.0 if p is None else f1(p, q.answers) for q, p in answers if q.answer_kind == "text"]
    if has_texts:
        ranks = [_rank(_single(found.passages), q, patterns) for q, found in pairs]
        scores |= {f"recall_at_{depth}": [float(rank <= depth) for rank in ranks] for depth in DEPTHS}
    if has_ids:
        found_at = [_evidence_rank(_single(found.passages), q, patterns) for q, found in pairs if q.evidence]
        scores |= {f"evidence_at_{depth}": [float(rank <= depth) for rank in found_at] for depth in DEPTHS}
    if judged and has_ids:
        found_by = [_graded(_single(by_id[name].passages), question) for name, question in judged.items()]
        scores |= {measure: [one[measure] for one in found_by] for measure in found_by[0]}
    means = {name: sum(values) / len(values) for name, values in scores.items() if values}
    faults = {
        "missing": [q.id for q, found in everyone if not found.answers and not found.passages],
        "without_answer": [q.id for q, found in everyone if has_answers and found.passages and not found.answers],
        "without_passages": [q.id for q, found in everyone if has_passages and found.answers and not found.passages],
        "contradictory": [q.id for q, found in everyone if len(found.answers) > 1 or len(found.passages) > 1],
        "unscorable": unscorable,
        "surplus": surplus,
        "itself": [name for name, question in judged.items() if _holds_itself(by_id[name], question)],
    }
    if not everyone:
        raise UserError(
            f"none of the {len(questions)} questions has an answer or a judged document to compare with",
            "name questions with answers or judgements (qrels) with --questions",
            path=path,
        )
    if not means:
        raise UserError(
            "its passages have neither texts, to look for answers in, nor ids of judged documents or of evidence",
            "add texts, or name questions with judgements (qrels) or evidence_ids with --questions",
            path=path,
        )
    problems = [problem._asdict() for problem in patterns.problems]
    return {"file": str(path), "questions": len(everyone), **means, **faults, "pattern_problems": problems}


def _matched(path: Path, questions: Sequence[Question]) -> tuple[list[Given], list[str]]:
    """Return the predictions for each question, matched by id, else by text; and the ids of those for no question."""
    rows: dict[tuple[str, str], list[int]] = {}
    for row, question in enumerate(questions):
        for key in (("id", question.id), ("question", question.question)):
            rows.setdefault(key, []).append(row)
    given = [Given(set(), set()) for _ in questions]
    surplus = []
    for record in _records(path):
        answer, passages = _prediction(record)
        identity = record.given_id(*QUESTION_IDS) or ""
        text = record.text("question").strip()
        if not identity and not text:
            raise record.error("neither 'id' nor 'question'")
        found = rows.get(("id", identity)) or rows.get(("id", unquote(identity))) or rows.get(("question", text))
        if not found:
            surplus.append(identity or text)
        for row in found or ():
            given[row].answers.update([] if answer is None else [answer])
            given[row].passages.update([] if passages is None else [passages])
    return given, surplus


def _file(path: Path) -> InputFile:
    return InputFile(path, plain_name(path), str(path))


def _records(path: Path) -> Iterator[Record]:
    file, head = _file(path), read_head(path)
    if not head.lstrip().startswith(("{", "[")) and head != PARQUET:
        if RUN.fullmatch(head.split("\n", 1)[0].strip()):
            yield from _of_run(file)
        else:
            yield from table_records(file, REMEDY, Dropped(), lambda names: "prediction" in names)
        return
    keys = first_record(head).keys()
    if head.lstrip().startswith("{") and not file.name.endswith(LINE_SUFFIXES) and not keys & {"prediction", "ctxs"}:
        for identity, answer in parse(read_text(path), path).items():
            fields = {"id": identity, "prediction": answer}
            yield Record(file, 0, fields, REMEDY, Dropped(), part=f"'{identity[:60]}'")
    else:
        yield from records(file, REMEDY, Dropped())


def _of_run(file: InputFile) -> Iterator[Record]:
    """Yield a record for each query of a TREC run, with its documents in the order of trec_eval: by the scores as
    float32, and for equal scores the last name first."""
    found: dict[str, list[tuple[np.float32, str]]] = {}
    for number, line in read_lines(file.path):
        row = line.split()
        try:
            query, _, document, _, score, _, *_ = row
            found.setdefault(query, []).append((np.float32(score), document))
        except ValueError:
            if row:
                remedy = "expected the columns query, Q0, document, rank, score, tag, or the file is cut off"
                raise UserError("no line of a TREC run", remedy, path=file.path, line=number) from None
    for query, documents in found.items():
        ctxs = [{"id": document, "text": ""} for _, document in sorted(documents, reverse=True)]
        yield Record(file, 0, {"id": query, "ctxs": ctxs}, REMEDY, Dropped(), part=f"'{query[:60]}'")


def _prediction(record: Record) -> tuple[str | None, tuple[tuple[str, str], ...] | None]:
    """Return the answer and the passages of a record; None for each that it does not give."""
    answer = passages = None
    if isinstance(record.fields, dict) and record.fields.get("ctxs") is not None:
        passages = tuple(
            (passage.given_id(*PASSAGE_IDS) or "", passage.field("text", str)) for passage in record.within("ctxs")
        )
    if passages is None or "prediction" in record.fields:
        answer = None if record.field("prediction", object) is None else str(record.field("prediction", str))
    return answer, passages


def _single(given: set[T]) -> T | None:
    """Return the prediction; None if there is none, or more than one."""
    return next(iter(given)) if len(given) == 1 else None


def _graded(passages: tuple[tuple[str, str], ...] | None, question: Question) -> dict[str, float]:
    """Return the scores of passages by their ids; a passage (ID/N) of a judged document counts as the document."""
    grades = dict(question.judged)
    known = {*grades, own := own_document(question.id, grades)}
    names = dict.fromkeys(_known(name, known) for name, _ in passages or ())
    names.pop(own, None)
    return graded_scores([*names], grades)


def _holds_itself(found: Given, question: Question) -> bool:
    own = own_document(question.id, dict(question.judged))
    return any(_known(name, {own}) == own for passages in found.passages for name, _ in passages) if own else False


def _known(name: str, known: Container[str]) -> str:
    """Return the known document that an id names: by itself, or as a passage of it (ID/N); blanks may be %20, as
    `--run-file` writes them. If none is known: the document of the id, or the id."""
    plain = unquote(name)
    forms = name, document_of(name), plain, document_of(plain)
    return next((form for form in forms if form in known), document_of(name) or name)


def _evidence_rank(passages: tuple[tuple[str, str], ...] | None, question: Question, patterns: Patterns) -> float:
    """Return the 1-based rank of the first passage of a document that supports the answer, or infinity. A passage whose
    text is given must contain the answer."""
    asked = question.answers, question.answer_kind, patterns, question.id
    for rank, (name, text) in enumerate(passages or (), 1):
        if _known(name, question.evidence) in question.evidence and (not text or passage_holds(text, *asked)):
            return rank
    return float("inf")


def _rank(passages: tuple[tuple[str, str], ...] | None, question: Question, patterns: Patterns) -> float:
    """Return the 1-based rank of the first passage that contains an answer, or infinity."""
    for rank, (_, text) in enumerate(passages or (), 1):
        if passage_holds(text, question.answers, question.answer_kind, patterns, question.id):
            return rank
    return float("inf")
