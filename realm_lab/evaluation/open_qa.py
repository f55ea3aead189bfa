"""Exact match and F1 of answers, as published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from realm_lab.corpus.answers import normalise_answer


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Official exact match: equal to any reference after normalisation (released code, section 4.1)."""
    normalised = normalise_answer(prediction)
    return any(normalised == normalise_answer(answer) for answer in answers)


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Best word-overlap F1 with any reference (SQuAD; Rajpurkar et al. 2016)."""
    return max((_f1(normalise_answer(prediction).split(), normalise_answer(a).split()) for a in answers), default=0.0)


def _f1(predicted: list[str], reference: list[str]) -> float:
    if not predicted or not reference:
        return float(predicted == reference)
    common = sum((Counter(predicted) & Counter(reference)).values())
    return 2 * common / (len(predicted) + len(reference))
