"""Which values tell two runs apart: a new parameter keeps old keys, one that only observes is in none."""

from typing import Annotated

from pydantic import Field

from realm_lab.core.files import digest
from realm_lab.params.parameters import Params
from realm_lab.params.sections import OBSERVES, Section, identity_values, neutral


class Inner(Section):
    new: Annotated[list[int], neutral([])] = Field(default=[3])


class Before(Section):
    rate: float = 0.1


class After(Before):
    scheme: Annotated[str, neutral("old")] = "old"
    examples: Annotated[int, OBSERVES] = 12
    inner: Inner = Inner(new=[])


def test_parameters_that_came_later_keep_the_key_of_what_ran_before():
    assert identity_values(After(examples=3)) == identity_values(Before()) == {"rate": 0.1}
    changed = identity_values(After(scheme="new", inner=Inner()))
    assert changed == {"rate": 0.1, "scheme": "new", "inner": {"new": [3]}}


def test_the_neutral_value_is_the_old_behaviour_even_where_the_default_is_another():
    assert identity_values(Inner()) == {"new": [3]}
    assert identity_values(Inner(new=[])) == {}


def test_only_the_sections_asked_for_and_plain_json():
    found = identity_values(Params(), ["model", "evaluate"])
    assert list(found) == ["model", "evaluate"]
    assert "explorer_examples" not in found["evaluate"]
    digest(found)
