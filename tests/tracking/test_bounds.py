"""The bounds and the parameters that set them are the same things."""

from __future__ import annotations

import pytest

from realm_lab.params.sections import Watch
from realm_lab.tracking.bounds import BOUNDS, bounds_set


def test_every_bound_is_a_parameter_whose_text_says_how_it_is_switched_off() -> None:
    for bound in BOUNDS:
        field = Watch.model_fields[bound.parameter]
        assert f"{bound.off:g}: no bound" in (field.description or "")
        assert bound.is_upper == bound.parameter.startswith("max_")


def test_only_what_is_switched_on_is_a_bound() -> None:
    assert bounds_set({bound.parameter: bound.off for bound in BOUNDS}) == []
    assert bounds_set({}) == []
    ((bound, limit),) = bounds_set({"max_null_probability": 0.9, "patience_steps": 5})
    assert (bound.metric, limit) == ("null_probability", 0.9)


@pytest.mark.parametrize(
    ("parameter", "limit", "text"),
    [("max_null_probability", 0.99, "above 0.99"), ("min_entropy", 0.05, "below 0.05 nats")],
)
def test_a_bound_says_how_it_was_crossed(parameter: str, limit: float, text: str) -> None:
    ((bound, value),) = bounds_set({parameter: limit})
    assert bound.crossed(value) == text
