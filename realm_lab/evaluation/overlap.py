"""Exact match by what training has already said (Lewis et al. 2021, Question and answer test-train overlap)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from realm_lab.corpus.answers import normalise_answer

GROUPS = ("question_overlap", "answer_overlap", "answer_overlap_only", "no_overlap")


class Overlap(NamedTuple):
    """What of one test question was in training: the question itself, and one of its answers (to any question)."""

    question: bool
    answer: bool

    @property
    def groups(self) -> tuple[str, ...]:
        """Those of `GROUPS` it belongs to; question_overlap, answer_overlap_only and no_overlap exclude each other."""
        if self.question:
            return ("question_overlap", "answer_overlap") if self.answer else ("question_overlap",)
        return ("answer_overlap", "answer_overlap_only") if self.answer else ("no_overlap",)


class TrainingText:
    """The questions and answers trained on, normalised as for exact match.

    Lewis et al. had people find paraphrases of questions; here only a question of the same normalised words counts, so
    question overlap is a lower bound of theirs.
    """

    def __init__(self, questions: Iterable[str], answers: Iterable[Sequence[str]]):
        self._questions = {normalise_answer(question) for question in questions}
        self._answers = {normalise_answer(answer) for references in answers for answer in references} - {""}

    def overlap(self, question: str, answers: Sequence[str]) -> Overlap:
        """Of one test question with its reference answers."""
        known = any(normalise_answer(answer) in self._answers for answer in answers)
        return Overlap(normalise_answer(question) in self._questions, known)


def split_by_overlap(overlaps: Sequence[Overlap], scores: Sequence[float]) -> dict[str, Any]:
    """exact_match_<group> (None where it is empty) and questions_<group>, for each group."""
    found: dict[str, Any] = {}
    for group in GROUPS:
        mine = [score for overlap, score in zip(overlaps, scores, strict=True) if group in overlap.groups]
        found[f"exact_match_{group}"] = sum(mine) / len(mine) if mine else None
        found[f"questions_{group}"] = len(mine)
    return found
