"""Exact match and F1 as published."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_lab.corpus.regex_answers import Patterns
from realm_lab.evaluation.open_qa import Metric, Score, exact_match, f1, score_answer, squad

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


# The definition, in words: lower case; ASCII punctuation goes without leaving a blank; then the whole words a, an and
# the go; then blanks are made single. Exact match: the results are equal. F1: of the words, each as often as it stands.
SQUAD = [
    # prediction, answers, exact match, F1 (v1.1)
    ("The Beatles", ["Beatles"], 1, 1.0),
    ("theatre", ["atre"], 0, 0.0),  # an article inside a word stays
    ("Anaheim", ["naheim"], 0, 0.0),
    ("a-ha", ["aha"], 1, 1.0),  # punctuation goes first, so that 'a' is no word
    ("a ha", ["ha"], 1, 1.0),
    ("the-end", ["end"], 0, 0.0),  # 'theend'
    ("U.S.", ["US"], 1, 1.0),
    ("U. S.", ["US"], 0, 0.0),  # 'u s'
    ("1,250", ["1250"], 1, 1.0),
    ("1250.0", ["1250"], 0, 0.0),  # '12500'
    ("$1.5 million", ["15 million"], 1, 1.0),
    ("1 250", ["1250"], 0, 0.0),
    ("24–10", ["24-10"], 0, 0.0),  # an en dash is no ASCII punctuation, a hyphen goes: '24–10', '2410'
    ("twenty-one", ["twentyone"], 1, 1.0),
    ("twenty-one", ["twenty one"], 0, 0.0),
    ("“golden”", ["golden"], 0, 0.0),  # quotation marks of Unicode stay
    ('"golden"', ["golden"], 1, 1.0),
    ("Beyonc\u00e9", ["Beyonce\u0301"], 0, 0.0),  # no NFD in SQuAD's script, unlike the released code's
    ("Beyonc\u00e9", ["beyonc\u00c9"], 1, 1.0),
    ("the the the", ["the"], 1, 0.0),  # nothing is left of either: equal, but no word in common (v1.1)
    ("", ["Paris"], 0, 0.0),
    ("Paris", ["the"], 0, 0.0),
    ("!", ["?"], 1, 0.0),
    ("new\u00a0york", ["new york"], 1, 1.0),  # split() knows the blanks of Unicode
    ("new\u200byork", ["new york"], 0, 0.0),  # a zero-width space is none
    ("tab\tand\nline", ["tab and line"], 1, 1.0),
    ("to be or not to be", ["to be"], 0, 2 * (2 / 6) * 1 / (2 / 6 + 1)),
    ("to to to", ["to be to"], 0, 2 / 3),  # twice in both
    ("Denver Broncos", ["Broncos of Denver", "The Denver Broncos football team"], 0, 0.8),  # the better reference
    ("x y", ["a x", "y z"], 0, 2 * 0.5 * 1 / 1.5),  # 'x' alone is left of the first
    ("Paris, France", ["paris france", "France"], 1, 1.0),
    ("İstanbul", ["i\u0307stanbul"], 1, 1.0),  # lower() of U+0130 is two code points
    ("STRASSE", ["straße"], 0, 0.0),  # lower case, not case folding
    ("Ω", ["ω"], 1, 1.0),
]


@pytest.mark.parametrize(("prediction", "answers", "exact", "overlap"), SQUAD)
def test_squad_is_as_the_official_script_says(prediction: str, answers: list[str], exact: int, overlap: float) -> None:
    score = squad(prediction, answers)
    assert score.exact_match == exact
    assert score.f1 == pytest.approx(overlap)


@pytest.mark.parametrize(
    ("prediction", "answers", "old", "new"),
    [
        ("", [], (0, 0), (1, 1)),  # no answer: v2.0 asks for the empty prediction
        ("Paris", [], (0, 0), (0, 0)),
        ("the", [], (0, 0), (1, 1)),  # of which nothing is left
        ("", ["the", "Paris"], (1, 0), (0, 0)),  # v2.0 leaves 'the' out of the references
        ("", ["the"], (1, 0), (1, 1)),
        ("paris", ["the", "Paris"], (1, 1), (1, 1)),
    ],
)
def test_the_two_scripts_of_squad_differ_where_nothing_is_left(
    prediction: str, answers: list[str], old: tuple[int, int], new: tuple[int, int]
) -> None:
    assert list(squad(prediction, answers, "1.1")) == list(old)
    assert list(squad(prediction, answers, "2.0")) == list(new)


def test_each_metric_has_its_own_rule() -> None:
    patterns = Patterns()

    def score(prediction: str, metric: Metric) -> Score:
        return score_answer(prediction, ["Beyonc\u00e9"], metric, patterns, "q")

    assert score("Beyonce\u0301", "orqa") == (1.0, 1.0)
    assert score("Beyonce\u0301", "squad") == (0.0, 0.0)
    assert score("Beyonc\u00e9 Knowles", "regex") == (1.0, None)  # from the start, as the released code matches
    assert score_answer("Beyonc\u00e9 Knowles", ["Beyonc\u00e9"], "regex", patterns, "q", rule="full") == (0.0, None)
    assert score_answer("", [], "squad", patterns, "q", version="2.0") == (1.0, 1.0)
    assert score_answer("x", ["("], "regex", patterns, "q7") == (0.0, None)
    assert [(problem.question, problem.pattern) for problem in patterns.problems] == [("q7", "(")]
