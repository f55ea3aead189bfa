"""Answer strings: the released code's normal form, and whole words only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_lab.corpus.answers import holds_answer, normalise_answer


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Beatles", "beatles"),
        ("  a   cat,  an owl & the dog. ", "cat owl dog"),
        ("theatre another a-team", "theatre another ateam"),  # punctuation goes first: 'a-team' is one word
        ("U.S.A.", "usa"),
        ("1,250", "1250"),
        ("Beyonc\u00e9", "beyonce\u0301"),  # decomposed, the accent stays
        ("K\u00f6ln", "ko\u0308ln"),
        ("Ko\u0308ln", "ko\u0308ln"),
        ("ÉCOLE", "e\u0301cole"),
        ("the", ""),
        ("...", ""),
        ("“quoted”", "“quoted”"),  # ASCII punctuation only
    ],
)
def test_normal_form(text: str, normal: str) -> None:
    assert normalise_answer(text) == normal


@given(st.text(max_size=40))
def test_the_normal_form_is_lower_case_in_single_blanks(text: str) -> None:
    normal = normalise_answer(text)
    assert normal == " ".join(normal.split())
    assert not {"a", "an", "the"} & set(normal.split(" "))
    assert not set(normal) & set(",.!?\"'()-_")


@pytest.mark.parametrize(
    ("text", "answers", "held"),
    [
        ("The capital of France is Paris.", ["Paris"], True),
        ("The capital of France is Paris.", ["London", "paris"], True),
        ("Parisian cafes", ["Paris"], False),  # whole words
        ("comparison", ["paris"], False),
        ("New York City", ["york city"], True),
        ("New York City", ["new city"], False),  # neighbours, in order
        ("It has 1,250 seats", ["1250"], True),
        ("nothing of use", ["the"], False),  # an answer that normalises to nothing is held by no text
        ("anything", [], False),
        ("", ["x"], False),
        ("", ["the"], False),
        ("Paris", ["Paris"], True),  # the whole text
    ],
)
def test_holds_answer(text: str, answers: list[str], held: bool) -> None:
    assert holds_answer(normalise_answer(text), answers) is held
