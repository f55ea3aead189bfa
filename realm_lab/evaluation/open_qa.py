"""Exact match and F1 of answers, as published: of the released code (ORQA, REALM), of SQuAD, of regular expressions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from realm_lab.corpus.answers import normalise_answer, normalise_squad
from realm_lab.corpus.regex_answers import Patterns, Rule

Metric = Literal["orqa", "squad", "regex"]
SquadVersion = Literal["1.1", "2.0"]


class Scores(NamedTuple):
    """Of one answer: official exact match, the released code's span-level exact match (equal wordpieces), and F1."""

    exact_match: float
    exact_match_span: float | None  # None: the answer is no span; as F1 where references are regular expressions
    f1: float | None


class Score(NamedTuple):
    """What one prediction is worth."""

    exact_match: float
    f1: float | None  # None where the answers are regular expressions


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Official exact match: equal to any reference after normalisation (released code, section 4.1)."""
    normalised = normalise_answer(prediction)
    return any(normalised == normalise_answer(answer) for answer in answers)


def matches(prediction: str, answers: Sequence[str], kind: str, patterns: Patterns, question: str) -> bool:
    """Exact match, or of `kind` regex whether one matches from the prediction's start (released code)."""
    return patterns.matches(prediction, answers, question) if kind == "regex" else exact_match(prediction, answers)


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Best word-overlap F1 with any reference (SQuAD; Rajpurkar et al. 2016), in the released code's normal form."""
    return max((_f1(normalise_answer(prediction).split(), normalise_answer(a).split()) for a in answers), default=0.0)


def mean_scores(scores: Sequence[Scores]) -> dict[str, float | None]:
    """The mean of each measure over the answers that have it; None where none has."""
    means: dict[str, float | None] = {}
    for name in Scores._fields:
        values = [value for score in scores if (value := getattr(score, name)) is not None]
        means[name] = sum(values) / len(values) if values else None
    return means


def squad(prediction: str, answers: Sequence[str], version: SquadVersion = "1.1") -> Score:
    """Exact match and F1 of the official scripts of SQuAD v1.1 and v2.0, the best over the references.

    They differ where nothing is left of a text. v1.1 takes every reference as it is, and F1 with an empty text is 0.
    v2.0 leaves out references of which nothing is left; a question without any (no answer) expects the empty
    prediction, for which both scores are then 1.
    """
    if version == "2.0":
        answers = [answer for answer in answers if normalise_squad(answer)] or [""]
    predicted = normalise_squad(prediction)
    references = [normalise_squad(answer) for answer in answers]
    both_empty = 0.0 if version == "1.1" else 1.0
    scores = [_f1(predicted.split(), reference.split(), both_empty) for reference in references]
    return Score(float(predicted in references), max(scores, default=0.0))


def score_answer(
    prediction: str,
    answers: Sequence[str],
    metric: Metric,
    patterns: Patterns,
    question: str,
    *,
    rule: Rule = "start",
    version: SquadVersion = "1.1",
) -> Score:
    """Scores of a prediction by one metric. `question` names a regular expression's problem in `patterns`."""
    if metric == "squad":
        return squad(prediction, answers, version)
    if metric == "regex":
        return Score(float(patterns.matches(prediction, answers, question, rule)), None)
    return Score(float(exact_match(prediction, answers)), f1(prediction, answers))


def _f1(predicted: list[str], reference: list[str], both_empty: float = 1.0) -> float:
    if not predicted or not reference:
        return both_empty if predicted == reference else 0.0
    common = sum((Counter(predicted) & Counter(reference)).values())
    return 2 * common / (len(predicted) + len(reference))
