"""The name that was probably meant, and the remedy if none is near."""

import copy

import pytest

from realm_lab.errors import UserError, nearest, suggestion


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("pretain", "pretrain"),
        ("PRETRAIN", "pretrain"),
        ("h10O", "H100"),
        ("drp", "dpr"),
        ("own_text", ""),  # shares letters with some, and is none of them
        ("c", ""),
        ("cell", ""),
        ("", ""),
    ],
)
def test_a_name_is_near_or_none_is(name: str, near: str) -> None:
    known = ["pretrain", "H100", "dpr", "b", "quick", "cancel"]
    assert nearest(name, known) == near
    assert suggestion(name, known) == (f"did you mean '{near}'?" if near else f"choose from: {', '.join(known)}")
    assert nearest(name, []) == ""


def test_a_long_list_of_names_is_cut() -> None:
    known = [f"{number}" * 9 for number in range(100, 200)]
    listed = suggestion("x", known)
    assert listed.endswith(", ...")
    assert listed.count(", ") == 20


def test_an_error_has_fields_and_one_line() -> None:
    error = UserError("it is wrong", parameter="a.b", path="f.yaml", line=3, remedy="mend it")
    assert str(error) == "f.yaml, line 3: it is wrong; mend it"
    again = copy.copy(error)
    assert (vars(again), str(again)) == (vars(error), str(error))
    assert (str(UserError("it is wrong", path="--set")), str(UserError("it is wrong"))) == (
        "--set: it is wrong",
        "it is wrong",
    )
