"""The rate of false alarms of the whole procedure, for differences with the skewness and correlations of a real study.

The sign-flip test is exact if differences without an effect are symmetric around zero. Runs that collapse make
them skewed. Therefore studies without any effect are simulated, with the skewness of each comparison and with their
correlations; any finding in such a study is a false alarm. The spread does not matter: the statistic is free of scale.

A bootstrap over seeds is not used: with eight seeds and 12 normal comparisons it estimates that 12 % of studies have a
false alarm, but the true rate is below 5 %.

References: Joanes & Gill (1998), Comparing measures of sample skewness and kurtosis, section 2 (G1); Pearson (1895),
type III; Cario & Nelson (1997), Modeling and generating random vectors with arbitrary marginal distributions, for
normal scores.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from realm_lab.evidence.statistics.intervals import LEVEL, SEED
from realm_lab.evidence.statistics.paired import BLOCK, EXACT_SEEDS, FEWEST_SEEDS, RESAMPLES, TIED, sign_blocks, signs

STUDIES = 2000  # simulated studies: a rate of 5 % has a standard error of half a point
SUSPECT = 0.075  # a comparison with a higher rate of false alarms is called skewed
WIDEST, GRID = 5.0, 501  # the largest normal score of the table of quantiles, and its number of scores
MOST_SIGNS = 512  # sign vectors; for many seeds these are enough to estimate a rate


class Rate(NamedTuple):
    """A share of simulated studies, with its standard error."""

    rate: float
    error: float


class Calibration(NamedTuple):
    """False alarms of a family at a nominal 5 %."""

    seeds: int
    tests: int
    any: Rate  # share of studies with any false difference after correction
    alone: tuple[Rate, ...]  # of each test without correction
    corrected: tuple[Rate, ...]  # of each test after correction

    def as_json(self) -> dict[str, Any]:
        """The rate of the family for summary.json."""
        return {"false_alarms": self.any.rate, "error": self.any.error, "tests": self.tests, "seeds": self.seeds}


def calibrate(tests: Sequence[Mapping[int, float]]) -> Calibration | None:
    """Return the false alarms of a family; None if the seeds are too few. `tests`: seed -> difference of each test."""
    seeds = sorted({seed for test in tests for seed in test})
    if max(map(len, tests), default=0) < FEWEST_SEEDS:
        return None
    deltas = np.array([[test.get(seed, np.nan) for test in tests] for seed in seeds])
    return _calibrate(deltas.tobytes(), deltas.shape)


@functools.cache
def _calibrate(data: bytes, shape: tuple[int, int]) -> Calibration:
    deltas = np.frombuffer(data).reshape(shape)
    generator = np.random.default_rng(SEED)
    size = max(1, BLOCK // deltas.size)
    parts = [false_alarms(skewed(deltas, min(size, STUDIES - start), generator)) for start in range(0, STUDIES, size)]
    alone, corrected = (np.concatenate(found) for found in zip(*parts, strict=True))
    return Calibration(*shape, _rate(corrected.any(1)), tuple(map(_rate, alone.T)), tuple(map(_rate, corrected.T)))


def false_alarms(studies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Apply `step_down_max_t` to many studies at once, [studies, seeds, tests]; 0 marks a seed that a test lacks.
    Returns (uncorrected p is at most 5 %, corrected p is), each [studies, tests]."""
    count, seeds, tests = studies.shape
    flips = some_signs(seeds)
    alone, corrected = np.empty((2, count, tests), bool)
    size = max(1, BLOCK // (len(flips) * tests))
    for start in range(0, count, size):
        block = studies[start : start + size]
        lengths = np.linalg.norm(block, axis=1, keepdims=True)
        block = block / np.where(lengths, lengths, 1.0)
        values = np.abs(np.einsum("gs,bst->bgt", flips, block, optimize=True))
        alone[start : start + size] = (values >= values[:, :1] - TIED).mean(1) <= 1 - LEVEL
        order = np.argsort(values[:, 0], axis=1)
        ranked = np.take_along_axis(values, order[:, None], 2)
        shares = (np.maximum.accumulate(ranked, axis=2) >= ranked[:, :1] - TIED).mean(1)
        stepped = np.maximum.accumulate(shares[:, ::-1], axis=1)[:, ::-1]
        np.put_along_axis(corrected[start : start + size], order, stepped <= 1 - LEVEL, 1)
    return alone, corrected


@functools.cache
def some_signs(seeds: int) -> np.ndarray:
    """Return sign vectors [signs, seeds], the observed one first. Up to 16 seeds their mirrors, which have the same
    statistics, are left out.

    If there are more than `MOST_SIGNS`, one is drawn from each of `MOST_SIGNS` blocks. Up to 16 seeds the vectors of a
    block have the same first signs.
    """
    count = 2 ** (seeds - 1) if seeds <= EXACT_SEEDS else RESAMPLES
    if count <= MOST_SIGNS:
        return signs(seeds)[:count]
    edges = np.linspace(0, count, MOST_SIGNS + 1, dtype=int)
    chosen = np.random.default_rng(SEED).integers(edges[:-1], edges[1:])
    chosen[0], first, parts = 0, 0, []
    for block in sign_blocks(seeds):
        parts.append(block[chosen[(chosen >= first) & (chosen < first + len(block))] - first])
        first += len(block)
    return np.concatenate(parts)


def skewed(
    deltas: np.ndarray, studies: int, generator: np.random.Generator, new_seeds: int | None = None
) -> np.ndarray:
    """Simulate differences [studies, seeds, tests] without an effect, with the skewness of each test and the
    correlations between tests. `new_seeds`: number of seeds (default: as `deltas`, and 0 for a seed that a test lacks).

    Normal scores with the correlations of the centred differences [seeds, tests] become quantiles of Pearson's type III
    distribution (a shifted gamma, mean 0, variance 1) with each test's skewness.
    """
    centred = np.nan_to_num(deltas - np.nanmean(deltas, axis=0))
    lengths = np.linalg.norm(centred, axis=0)
    seeds, tests = centred.shape
    mixed = centred / np.where(lengths, lengths, 1.0)
    if seeds > max(EXACT_SEEDS, tests):  # the same correlations from fewer numbers
        mixed = np.linalg.qr(mixed, mode="r")
    scores: np.ndarray = generator.normal(size=(studies, new_seeds or seeds, len(mixed))) @ mixed
    grid = np.linspace(-WIDEST, WIDEST, GRID)
    for test in range(tests):
        known = deltas[~np.isnan(deltas[:, test]), test]
        values = stats.pearson3.ppf(stats.norm.cdf(grid), skewness(known))
        scores[..., test] = np.interp(scores[..., test], grid, values)
    # differences that are all equal are an effect without any spread: without the effect they are 0
    scores[..., lengths <= TIED * np.nanmax(np.abs(deltas), axis=0)] = 0.0
    if new_seeds is None:
        scores[:, np.isnan(deltas)] = 0.0  # as `step_down_max_t` counts a seed that a test lacks
    return scores


def skewness(values: np.ndarray) -> float:
    """The adjusted Fisher-Pearson coefficient; 0 for fewer than three values, or for values without spread."""
    if len(values) < 3 or np.ptp(values) < TIED * np.abs(values).max(initial=0.0):
        return 0.0
    return float(stats.skew(values, bias=False))


def _rate(alarms: Any) -> Rate:
    rate = float(np.mean(alarms))
    return Rate(rate, math.sqrt(max(rate * (1 - rate), 1 / len(alarms)) / len(alarms)))
