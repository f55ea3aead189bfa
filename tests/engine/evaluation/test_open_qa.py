"""Exact match and F1 as published, and overlap with training."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_lab.engine.corpus.regex_answers import Patterns
from realm_lab.engine.evaluation.open_qa import exact_match, f1, matches
from realm_lab.engine.evaluation.overlap import Overlap, find_overlaps, split_by_overlap

WORDS = st.lists(st.sampled_from(["paris", "france", "of", "king"]), max_size=6)


@pytest.mark.parametrize(
    ("prediction", "answers", "same"),
    [
        ("The Beatles", ["beatles"], True),
        ("beatles", ["rolling stones", "The  Beatles!"], True),
        ("theatre", ["the atre"], False),  # articles are whole words
        ("Beyonce\u0301", ["Beyonc\u00e9"], True),
        ("paris", [], False),
    ],
)
def test_exact_match(prediction: str, answers: list[str], same: bool) -> None:
    assert exact_match(prediction, answers) is same


@pytest.mark.parametrize(
    ("prediction", "answers", "value"),
    [
        ("the king of france", ["king france"], 2 * (2 / 3) * 1 / (2 / 3 + 1)),
        ("king king", ["king"], 2 * 0.5 * 1 / 1.5),  # a word counts as often as the reference has it
        ("king", ["queen", "king of spain", "old king"], 2 * 1 * 0.5 / 1.5),  # the best reference
        ("the", ["a"], 0.0),  # nothing is left of either: equal only if the same
    ],
)
def test_f1(prediction: str, answers: list[str], value: float) -> None:
    assert f1(prediction, answers) == pytest.approx(value)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_f1_is_the_harmonic_mean_of_precision_and_recall(predicted: list[str], references: list[list[str]]) -> None:
    values = []
    for reference in references:
        rest = list(reference)
        common = 0
        for word in predicted:
            if word in rest:
                rest.remove(word)
                common += 1
        if not predicted or not reference:
            values.append(float(predicted == reference))
        elif not common:
            values.append(0.0)
        else:
            precision, recall = common / len(predicted), common / len(reference)
            values.append(2 * precision * recall / (precision + recall))
    assert f1(" ".join(predicted), [" ".join(reference) for reference in references]) == pytest.approx(max(values))


def test_a_regular_expression_matches_from_the_start_and_what_is_wrong_with_it_is_named() -> None:
    patterns = Patterns()
    assert matches("Beyonc\u00e9 Knowles", ["Beyonc\u00e9"], "regex", patterns, "q")
    assert not matches("Beyonc\u00e9 Knowles", ["Beyonc\u00e9"], "text", patterns, "q")
    assert not matches("x", ["("], "regex", patterns, "q7")
    assert [(problem.question, problem.pattern) for problem in patterns.problems] == [("q7", "(")]


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
