"""Exact match and F1 as published."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_lab.corpus.regex_answers import Patterns
from realm_lab.evaluation.open_qa import exact_match, f1, matches

WORDS = st.lists(st.sampled_from(["paris", "france", "of", "king"]), max_size=6)


@pytest.mark.parametrize(
    ("prediction", "answers", "same"),
    [
        ("The Beatles", ["beatles"], True),
        ("beatles", ["rolling stones", "The  Beatles!"], True),
        ("U.S.", ["us"], True),
        ("a theatre", ["theatre"], True),
        ("theatre", ["the atre"], False),  # articles are whole words
        ("anthem", ["them"], False),
        ("Beyonce", ["Beyoncé"], False),  # NFD takes an accent apart but does not drop it
        ("Beyonce\u0301", ["Beyonc\u00e9"], True),
        ("1 967", ["1967"], False),
        ("paris france", ["france paris"], False),
        ("paris", [], False),
        ("", ["paris"], False),
    ],
)
def test_exact_match(prediction: str, answers: list[str], same: bool) -> None:
    assert exact_match(prediction, answers) is same


@pytest.mark.parametrize(
    ("prediction", "answers", "value"),
    [
        ("the king of france", ["king france"], 2 * (2 / 3) * 1 / (2 / 3 + 1)),
        ("king king", ["king"], 2 * 0.5 * 1 / 1.5),  # a word counts as often as the reference has it
        ("king", ["queen"], 0.0),
        ("king", ["queen", "king of spain", "old king"], 2 * 1 * 0.5 / 1.5),  # the best reference
        ("king", [], 0.0),
        ("", ["king"], 0.0),
        ("the", ["a"], 1.0),  # nothing left of either
        ("the", ["king"], 0.0),
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
