"""The statistics against enumeration, closed forms and SciPy's own tests."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from realm_lab.evidence.statistics import paired
from realm_lab.evidence.statistics.intervals import SEED, per_example_interval, t_interval
from realm_lab.evidence.statistics.paired import FEWEST_SEEDS, compare, holm, sign_flip_p, smallest_p, step_down_max_t


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


TESTS: list[dict[int, float]] = [
    {0: 0.3, 1: 0.2, 2: 0.25, 3: 0.22, 4: 0.28}, {0: -0.1, 1: 0.4, 2: 0.2, 4: 0.3}, {1: 0.2, 2: 0.2, 3: 0.1},
    dict.fromkeys(range(5), 0.0), {0: 0.3, 1: -1.2, 2: -0.6, 4: -0.9}, {5: 0.1, 1: 0.3},
]  # fmt: skip


def test_several_tests_are_corrected_as_by_hand() -> None:
    """Closed testing: the largest p of all sets of tests that a test is in, each by its largest statistic."""
    places = range(len(TESTS))

    def statistic(test: dict[int, float], sign: tuple[int, ...]) -> float:
        length = math.sqrt(sum(delta**2 for delta in test.values()))
        return abs(sum(sign[seed] * delta for seed, delta in test.items())) / length if length else 0.0

    table = [[statistic(test, sign) for test in TESTS] for sign in itertools.product((1, -1), repeat=6)]
    by_hand = [0.0] * len(TESTS)
    for chosen in itertools.chain.from_iterable(itertools.combinations(places, size) for size in range(1, 7)):
        largest = [max(row[place] for place in chosen) for row in table]
        p = sum(one >= largest[0] - 1e-9 for one in largest) / len(largest)
        by_hand = [max(by_hand[place], p) if place in chosen else by_hand[place] for place in places]
    assert step_down_max_t(TESTS) == by_hand
    assert by_hand[3] == 1.0
    assert len({*by_hand}) >= 4, "no trivial example"
    assert step_down_max_t([]) == []


def test_no_number_of_tests_needs_more_seeds() -> None:
    others = np.random.default_rng(8).normal(size=(17, 8))
    found = step_down_max_t([dict(enumerate(deltas)) for deltas in (np.full(8, -0.1), *others)])
    assert found[0] == smallest_p(8) == 2 / 256
    assert smallest_p(FEWEST_SEEDS) <= 0.05 < smallest_p(FEWEST_SEEDS - 1)
    many = [dict.fromkeys(range(40), 0.1), dict(enumerate(np.random.default_rng(9).normal(size=40)))]
    assert step_down_max_t(many)[0] == smallest_p(40)


@pytest.mark.parametrize("seeds", [17, 500, 1001])
def test_blocks_of_signs_are_the_signs(seeds: int) -> None:
    """Thousands of questions have the same signs, without all of them in memory."""
    blocks = [*paired.sign_blocks(seeds)]
    assert max(block.size for block in blocks) <= paired.BLOCK
    assert np.array_equal(np.concatenate(blocks), paired.signs(seeds))
    drawn = np.random.default_rng(SEED).choice((1.0, -1.0), (paired.RESAMPLES - 1, seeds))
    assert np.array_equal(paired.signs(seeds)[1:], drawn)
