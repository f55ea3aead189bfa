"""Errors for users: the name that was probably meant, and one line with the remedy."""

import copy

import pytest

from realm_lab.errors import UserError, nearest, suggestion


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("pretain", "pretrain"),
        ("h10O", "H100"),
        ("own_text", ""),  # shares letters with some, and is none of them
        ("c", ""),
        ("", ""),
    ],
)
def test_a_name_is_near_or_none_is(name: str, near: str) -> None:
    known = ["pretrain", "H100", "dpr", "b", "quick", "cancel"]
    assert nearest(name, known) == near
    assert suggestion(name, known) == (f"did you mean '{near}'?" if near else f"choose from: {', '.join(known)}")
    assert nearest(name, []) == ""


def test_an_error_has_fields_and_one_line() -> None:
    error = UserError("it is wrong", parameter="a.b", path="f.yaml", line=3, remedy="mend it")
    assert str(error) == "f.yaml, line 3: it is wrong; mend it"
    again = copy.copy(error)
    assert (vars(again), str(again)) == (vars(error), str(error))
    assert (str(UserError("it is wrong", path="--set")), str(UserError("it is wrong"))) == (
        "--set: it is wrong",
        "it is wrong",
    )
