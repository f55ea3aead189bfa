"""Statistics for comparing two cells of a study: their difference, its certainty, and the limits of few seeds.

The unit is the seed. Runs of a cell and of the baseline with one seed share data, initial weights and order of batches,
so their values are subtracted seed by seed. Few seeds are little evidence, and the functions here measure how much.

References: Fisher (1935), The design of experiments, section 21, for the sign-flip test; Westfall & Young (1993),
Resampling-based multiple testing, for several of them (step-down max-T); Holm (1979), A simple sequentially rejective
multiple test procedure, for other tests.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from realm_lab.evidence.statistics.intervals import LEVEL, SEED, Interval, t_interval

EXACT_SEEDS = 16  # up to here all 2^n assignments of signs are counted, above it `RESAMPLES` of them are drawn
RESAMPLES = 10_000
BLOCK = 2**22  # numbers in memory at once
TIED = 1e-6  # statistics nearer than this are equal: they differ only by rounding
FEWEST_SEEDS = 1 + math.ceil(-math.log2(1 - LEVEL))  # with fewer no data could be significant, in any family


class Comparison(NamedTuple):
    """One cell against the baseline in one metric, over the seeds that both have."""

    seeds: tuple[int, ...]
    deltas: tuple[float, ...]
    mean: float
    interval: Interval
    p: float  # exact sign-flip test, two-sided, of only this comparison
    smallest_p: float  # the smallest p that any data of this many seeds can give
    means: tuple[float, ...]  # of the cell and of the baseline, over these seeds

    @property
    def by_seed(self) -> dict[int, float]:
        """seed -> delta."""
        return dict(zip(self.seeds, self.deltas, strict=True))


def compare(cell: Mapping[int, float], baseline: Mapping[int, float]) -> Comparison | None:
    """Compare a cell with the baseline by the paired deltas cell - baseline; None if they share no seed."""
    seeds = tuple(sorted(cell.keys() & baseline.keys()))
    if not seeds:
        return None
    deltas = np.array([cell[seed] - baseline[seed] for seed in seeds])
    return Comparison(
        seeds,
        tuple(float(delta) for delta in deltas),
        float(deltas.mean()),
        t_interval(deltas),
        sign_flip_p(deltas),
        smallest_p(len(deltas)),
        tuple(sum(values[seed] for seed in seeds) / len(seeds) for values in (cell, baseline)),
    )


def sign_flip_p(deltas: Sequence[float] | np.ndarray) -> float:
    """Two-sided p of "cell and baseline are exchangeable": the share of sign vectors with as large a |mean|."""
    return step_down_max_t([dict(enumerate(deltas))])[0]


def step_down_max_t(tests: Sequence[Mapping[int, float]]) -> list[float]:
    """Sign-flip p of each of several tests (seed -> delta): any false alarm among all is as rare as in one test.

    A seed's deltas change sign together in all tests. The statistic, |sum of the deltas| / root of the sum of their
    squares, grows with |t|. p is the share of sign vectors whose largest statistic reaches the observed statistic of
    the test; the largest is over this test and all tests with a smaller observed statistic. No test has a smaller p
    than a test with a larger observed statistic.
    """
    seeds = sorted({seed for test in tests for seed in test})
    deltas = np.array([[test.get(seed, 0.0) for test in tests] for seed in seeds]).reshape(len(seeds), len(tests))
    lengths = np.linalg.norm(deltas, axis=0)
    scaled = deltas / np.where(lengths, lengths, 1.0)
    statistics = np.concatenate([np.abs(block @ scaled) for block in sign_blocks(len(seeds))])  # [signs, tests]
    order = np.argsort(statistics[0])
    largest = np.maximum.accumulate(statistics[:, order], axis=1)  # over a test and all with smaller observed ones
    shares = (largest >= statistics[0, order] - TIED).mean(0)
    corrected = np.empty(len(tests))
    corrected[order] = np.maximum.accumulate(shares[::-1])[::-1]
    return [float(p) for p in corrected]


@functools.cache
def signs(seeds: int) -> np.ndarray:
    """Return sign vectors [signs, seeds], the observed one first: all 2^n up to 16 seeds, above that random ones."""
    if seeds <= EXACT_SEEDS:
        return np.array(list(itertools.product((1.0, -1.0), repeat=seeds)))
    return np.concatenate([*_drawn(seeds)])


def sign_blocks(seeds: int) -> Iterator[np.ndarray]:
    """Yield the rows of `signs` in order; in parts for more than 419 pairs, such as questions instead of seeds."""
    if seeds <= max(EXACT_SEEDS, BLOCK // RESAMPLES):
        yield signs(seeds)
    else:
        yield from _drawn(seeds)


def _drawn(seeds: int) -> Iterator[np.ndarray]:
    generator, rows = np.random.default_rng(SEED), max(1, BLOCK // seeds)
    yield np.ones((1, seeds))
    for start in range(1, RESAMPLES, rows):
        yield generator.choice((1.0, -1.0), (min(rows, RESAMPLES - start), seeds))


def smallest_p(seeds: int) -> float:
    """The smallest p of a sign-flip test, single or in a family: 2 of the 2^n sign vectors, above 16 seeds 1 of 10,000.
    Five seeds can never reach .05."""
    return min(1.0, 2.0 ** (1 - seeds)) if seeds <= EXACT_SEEDS else 1.0 / RESAMPLES


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p of each of several tests: any false alarm among all is as rare as in one test."""
    order = np.argsort(ps)
    stepped = np.maximum.accumulate(np.sort(ps) * np.arange(len(ps), 0, -1))
    adjusted = np.empty(len(ps))
    adjusted[order] = np.minimum(1.0, stepped)
    return [float(p) for p in adjusted]
