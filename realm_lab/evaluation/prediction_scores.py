"""Scores of predictions and of retrieved passages that were made elsewhere, question by question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
        by_benchmark: Metric = "regex" if question.answer_kind == "regex" else "orqa" if version is None else "squad"
        metric = by_benchmark if chosen == "auto" else chosen
        row = {"id": question.id, "question": question.question, "answers": list(question.answers), "metric": metric}
        prediction = entry.prediction if entry is not None else None
        exact, overlap = 0.0, None if metric == "regex" else 0.0
        if prediction is not None:
            exact, overlap = score_answer(
                prediction, question.answers, metric, patterns, question.id, rule=rule, version=version or "1.1"
            )
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
    return Scored(rows, summary | _faults(matched, patterns), patterns.problems)


def score_retrieval(questions: Sequence[Question], matched: Matched) -> Scored:
    """Recall@k of retrieved passages: by an answer in the text, by the raw letters (released code), by what the file
    says (`stated`) and by the gold document where it is known. A question without passages counts as not found."""
    patterns = Patterns()

    def holds(context: Context, question: Question) -> bool:
        if question.answer_kind == "regex":
            return patterns.found_in(context.text or "", question.answers, question.id)
        return holds_answer(normalise_answer(context.text or ""), question.answers)

    rules: dict[str, Callable[[Context, Question], bool]] = {
        "answer": holds,
        "answer_raw": lambda context, question: (
            question.answer_kind == "text" and holds_raw_answer(context.text or "", question.answers)
        ),
        "stated": lambda context, question: bool(context.has_answer),
        "gold": lambda context, question: (  # the gold document, or a passage that it was cut into
            question.document is not None
            and question.document in (context.id, (context.id or "").rpartition("/")[0] or None)
        ),
    }
    rows: list[dict[str, Any]] = []
    for question, entry in zip(questions, matched.entries, strict=True):
        contexts = (entry.contexts or ()) if entry is not None else ()
        ranks = {f"rank_{name}": _first(rule(c, question) for c in contexts) for name, rule in rules.items()}
        rows.append({"id": question.id, "question": question.question, "passages": len(contexts), **ranks})
    every = [context for entry in matched.entries if entry is not None for context in entry.contexts or ()]
    names = {"recall": "answer", "raw_recall": "answer_raw"} if _all(every, "text") else {}
    names |= {"stated_recall": "stated"} if _all(every, "has_answer") else {}
    names |= {"gold_recall": "gold"} if any(question.document for question in questions) else {}
    longest = max((row["passages"] for row in rows), default=0)
    summary: dict[str, Any] = {"questions": len(rows), "passages": longest}
    for name, rank in names.items():
        pairs = zip(rows, questions, strict=True)
        known = [row[f"rank_{rank}"] or np.inf for row, question in pairs if rank != "gold" or question.document]
        for depth in (depth for depth in DEPTHS if depth <= longest):
            summary[f"{name}_at_{depth}"] = _mean([float(found <= depth) for found in known])
    return Scored(rows, summary | _faults(matched, patterns), patterns.problems)


def _faults(matched: Matched, patterns: Patterns) -> dict[str, Any]:
    """What did not match, with the names."""
    named = {name: list(getattr(matched, name)) for name in ("missing", "contradictory", "repeated", "surplus")}
    return named | {"patterns": patterns.counts()}


def _all(contexts: Sequence[Context], name: str) -> bool:
    return bool(contexts) and all(getattr(context, name) is not None for context in contexts)


def _first(flags: Iterable[bool]) -> int | None:
    return next((place for place, flag in enumerate(flags, 1) if flag), None)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
