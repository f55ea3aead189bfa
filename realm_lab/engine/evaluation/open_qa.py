"""Exact match and F1 of answers, as the released code (ORQA, REALM) scores them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from realm_lab.engine.corpus.answers import normalise_answer
from realm_lab.engine.corpus.regex_answers import Patterns


class Scores(NamedTuple):
    """Scores of an answer: normalised exact match, the span-level exact match of the released code (wordpieces), F1."""

    exact_match: float
    exact_match_span: float | None  # None if the answer is no span; like f1, None for regular expressions
    f1: float | None


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """True if a prediction equals any reference after normalisation (released code, section 4.1). A text that
    normalisation leaves empty is compared as it is written, in lower case."""
    return any(_compared(prediction) == _compared(answer) for answer in answers)


def _compared(text: str) -> str:
    """Return the normal form of an answer, or the text in lower case if nothing is left of it ("A", "~.~"): in the
    released code all such texts are equal."""
    return normalise_answer(text) or text.strip().lower()


def matches(prediction: str, answers: Sequence[str], kind: str, patterns: Patterns, question: str) -> bool:
    """Return exact match; for `kind` regex, true if a pattern matches from the prediction's start (released code)."""
    return patterns.matches(prediction, answers, question) if kind == "regex" else exact_match(prediction, answers)


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Return best word-overlap F1 with any reference (SQuAD; Rajpurkar et al. 2016), in the released code's normal
    form."""
    predicted = _compared(prediction).split()
    return max((_f1(predicted, _compared(answer).split()) for answer in answers), default=0.0)


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
