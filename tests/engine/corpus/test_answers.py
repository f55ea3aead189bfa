"""Answers: how texts are normalised and held by passages, and how regular expressions match."""

import re
import unicodedata

import pytest

from realm_lab.engine.corpus.answers import holds_answer, normalise_answer
from realm_lab.engine.corpus.regex_answers import Patterns, Problem


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Beatles", "beatles"),
        ("  a   cat,  an owl & the dog. ", "cat owl dog"),
        ("theatre another a-team", "theatre another ateam"),  # punctuation goes first: 'a-team' is one word
        ("U.S.A.", "usa"),
        ("1,250", "1250"),
        ("Beyonc\u00e9", "beyonce\u0301"),  # decomposed, the accent stays
        ("Ko\u0308ln", "ko\u0308ln"),
        ("ÉCOLE", "e\u0301cole"),
        ("the ...", ""),
        ("“quoted”", "“quoted”"),  # ASCII punctuation only
    ],
)
def test_normal_form(text: str, normal: str) -> None:
    assert normalise_answer(text) == normal


@pytest.mark.parametrize(
    ("text", "answers", "held"),
    [
        ("The capital of France is Paris.", ["London", "paris"], True),
        ("Parisian cafes", ["Paris"], False),  # whole words
        ("comparison", ["paris"], False),
        ("New York City", ["york city"], True),
        ("New York City", ["new city"], False),  # neighbours, in order
        ("It has 1,250 seats", ["1250"], True),
        ("nothing of use", ["the"], False),  # an answer that normalises to nothing is held by no text
        ("", ["the"], False),
        ("Paris", ["Paris"], True),  # the whole text
    ],
)
def test_holds_answer(text: str, answers: list[str], held: bool) -> None:
    assert holds_answer(normalise_answer(text), answers) is held


CATASTROPHIC = "(a|aa)+$"
ENDLESS_ON = "a" * 60 + "b"


@pytest.mark.parametrize(
    ("text", "pattern", "start", "anywhere"),
    [
        ("New York", r"New\s?York", True, True),
        ("new york city", r"New\s?York", True, True),  # the released code asks only for the start
        ("in New York", r"New\s?York", False, True),
        ("Feb", "Sept?(ember)?|Feb(ruary)?", True, True),
        ("in\nFebruary", "^Feb", False, True),  # ^ is at every line
        ("ÉCOLE", "école", True, True),  # letters of Unicode have cases too
    ],
)
def test_rules(text: str, pattern: str, start: bool, anywhere: bool) -> None:
    patterns = Patterns()
    assert patterns.matches(text, [pattern], "q") is start
    assert patterns.found_in(text, [pattern], "q") is anywhere
    plain = re.compile(pattern, re.IGNORECASE | re.UNICODE | re.MULTILINE)
    assert start is (plain.match(text) is not None)
    assert not patterns.problems


@pytest.mark.parametrize("pattern", [r"a{2}", r"\{e\}|aa", r"a{1,3}", r"[\[:al]+", r"(?P<n>a)(?P=n)", r"a++"])
def test_what_both_read_in_the_same_way_matches(pattern: str) -> None:
    patterns = Patterns()
    assert patterns.matches("aa", [pattern], "q")
    assert not patterns.problems


INVALID = ["(", "a**", "[", "\\", "(?P<n>", "a{2,1}", "*", "(" * 3000 + "a" + ")" * 3000, "(?<x>a)(?<=", r"\p{Nope}"]
OF_ANOTHER_MEANING = ["[[:alpha:]]", r"\pL", "(?P<a>x)(?P<a>y)", "(?<a>a)", "(?:ab){e<=1}", "(?|a|b)", r"a\K", r"a\R"]


@pytest.mark.parametrize("pattern", INVALID + OF_ANOTHER_MEANING)
def test_an_invalid_pattern_matches_nothing_and_is_named(pattern: str) -> None:
    patterns = Patterns()
    assert not patterns.matches("a", [pattern], "q1")
    assert not patterns.matches("b", [pattern], "q1")  # named once for each question
    assert patterns.matches("a", [pattern, "a"], "q2")  # the other reference counts
    found = patterns.problems
    assert [(p.question, p.pattern, p.kind) for p in found] == [("q1", pattern, "invalid"), ("q2", pattern, "invalid")]
    assert all(problem.error for problem in found)
    assert patterns.counts() == {"invalid": 2, "timeout": 0, "empty": 0}


@pytest.mark.parametrize("pattern", [".*", "Paris|", "", "x?"])
def test_a_pattern_that_matches_everything_counts_and_is_named(pattern: str) -> None:
    patterns = Patterns()
    assert patterns.found_in("London", [pattern], "q")
    assert [(p.question, p.pattern, p.kind) for p in patterns.problems] == [("q", pattern, "empty")]


def test_a_pattern_without_end_is_given_up_and_named() -> None:
    patterns = Patterns(time_limit_seconds=0.05)
    assert not patterns.matches(ENDLESS_ON, [CATASTROPHIC], "q")
    assert not patterns.matches("aaa", [CATASTROPHIC], "q")  # it would match, but is not tried again
    assert patterns.matches("aaa", [CATASTROPHIC, "a+"], "q")
    assert patterns.problems == [
        Problem("q", CATASTROPHIC, "timeout", f"no end after 0.05 s on {len(ENDLESS_ON)} letters")
    ]
    assert patterns.counts() == {"invalid": 0, "timeout": 1, "empty": 0}
    assert Patterns().matches("aaa", [CATASTROPHIC], "q")


def test_a_passage_is_searched_in_nfd() -> None:
    patterns = Patterns()
    composed = "The singer Beyonc\u00e9 was born in Houston."
    decomposed = unicodedata.normalize("NFD", composed)
    assert decomposed != composed
    for text in (composed, decomposed):
        assert patterns.found_in(text, ["beyonc\u00e9"], "q")
        assert patterns.found_in(text, ["BEYONCE\u0301 was"], "q")
        assert not patterns.found_in(text, ["^Beyonc"], "q")
