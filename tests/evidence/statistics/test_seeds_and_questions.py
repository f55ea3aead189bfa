"""The interval for other seeds and other questions: against a slow computation, and its coverage."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from realm_lab.evidence.statistics.intervals import per_example_interval, seeds_and_questions_interval, t_interval


def drawn(generator: np.random.Generator, seeds: int, sizes: Any, spreads: tuple[float, float, float]) -> list[Any]:
    """Differences with crossed effects of seeds and clusters, and noise; the true mean is 0."""
    of_seed, of_cluster = spreads[0] * generator.normal(size=seeds), spreads[1] * generator.normal(size=len(sizes))
    return [
        {
            cluster: mine + shared + spreads[2] * generator.normal(size=size)
            for cluster, (shared, size) in enumerate(zip(of_cluster, sizes, strict=True))
        }
        for mine in of_seed
    ]


def test_it_is_the_analysis_of_variance_of_crossed_effects() -> None:
    blocks = drawn(np.random.default_rng(1), 6, [1] * 30, (0.1, 0.3, 0.4))
    values = [[float(block[question][0]) for question in range(30)] for block in blocks]
    mean = sum(map(sum, values)) / 180
    of_seed = [sum(row) / 30 for row in values]
    of_question = [sum(row[question] for row in values) / 6 for question in range(30)]
    seeds = 30 * sum((one - mean) ** 2 for one in of_seed) / 5  # mean squares
    questions = 6 * sum((one - mean) ** 2 for one in of_question) / 29
    noise = 0.0
    for row, mine in zip(values, of_seed, strict=True):
        for value, theirs in zip(row, of_question, strict=True):
            noise += (value - mine - theirs + mean) ** 2 / (5 * 29)
    total = seeds + questions - noise
    freedom = total**2 / (seeds**2 / 5 + questions**2 / 29 + noise**2 / (5 * 29))
    half = stats.t.ppf(0.975, freedom) * math.sqrt(total / 180)
    assert seeds_and_questions_interval(blocks) == pytest.approx((mean - half, mean + half))


@pytest.mark.slow
def test_it_covers_the_truth_for_other_seeds_and_questions() -> None:
    generator, studies = np.random.default_rng(2), 600
    sizes = generator.integers(1, 5, 40)
    both = over_seeds = over_questions = 0
    for study in range(studies):
        blocks = drawn(generator, 6, sizes, (0.1, 0.3, 0.4))
        low, high = seeds_and_questions_interval(blocks)
        both += low <= 0 <= high
        alone = t_interval([np.concatenate([*block.values()]).mean() for block in blocks])
        over_seeds += alone.low <= 0 <= alone.high
        if study % 6 == 0:
            low, high = per_example_interval(blocks)
            over_questions += low <= 0 <= high
    assert both / studies == pytest.approx(0.95, abs=4 * math.sqrt(0.05 * 0.95 / studies))
    assert over_seeds / studies < 0.9
    assert over_questions / (studies / 6) < 0.95


def test_questions_of_one_seed_only_add_nothing() -> None:
    blocks = drawn(np.random.default_rng(3), 5, [2] * 20, (0.1, 0.3, 0.4))
    apart = [{(seed, name): deltas for name, deltas in block.items()} for seed, block in enumerate(blocks)]
    alone = t_interval([np.mean([*block.values()]) for block in apart])
    assert seeds_and_questions_interval(apart) == pytest.approx(alone)
    infinite = (-math.inf, math.inf)
    assert seeds_and_questions_interval(blocks[:2]) == infinite
    assert seeds_and_questions_interval([{name: block[name] for name in range(9)} for block in blocks]) == infinite
    assert seeds_and_questions_interval([]) == infinite
    assert seeds_and_questions_interval([{n: np.ones(1) for n in range(12)}] * 4) == (1.0, 1.0)
