"""Components of variance: by hand, by projections, and from tables with known components."""

from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest

from realm_lab.evidence.statistics.components import components


def test_a_small_table_by_hand() -> None:
    """Two seeds, ±3 from the mean; in them a factor is ±1 and ±2, another ±.5 and ±1.5, and the rest ±.25 and ±.75."""
    table = np.array([[[14.75, 13.25], [12.25, 11.75]], [[11.25, 6.75], [5.75, 4.25]]])
    # Mean squares: 4 (9 + 9), 2 (1 + 1 + 4 + 4) / 2, 2 (.25 + .25 + 2.25 + 2.25) / 2, (4 · .0625 + 4 · .5625) / 2
    found = components(table)
    assert [one.raw for one in found] == pytest.approx([(72 - 10 - 5 + 1.25) / 4, 8.75 / 2, 3.75 / 2, 1.25])
    assert [one.freedom for one in found] == [1, 2, 2, 2]
    assert sum(one.share for one in found) == pytest.approx(1)
    assert all(one.interval.low <= one.share <= one.interval.high for one in found)


def test_any_sizes_by_projections() -> None:
    """Expectations of quadratic forms are traces: a sum of squares y'Py has the expectation tr(P Cov y)."""
    shape = (3, 2, 4)
    values = np.random.default_rng(1).normal(size=shape)

    def product(*kinds: str) -> np.ndarray:
        """The Kronecker product of a matrix for each axis: mean, centring, all ones or identity."""
        of: dict[str, Callable[[int], np.ndarray]] = {
            "m": lambda n: np.full((n, n), 1 / n),
            "c": lambda n: np.eye(n) - 1 / n,
            "j": lambda n: np.ones((n, n)),
            "i": np.eye,
        }
        return reduce(np.kron, [of[kind](size) for kind, size in zip(kinds, shape, strict=True)])

    projections = [product("c", "m", "m"), product("i", "c", "m"), product("i", "m", "c"), product("i", "c", "c")]
    covariances = [product("i", "j", "j"), product("i", "i", "j"), product("i", "j", "i"), product("i", "i", "i")]
    y = values.ravel()
    expected = np.linalg.solve(
        [[np.trace(one @ other) for other in covariances] for one in projections], [y @ one @ y for one in projections]
    )
    found = components(values)
    assert [one.raw for one in found] == pytest.approx(expected)
    assert [one.freedom for one in found] == [round(np.trace(one)) for one in projections]


def test_the_estimates_are_unbiased_and_the_intervals_cover() -> None:
    true, rng = np.array([4.0, 1.0, 0.0, 2.0]), np.random.default_rng(2)
    sizes = (4, 1, 1), (4, 2, 1), (4, 1, 2), (4, 2, 2)
    found = [
        components(sum(deviation * rng.normal(size=size) for deviation, size in zip(np.sqrt(true), sizes, strict=True)))
        for _ in range(400)
    ]
    raw = np.array([[one.raw for one in table] for table in found])
    assert np.abs(raw.mean(0) - true) == pytest.approx(np.zeros(4), abs=4 * (raw.std(0) / 20).max())
    ends = np.array([[one.interval for one in table] for table in found])
    within = (ends[..., 0] <= true / 7) & (true / 7 <= ends[..., 1])
    assert within.mean(0).min() > 0.9


def test_a_negative_estimate_counts_as_zero() -> None:
    table = np.array([[[1.0, -1.0], [-1.0, 1.0]], [[2.0, -2.0], [-2.0, 2.0]]])  # nothing but the rest
    _, first, second, rest = components(table)
    assert first.raw == second.raw == pytest.approx(-rest.raw / 2)
    assert first.variance == second.variance == first.share == 0 < rest.share
