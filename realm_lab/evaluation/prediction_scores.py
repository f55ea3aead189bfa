"""Scores of predictions and of retrieved passages that were made elsewhere, question by question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from realm_lab.corpus.answers import holds_answer, holds_raw_answer, normalise_answer
from realm_lab.corpus.records import Question
from realm_lab.corpus.regex_answers import Patterns, Problem, Rule
from realm_lab.evaluation.open_qa import Metric, SquadVersion, score_answer
from realm_lab.evaluation.prediction_files import Context, Matched

DEPTHS = (1, 5, 10, 20, 50, 100)
ChosenMetric = Literal["auto", "orqa", "squad", "regex"]


class Scored(NamedTuple):
    """A file's scores: of each question, and together."""

    rows: list[dict[str, Any]]  # one a question, in their order
    summary: dict[str, Any]
    problems: list[Problem]


def metric_of(question: Question, chosen: ChosenMetric, version: SquadVersion | None) -> Metric:
    """`auto`: what each benchmark is scored by."""
    if chosen != "auto":
        return chosen
    if question.answer_kind == "regex":
        return "regex"
    return "orqa" if version is None else "squad"


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
        metric = metric_of(question, chosen, version)
        row = {"id": question.id, "question": question.question, "answers": list(question.answers), "metric": metric}
        prediction = entry.prediction if entry is not None else None
        exact, overlap = 0.0, None if metric == "regex" else 0.0
        if prediction is not None:
            exact, overlap = score_answer(
                prediction, question.answers, metric, patterns, question.id, rule=rule, version=version or "1.1"
            )
        rows.append(row | {"prediction": prediction, "exact_match": exact, "f1": overlap})
    answered = [row["exact_match"] for row in rows if row["prediction"] is not None]
    overlaps = [row["f1"] for row in rows if row["f1"] is not None]
    summary: dict[str, Any] = {
        "questions": len(rows),
        "metrics": sorted({row["metric"] for row in rows}),
        "exact_match": _mean([row["exact_match"] for row in rows]),
        "f1": _mean(overlaps),
        "exact_match_answered": _mean(answered),
        "answered": len(answered),
        "empty": sum(row["prediction"] is not None and not row["prediction"].strip() for row in rows),
    }
    return Scored(rows, summary | faults(matched) | {"patterns": patterns.counts()}, patterns.problems)


def score_retrieval(questions: Sequence[Question], matched: Matched) -> Scored:
    """Recall@k of retrieved passages: by an answer in the text, by the raw letters (released code), by what the file
    says (`stated`) and by the gold document where it is known. A question without passages counts as not found."""
    patterns = Patterns()
    rows: list[dict[str, Any]] = []
    for question, entry in zip(questions, matched.entries, strict=True):
        contexts = (entry.contexts or ()) if entry is not None else ()
        row: dict[str, Any] = {"id": question.id, "question": question.question, "passages": len(contexts)}
        row["rank_answer"] = _first(_held(contexts, question, patterns))
        row["rank_answer_raw"] = _first(
            question.answer_kind == "text" and holds_raw_answer(context.text or "", question.answers)
            for context in contexts
        )
        row["rank_stated"] = _first(bool(context.has_answer) for context in contexts)
        row["rank_gold"] = _first(_is_of(context, question.document) for context in contexts)
        rows.append(row)
    every = [context for entry in matched.entries if entry is not None for context in entry.contexts or ()]
    longest = max((row["passages"] for row in rows), default=0)
    names = {"recall_at": "rank_answer", "raw_recall_at": "rank_answer_raw"} if _all(every, "text") else {}
    names |= {"stated_recall_at": "rank_stated"} if _all(every, "has_answer") else {}
    names |= {"gold_recall_at": "rank_gold"} if any(question.document for question in questions) else {}
    summary: dict[str, Any] = {"questions": len(rows), "passages": longest}
    for name, rank in names.items():
        known = [row for row, question in zip(rows, questions, strict=True) if name[0] != "g" or question.document]
        for depth in (depth for depth in DEPTHS if depth <= longest):
            summary[f"{name}_{depth}"] = _mean([float(0 < (row[rank] or 0) <= depth) for row in known])
    return Scored(rows, summary | faults(matched) | {"patterns": patterns.counts()}, patterns.problems)


def faults(matched: Matched) -> dict[str, Any]:
    """What did not match, with the names."""
    return {name: list(getattr(matched, name)) for name in ("missing", "contradictory", "repeated", "surplus")}


def _held(contexts: Sequence[Context], question: Question, patterns: Patterns) -> Iterator[bool]:
    for context in contexts:
        if question.answer_kind == "regex":
            yield patterns.found_in(context.text or "", question.answers, question.id)
        else:
            yield holds_answer(normalise_answer(context.text or ""), question.answers)


def _is_of(context: Context, document: str | None) -> bool:
    """Whether a passage is the gold document, or one of the passages that it was cut into."""
    if document is None or context.id is None:
        return False
    return context.id == document or context.id.rpartition("/")[0] == document


def _all(contexts: Sequence[Context], name: str) -> bool:
    return bool(contexts) and all(getattr(context, name) is not None for context in contexts)


def _first(flags: Any) -> int | None:
    return next((place for place, flag in enumerate(flags, 1) if flag), None)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
