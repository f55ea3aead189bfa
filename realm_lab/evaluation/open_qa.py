"""Exact match and F1 of answers, as the released code (ORQA, REALM) scores them; exact match by overlap with training.

The overlap is defined as in Lewis et al. 2021, Question and answer test-train overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from realm_lab.corpus.answers import normalise_answer
from realm_lab.corpus.regex_answers import Patterns
from realm_lab.corpus.store import Questions


class Scores(NamedTuple):
    """Scores of one answer: official exact match, the released code's span-level exact match (equal wordpieces), F1."""

    exact_match: float
    exact_match_span: float | None  # None: the answer is no span; as F1 where references are regular expressions
    f1: float | None


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Return official exact match: equal to any reference after normalisation (released code, section 4.1)."""
    normalised = normalise_answer(prediction)
    return any(normalised == normalise_answer(answer) for answer in answers)


def matches(prediction: str, answers: Sequence[str], kind: str, patterns: Patterns, question: str) -> bool:
    """Return exact match, or for `kind` regex whether one matches from the prediction's start (released code)."""
    return patterns.matches(prediction, answers, question) if kind == "regex" else exact_match(prediction, answers)


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Return best word-overlap F1 with any reference (SQuAD; Rajpurkar et al. 2016), in the released code's normal
    form."""
    predicted = normalise_answer(prediction).split()
    return max((_f1(predicted, normalise_answer(answer).split()) for answer in answers), default=0.0)


def _f1(predicted: list[str], reference: list[str]) -> float:
    if not predicted or not reference:
        return float(predicted == reference)
    common = sum((Counter(predicted) & Counter(reference)).values())
    return 2 * common / (len(predicted) + len(reference))


def mean_scores(scores: Sequence[Scores]) -> dict[str, float | None]:
    """Return the mean of each measure over the answers that have it; None if none has."""
    means: dict[str, float | None] = {}
    for name in Scores._fields:
        values = [value for score in scores if (value := getattr(score, name)) is not None]
        means[name] = sum(values) / len(values) if values else None
    return means


class Overlap(NamedTuple):
    """Overlap of a test question with training: the question itself, and one of its answers (to any question)."""

    question: bool
    answer: bool


GROUPS: dict[str, Callable[[Overlap], bool]] = {
    "question_overlap": lambda overlap: overlap.question,
    "answer_overlap": lambda overlap: overlap.answer,
    "answer_overlap_only": lambda overlap: overlap.answer and not overlap.question,
    "no_overlap": lambda overlap: not overlap.answer and not overlap.question,
}


def find_overlaps(trained: Questions, texts: Sequence[str], answers: Sequence[Sequence[str]]) -> list[Overlap]:
    """Return the overlap of each tested question. Only a question of the same normalised words counts as the same, a
    lower bound of the overlap that people found for Lewis et al."""
    questions = set(map(normalise_answer, trained.texts))
    said = {normalise_answer(answer) for known in trained.answers for answer in known} - {""}
    return [
        Overlap(normalise_answer(question) in questions, not said.isdisjoint(map(normalise_answer, own)))
        for question, own in zip(texts, answers, strict=True)
    ]


def split_by_overlap(overlaps: Sequence[Overlap], scores: Sequence[float]) -> dict[str, Any]:
    """Return exact_match_<group> (None if it is empty) and questions_<group>, for each group."""
    found: dict[str, Any] = {}
    for group, is_in in GROUPS.items():
        mine = [score for overlap, score in zip(overlaps, scores, strict=True) if is_in(overlap)]
        found[f"exact_match_{group}"] = sum(mine) / len(mine) if mine else None
        found[f"questions_{group}"] = len(mine)
    return found
