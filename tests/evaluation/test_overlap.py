"""Overlap with training, on questions made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from realm_lab.evaluation.overlap import Overlap, find_overlaps, split_by_overlap

TRAINED: Any = SimpleNamespace(
    texts=["Who wrote Hamlet?", "Where is the Eiffel Tower?", "Who came third?"],
    answers=[["William Shakespeare", "Shakespeare"], ["Paris"], ["The"]],
)


@pytest.mark.parametrize(
    ("question", "answers", "expected"),
    [
        ("who wrote  the Hamlet", ["Marlowe"], Overlap(question=True, answer=False)),  # as exact match would have it
        ("Who wrote Hamlet?", ["shakespeare."], Overlap(question=True, answer=True)),
        ("Who wrote Hamlet in English?", ["Bacon", "a Shakespeare"], Overlap(question=False, answer=True)),
        ("Who wrote Faust?", ["Goethe"], Overlap(question=False, answer=False)),
        ("What is the capital of France?", ["Paris, France"], Overlap(question=False, answer=False)),  # not a part
        ("Which article?", ["an"], Overlap(question=False, answer=False)),  # nothing is left of either answer
        ("Who knows?", [], Overlap(question=False, answer=False)),
    ],
)
def test_overlap_is_equality_after_normalisation(question: str, answers: list[str], expected: Overlap) -> None:
    assert find_overlaps(TRAINED, [question], [answers]) == [expected]


def test_exact_match_is_split_by_hand() -> None:
    overlaps = [Overlap(True, True), Overlap(True, False), Overlap(False, True), Overlap(False, True)]
    assert split_by_overlap(overlaps, [1.0, 0.0, 1.0, 1.0]) == {
        "exact_match_question_overlap": 0.5,
        "questions_question_overlap": 2,
        "exact_match_answer_overlap": 1.0,
        "questions_answer_overlap": 3,
        "exact_match_answer_overlap_only": 1.0,
        "questions_answer_overlap_only": 2,
        "exact_match_no_overlap": None,
        "questions_no_overlap": 0,
    }
