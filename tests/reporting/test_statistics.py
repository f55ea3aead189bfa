"""The statistics against enumeration, closed forms, SciPy's own tests, and simulated studies."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from realm_lab.reporting.statistics import (
    compare,
    holm,
    per_example_interval,
    sign_flip_p,
    smallest_p,
    t_interval,
)

STUDIES = 2000


def margin(rate: float, studies: int = STUDIES) -> float:
    """Four standard errors of an observed rate."""
    return 4 * math.sqrt(rate * (1 - rate) / studies)


def test_deltas_are_paired_by_seed() -> None:
    found = compare({0: 0.5, 1: 0.7, 3: 0.1}, {1: 0.6, 0: 0.9, 2: 0.0})
    assert found is not None
    assert found.seeds == (0, 1)
    assert found.deltas == pytest.approx((-0.4, 0.1))
    assert found.mean == pytest.approx(-0.15)
    assert compare({0: 1.0}, {1: 1.0}) is None


def test_the_sign_flip_test_counts_all_signs() -> None:
    deltas = np.array([0.3, -0.1, 0.25, 0.4, 0.02])
    larger = sum(
        abs(sum(s * d for s, d in zip(signs, deltas, strict=True))) >= abs(deltas.sum()) - 1e-12
        for signs in itertools.product((1, -1), repeat=5)
    )
    assert sign_flip_p(deltas) == larger / 32
    reference = stats.permutation_test((deltas,), np.sum, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip_p(deltas) == pytest.approx(reference.pvalue)


@pytest.mark.parametrize("seeds", [1, 2, 3, 5, 6, 10])
def test_no_p_is_below_the_smallest_reachable(seeds: int) -> None:
    deltas = np.arange(1, seeds + 1)
    assert sign_flip_p(deltas) == smallest_p(seeds) == 2 / 2**seeds
    assert sign_flip_p(np.zeros(seeds)) == 1


def test_many_seeds_are_drawn_and_agree_with_the_normal_limit() -> None:
    deltas = np.random.default_rng(1).normal(0.35, 1, 40)
    z = deltas.sum() / math.sqrt((deltas**2).sum())
    assert sign_flip_p(deltas) == pytest.approx(2 * stats.norm.sf(abs(z)), abs=0.02)
    assert sign_flip_p(np.ones(40)) == smallest_p(40)


def test_the_interval_of_a_mean_is_students() -> None:
    values = np.random.default_rng(2).normal(size=6)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert t_interval(values) == pytest.approx((low, high))
    assert t_interval([1.0]) == (-math.inf, math.inf)
    assert t_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert t_interval([1.0, 2.0, 3.0]).excludes_zero is False
    assert t_interval([1.0, 1.1, 1.2]).excludes_zero is True


def test_holm_is_the_step_down_rule() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_examples_are_drawn_within_each_seed() -> None:
    generator = np.random.default_rng(3)
    blocks = [generator.choice((-1.0, 0.0, 1.0), 400, p=(0.1, 0.7, 0.2)) + shift for shift in (0.0, 5.0)]
    low, high = per_example_interval([each_alone(block, seed) for seed, block in enumerate(blocks)])
    spread = math.sqrt(sum(block.var() / len(block) for block in blocks)) / 2  # the shift between seeds does not count
    middle = np.mean([block.mean() for block in blocks])
    assert (low, high) == pytest.approx((middle - 1.96 * spread, middle + 1.96 * spread), abs=0.25 * spread)
    many = generator.normal(0, 1, 300)
    assert per_example_interval([each_alone(many, 0)]) == pytest.approx(t_interval(many), abs=0.02)
    assert per_example_interval([]) == (-math.inf, math.inf)


def each_alone(deltas: np.ndarray, seed: int) -> dict[tuple[int, int], np.ndarray]:
    """Each question its own cluster, and other questions at each seed."""
    return {(seed, number): np.array([delta]) for number, delta in enumerate(deltas)}


@pytest.mark.parametrize("seeds", [2, 3, 6])
def test_without_an_effect_alarms_are_false_at_their_rate(seeds: int) -> None:
    generator = np.random.default_rng(seeds)
    deltas = generator.normal(0, 0.1, (STUDIES, seeds)) * generator.exponential(1, (STUDIES, 1))
    ps = np.array([sign_flip_p(row) for row in deltas])
    for level in (0.05, 0.25, 0.5):
        reachable = math.floor(level / smallest_p(seeds)) * smallest_p(seeds)
        assert abs((ps <= level).mean() - reachable) <= margin(max(reachable, 0.01)) * (reachable > 0)
    missed = np.mean([t_interval(row).excludes_zero for row in deltas])
    assert abs(missed - 0.05) <= margin(0.05)


def test_holm_keeps_the_rate_of_any_false_alarm() -> None:
    generator = np.random.default_rng(7)
    studies = generator.normal(size=(STUDIES, 4, 8)) + generator.normal(size=(STUDIES, 1, 8))  # one baseline for all
    alarms = [min(holm([sign_flip_p(cell) for cell in study])) <= 0.05 for study in studies]
    assert np.mean(alarms) <= 0.05 + margin(0.05)
    raw = [min(sign_flip_p(cell) for cell in study) <= 0.05 for study in studies]
    assert np.mean(raw) > 0.08
