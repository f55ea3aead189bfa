"""Collapse, interquartile mean and P(A > B): against scipy, closed forms and simulations."""

import itertools

import numpy as np
import pytest
from scipy import stats

from realm_lab.evidence.statistics.robust import compare_collapse, interquartile_mean, probability_higher


@pytest.mark.parametrize("count", [4, 6, 8, 11, 40])
def test_the_interquartile_mean_is_scipys(count: int) -> None:
    deltas = np.random.default_rng(count).normal(0.3, 1.0, count)
    found = interquartile_mean([*deltas])
    assert found is not None
    assert found.value == pytest.approx(stats.trim_mean(deltas, 0.25))
    limits = (count // 4 / count,) * 2
    assert [*found.interval] == pytest.approx([*stats.mstats.trimmed_mean_ci(deltas, limits=limits)])
    assert interquartile_mean([*deltas[:3]]) is None
    moved = interquartile_mean([*np.sort(deltas)[1:], -1000.0])  # the lowest collapses
    assert moved is not None
    assert (moved.value, *moved.interval) == pytest.approx((found.value, *found.interval))


def test_the_share_has_its_exact_interval() -> None:
    for above, count in itertools.product((0, 1, 4, 8), (8, 9)):
        found = probability_higher([1.0] * above + [-1.0] * (count - above))
        exact = stats.binomtest(above, count).proportion_ci(method="exact")
        assert (found.value, *found.interval) == pytest.approx((above / count, exact.low, exact.high))
    assert probability_higher([0.0, 0.0]).value == 0.5
    assert probability_higher([1.0, 0.0]).value == 0.75


def test_collapse_is_mcnemars_exact_test() -> None:
    seeds = range(8)
    values, base = dict.fromkeys(seeds, 0.3), {seed: 0.2 + seed / 100 for seed in seeds}
    cell, other = {seed: seed < 7 for seed in seeds}, {seed: seed == 0 for seed in seeds}
    found = compare_collapse(cell, other, values, base)
    assert found is not None
    assert (found.seeds, found.cell, found.baseline) == (8, 7, 1)
    assert found.p == pytest.approx(2 * 0.5**6), "six seeds where only one of them collapses, all on one side"
    assert found.alive is not None
    assert (found.alive.seeds, found.alive.mean) == ((7,), pytest.approx(0.03))
    same = compare_collapse(cell, cell, values, base)
    assert same is not None
    assert same.p == 1.0
    nobody = compare_collapse(dict.fromkeys(seeds, True), other, values, base)
    assert nobody is not None
    assert nobody.alive is None
    assert nobody.as_json(1.0)["alive"] is None
    assert compare_collapse({0: True}, {1: True}, values, base) is None
