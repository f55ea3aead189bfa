"""Power of few seeds, against simulated studies: intervals, families of tests, equivalence."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from realm_lab.evidence.statistics.intervals import per_example_interval, t_interval
from realm_lab.evidence.statistics.paired import FEWEST_SEEDS, step_down_max_t
from realm_lab.evidence.statistics.power import (
    SIMULATED_SEEDS,
    detectable_difference,
    detectable_effect,
    equivalence_p,
    needed_seeds,
    simulated_effect,
    simulated_effects,
)

ALPHA = 0.05
STUDIES = 2000


def margin(rate: float, studies: int = STUDIES) -> float:
    """Four standard errors of an observed rate."""
    return 4 * math.sqrt(rate * (1 - rate) / studies)


def corrected(deltas: np.ndarray) -> np.ndarray:
    """p of [studies, tests, seeds], each study a family."""
    return np.array([step_down_max_t([dict(enumerate(test)) for test in study]) for study in deltas])


def simulated(seeds: int, tests: int, *, shared: float = 0.5) -> np.ndarray:
    """Standard normal differences, [studies, tests, seeds]; `shared` of their variance is the baseline's."""
    generator = np.random.default_rng(seeds)
    own, baseline = (generator.normal(size=(STUDIES, size, seeds)) for size in (tests, 1))
    return math.sqrt(1 - shared) * own + math.sqrt(shared) * baseline


@pytest.mark.parametrize("shared", [0.0, 0.5])
@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_a_study_of_several_tests_seldom_claims_what_is_not(seeds: int, shared: float) -> None:
    studies = STUDIES if seeds >= FEWEST_SEEDS else STUDIES // 10  # fewer seeds never claim anything
    deltas = simulated(seeds, 6, shared=shared)[:studies]
    rate = (corrected(deltas) <= ALPHA).any(1).mean()
    assert rate <= ALPHA + margin(ALPHA)
    assert (rate > ALPHA / 2) == (seeds >= FEWEST_SEEDS), "no more cautious than it must be"
    effects = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 10.0])  # the first three tests have none
    found = corrected(deltas + effects[:, None]) <= ALPHA
    assert found[:, :3].any(1).mean() <= ALPHA + margin(ALPHA)
    assert (found[:, 5].mean() > 0.99) == (seeds >= FEWEST_SEEDS)


