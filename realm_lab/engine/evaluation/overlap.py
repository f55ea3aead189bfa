"""Exact match by overlap with training questions (Lewis et al. 2021, Question and answer test-train overlap)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from realm_lab.engine.corpus.answers import normalise_answer
from realm_lab.engine.corpus.store import Questions


class Overlap(NamedTuple):
    """Overlap of a test question with training. `question`: it is a training question too. `answer`: a training
    question has one of its answers."""

    question: bool
    answer: bool


GROUPS: dict[str, Callable[[Overlap], bool]] = {
    "question_overlap": lambda overlap: overlap.question,
    "answer_overlap": lambda overlap: overlap.answer,
    "answer_overlap_only": lambda overlap: overlap.answer and not overlap.question,
    "no_overlap": lambda overlap: not overlap.answer and not overlap.question,
}


def find_overlaps(trained: Questions, texts: Sequence[str], answers: Sequence[Sequence[str]]) -> list[Overlap]:
    """Return the overlap of each test question. Questions with equal normalised words count as the same, so this is a
    lower bound of the overlap that annotators found for Lewis et al."""
    questions = set(map(normalise_answer, trained.texts))
    known_answers = {normalise_answer(answer) for known in trained.answers for answer in known} - {""}
    return [
        Overlap(normalise_answer(question) in questions, not known_answers.isdisjoint(map(normalise_answer, own)))
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
