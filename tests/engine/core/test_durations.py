"""Durations in words."""

import pytest

from realm_lab.engine.core.durations import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.0011, "1.1 ms"),
        (0.35, "0.3 s"),
        (9.96, "10 s"),
        (5400.0, "90 min"),
        (6000.0, "1.7 h"),
        (172_800.0, "2.0 days"),
    ],
)
def test_a_duration_has_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text