@pytest.mark.parametrize(("seeds", "tests"), [(8, 1), (8, 18), (6, 6), (11, 6)])
def test_the_detectable_difference_is_detected_in_80_percent(seeds: int, tests: int) -> None:
    seen, again = 3 * np.random.default_rng(tests).normal(size=(2, STUDIES // 2, tests, seeds))
    again[:, 0] += np.array([[detectable_difference(deltas[0], tests)] for deltas in seen], float)  # of the first
    assert 0.75 <= (corrected(again)[:, 0] <= ALPHA).mean() <= 0.85  # in another study


def test_power_has_its_closed_forms() -> None:
    assert [detectable_effect(seeds, 1) for seeds in (1, 2, 3, 5)] == [None] * 4, "five seeds never reach .05"
    # the only significant data are those with one sign: the mean over spreads of Φ(effect · spread)^6 is .8
    spreads = np.sqrt(stats.chi2.rvs(5, size=20_000, random_state=0) / 5)
    assert (stats.norm.cdf((detectable_effect(6, 1) or 0.0) * spreads) ** 6).mean() == pytest.approx(0.8, abs=0.015)
    for tests in (1, 6):
        effects = [detectable_effect(seeds, tests) or 0.0 for seeds in (6, 8, 10, 11, 14, 20, 40, 100)]
        assert effects == sorted(effects, reverse=True)
        normal = stats.norm.isf((1 - 0.95 ** (1 / tests)) / 2) + stats.norm.ppf(0.8)
        assert effects[-1] == pytest.approx(normal / 10, rel=0.04)


def test_needed_seeds_are_the_fewest_with_power() -> None:
    deltas = np.array([0.9, 0.1, 0.5, 0.6])
    needed = needed_seeds(deltas, 3)
    assert needed is not None
    ratio = deltas.mean() / deltas.std(ddof=1)
    assert (detectable_effect(needed, 3) or 0.0) <= ratio < (detectable_effect(needed - 1, 3) or math.inf)
    assert needed_seeds([0.001, -0.1, 0.1], 1) is None
    assert needed_seeds([0.0] * 8, 1) is None, "no number of seeds shows that there is none"
    assert needed_seeds([0.5, 0.5, 0.5], 40) == FEWEST_SEEDS == 6


def test_equivalence_is_two_one_sided_t_tests() -> None:
    deltas = np.random.default_rng(4).normal(0.1, 0.2, 7)
    below = stats.ttest_1samp(deltas, 0.3, alternative="less").pvalue
    above = stats.ttest_1samp(deltas, -0.3, alternative="greater").pvalue
    assert equivalence_p(deltas, 0.3) == pytest.approx(max(below, above))
    low, high = t_interval(deltas, 0.9)
    assert equivalence_p(deltas, max(-low, high)) == pytest.approx(0.05)
    assert (equivalence_p([0.0] * 3, 0.1), equivalence_p([0.2] * 3, 0.1)) == (0.0, 1.0)
    assert equivalence_p([0.01, 0.01], 0.1) == 1.0, "two equal differences show no spread"
    assert equivalence_p([*deltas, math.nan], 0.3) == equivalence_p(deltas, 0.3)


def test_alike_questions_of_a_cluster_widen_the_interval() -> None:
    scores = np.random.default_rng(5).normal(0, 1, 300)
    alone = per_example_interval([{number: np.array([score]) for number, score in enumerate(np.repeat(scores, 9))}])
    clusters = per_example_interval([{number: np.repeat(score, 9) for number, score in enumerate(scores)}])
    assert (clusters.high - clusters.low) / (alone.high - alone.low) == pytest.approx(3, rel=0.06)
    few = [{number: np.ones(50) for number in range(9)}]
    assert per_example_interval(few) == (-math.inf, math.inf), "nine articles say too little"


def test_a_cluster_that_seeds_share_is_drawn_in_all_of_them() -> None:
    block: dict[Any, Any] = {n: np.array([score]) for n, score in enumerate(np.random.default_rng(6).normal(0, 1, 200))}
    other: dict[Any, Any] = {f"of another world {number}": deltas for number, deltas in block.items()}
    one, twice, two = (per_example_interval(blocks) for blocks in ([block], [block, block], [block, other]))
    assert twice == pytest.approx(one), "the same questions again are no new ones"
    assert (one.high - one.low) / (two.high - two.low) == pytest.approx(math.sqrt(2), rel=0.06)


def test_the_interval_over_clusters_covers_the_truth() -> None:
    generator = np.random.default_rng(7)
    found = []
    for _ in range(150):
        sizes = generator.integers(1, 12, 40)
        values = [0.1 + generator.normal() + generator.normal(size=size) for size in sizes]
        found.append(per_example_interval([dict(enumerate(values))]))
    assert 0.89 <= np.mean([low <= 0.1 <= high for low, high in found]) <= 0.99


def test_stored_power_is_that_of_the_simulation() -> None:
    effects = simulated_effects()
    assert [*effects] == [str(seeds) for seeds in range(FEWEST_SEEDS, SIMULATED_SEEDS + 1)]
    tests = (1, 2, 7, 64)
    assert [effects["6"][n - 1] for n in tests] == [simulated_effect(6, n) for n in tests]


@pytest.mark.slow
def test_stored_power_of_each_number_of_seeds_is_that_of_the_simulation() -> None:
    for seeds, effects in simulated_effects().items():
        every_fourth = range(int(seeds) % 4, len(effects), 4)
        assert [effects[n] for n in every_fourth] == [simulated_effect(int(seeds), n + 1) for n in every_fourth]
