"""Scores of predictions and of retrieved passages that were made elsewhere, question by question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from realm_lab.corpus.answers import holds_answer, holds_raw_answer, normalise_answer
from realm_lab.corpus.records import Question
from realm_lab.corpus.regex_answers import Patterns, Problem, Rule
from realm_lab.evaluation.open_qa import SquadVersion, score_answer
from realm_lab.evaluation.prediction_files import Context, Matched

DEPTHS = (1, 5, 10, 20, 50, 100)
ChosenMetric = Literal["auto", "orqa", "squad", "regex"]


class Scored(NamedTuple):
    """A file's scores: of each question, and together."""

    rows: list[dict[str, Any]]  # one a question, in their order
    summary: dict[str, Any]
    problems: list[Problem]


def score_predictions(
    questions: Sequence[Question],
    matched: Matched,
    chosen: ChosenMetric = "auto",
    version: SquadVersion | None = None,
    rule: Rule = "start",
) -> Scored:
    """Exact match and F1. A question that has no prediction, or several that differ, counts as wrong (released code;
    script of SQuAD v1.1); `exact_match_answered` is over the others alone."""
    patterns = Patterns()
    rows: list[dict[str, Any]] = []
    for question, entry in zip(questions, matched.entries, strict=True):
        metric: ChosenMetric = chosen
        if metric == "auto":
            metric = "regex" if question.answer_kind == "regex" else "orqa" if version is None else "squad"
        prediction = entry.prediction if entry is not None else None
        exact, overlap = 0.0, None if metric == "regex" else 0.0
        if prediction is not None:
            exact, overlap = score_answer(
                prediction, question.answers, metric, patterns, question.id, rule=rule, version=version or "1.1"
            )
        row = {"id": question.id, "question": question.question, "answers": list(question.answers), "metric": metric}
        rows.append(row | {"prediction": prediction, "exact_match": exact, "f1": overlap})
    answered = [row for row in rows if row["prediction"] is not None]
    summary = {
        "questions": len(rows),
        "metrics": sorted({row["metric"] for row in rows}),
        "exact_match": _mean([row["exact_match"] for row in rows]),
        "f1": _mean([row["f1"] for row in rows if row["f1"] is not None]),
        "exact_match_answered": _mean([row["exact_match"] for row in answered]),
        "answered": len(answered),
        "empty": sum(not row["prediction"].strip() for row in answered),
    }
    return Scored(rows, summary | matched.faults | {"patterns": patterns.counts()}, patterns.problems)


def score_retrieval(questions: Sequence[Question], matched: Matched) -> Scored:
    """Recall@k of retrieved passages: by an answer in the text, by the raw letters (released code), by what the file
    says (`stated`) and by the gold document where it is known. A question without passages counts as not found."""
    patterns = Patterns()
    rows: list[dict[str, Any]] = []
    for question, entry in zip(questions, matched.entries, strict=True):
        contexts = (entry.contexts or ()) if entry is not None else ()
        row: dict[str, Any] = {"id": question.id, "question": question.question, "passages": len(contexts)}
        for rule in ("answer", "answer_raw", "stated", "gold"):
            ranks = (rank for rank, found in enumerate(contexts, 1) if _holds(rule, found, question, patterns))
            row[f"rank_{rule}"] = next(ranks, None)
        rows.append(row)
    every = [context for entry in matched.entries if entry is not None for context in entry.contexts or ()]
    names = {"recall": "answer", "raw_recall": "answer_raw"} if every and all(c.text is not None for c in every) else {}
    names |= {"stated_recall": "stated"} if every and all(c.has_answer is not None for c in every) else {}
    names |= {"gold_recall": "gold"} if any(question.document for question in questions) else {}
    longest = max((row["passages"] for row in rows), default=0)
    summary: dict[str, Any] = {"questions": len(rows), "passages": longest}
    for name, rank in names.items():
        pairs = zip(rows, questions, strict=True)
        known = [row[f"rank_{rank}"] or np.inf for row, question in pairs if rank != "gold" or question.document]
        for depth in (depth for depth in DEPTHS if depth <= longest):
            summary[f"{name}_at_{depth}"] = _mean([float(found <= depth) for found in known])
    return Scored(rows, summary | matched.faults | {"patterns": patterns.counts()}, patterns.problems)


def _holds(rule: str, context: Context, question: Question, patterns: Patterns) -> bool:
    text = context.text or ""
    if rule == "stated":
        return bool(context.has_answer)
    if rule == "gold":  # the gold document, or a passage that it was cut into
        return bool(question.document) and question.document in (context.id, (context.id or "").rpartition("/")[0])
    if question.answer_kind == "regex":
        return rule == "answer" and patterns.found_in(text, question.answers, question.id)
    if rule == "answer":
        return holds_answer(normalise_answer(text), question.answers)
    return holds_raw_answer(text, question.answers)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
