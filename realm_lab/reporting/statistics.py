"""The statistics of comparing two cells of a study: what they differ by, how sure we are, and when nobody can be.

The unit is the seed: a cell and the baseline share it (data, initial weights, order of batches), so what is compared is
the paired delta of each seed. A handful of seeds says little, and each function here says how little.

References: Student (1908) for the interval of a mean; Efron (1987), Better bootstrap confidence intervals, for BCa;
Fisher (1935), The design of experiments, section 21, for the sign-flip test; Holm (1979), A simple sequentially
rejective multiple test procedure; Kendall (1938), A new measure of rank correlation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95
EXACT_SEEDS = 16  # up to here all 2^n assignments of signs are counted, above it `RESAMPLES` of them are drawn
RESAMPLES = 10_000
SEED = 20200210  # of the resampling, so that a report can be written again byte for byte


class Interval(NamedTuple):
    """A confidence interval; infinite where the data say nothing."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether no difference would be a surprise."""
        return self.low > 0 or self.high < 0


class Comparison(NamedTuple):
    """One cell against the baseline in one metric, over the seeds that both have."""

    seeds: tuple[int, ...]
    deltas: tuple[float, ...]
    mean: float
    interval: Interval
    p: float  # exact sign-flip test, two-sided
    smallest_p: float  # that any data could have given with this many seeds


def compare(cell: Mapping[int, float], baseline: Mapping[int, float]) -> Comparison | None:
    """Paired deltas cell - baseline by seed; None where they share no seed."""
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
    )


def t_interval(values: Sequence[float] | np.ndarray, level: float = LEVEL) -> Interval:
    """Student's interval of the mean: right for any number of normal values, two included; infinite for one."""
    values = np.asarray(values, float)
    if len(values) < 2:
        return Interval(-math.inf, math.inf)
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return Interval(float(values.mean()) - half, float(values.mean()) + half)


def bca_interval(values: Sequence[float] | np.ndarray, level: float = LEVEL) -> Interval:
    """Bias-corrected and accelerated bootstrap interval of the mean. For many values only.

    Of six normal values it covers the true mean in about 86 % of all cases where it says 95 (benchmarks/statistics.py),
    so the mean over seeds is given with `t_interval`. Equal values have an interval without width.
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        return Interval(-math.inf, math.inf)
    if np.ptp(values) == 0:
        return Interval(float(values[0]), float(values[0]))
    found = stats.bootstrap(
        (values,), np.mean, confidence_level=level, n_resamples=RESAMPLES, rng=np.random.default_rng(SEED), batch=1000
    ).confidence_interval
    return Interval(float(found.low), float(found.high))


def sign_flip_p(deltas: Sequence[float] | np.ndarray) -> float:
    """Two-sided p of "cell and baseline are exchangeable": the share of all signs that give as large a mean.

    Exact up to 16 seeds; above, over signs drawn at random, the observed ones counted in.
    """
    deltas = np.asarray(deltas, float)
    if len(deltas) <= EXACT_SEEDS:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(deltas))))
    else:
        drawn = np.random.default_rng(SEED).choice((1.0, -1.0), (RESAMPLES - 1, len(deltas)))
        signs = np.concatenate([np.ones((1, len(deltas))), drawn])
    means = np.abs(signs @ deltas)
    tolerance = 1e-9 * np.abs(deltas).sum()  # equal sums in another order
    return float((means >= means[0] - tolerance).mean())


def smallest_p(seeds: int) -> float:
    """The smallest p that the sign-flip test can give: 2 of 2^n signs. Five seeds can never reach .05."""
    return min(1.0, 2.0 ** (1 - seeds)) if seeds <= EXACT_SEEDS else 1.0 / RESAMPLES


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p of each of several tests: the chance of any false alarm among all stays at its level."""
    adjusted = [0.0] * len(ps)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = largest
    return adjusted


def per_example_interval(deltas: Sequence[np.ndarray], level: float = LEVEL, resamples: int = 2000) -> Interval:
    """Paired bootstrap over examples, with the seed as block: other questions, but these very trained models.

    deltas: for each seed, the difference in score of each of its examples. Examples are drawn anew within each seed;
    the mean of the seeds' means is taken. Of other seeds it says nothing, so it is narrower than an interval that does.
    """
    if not deltas or min(map(len, deltas)) < 2:
        return Interval(-math.inf, math.inf)
    generator = np.random.default_rng(SEED)
    means = np.zeros(resamples)
    for block in deltas:
        values, counts = np.unique(np.asarray(block, float), return_counts=True)  # few distinct scores: quick to draw
        if len(values) <= 64:
            drawn = generator.multinomial(len(block), counts / len(block), size=resamples) @ values / len(block)
        else:
            places = generator.integers(0, len(block), (resamples, len(block)))
            drawn = np.asarray(block, float)[places].mean(axis=1)
        means += drawn / len(deltas)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


class OrderAgreement(NamedTuple):
    """Kendall's tau-b between two orderings of the same cells. `interval`: over resampled seeds."""

    cells: int
    tau: float
    p: float
    interval: Interval


def order_agreement(
    ours: Mapping[str, Mapping[int, float]], theirs: Mapping[str, float], level: float = LEVEL
) -> OrderAgreement | None:
    """Whether the cells come in the order in which others found them; None for fewer than three cells.

    ours: cell -> seed -> value; theirs: cell -> value. The interval comes from drawing whole seeds again.
    """
    names = [name for name in theirs if ours.get(name)]
    seeds = sorted(set.intersection(*(set(ours[name]) for name in names))) if names else []
    if len(names) < 3 or not seeds:
        return None
    values = np.array([[ours[name][seed] for seed in seeds] for name in names])
    wanted = [theirs[name] for name in names]
    found = stats.kendalltau(values.mean(axis=1), wanted)
    drawn = np.sort(np.random.default_rng(SEED).integers(0, len(seeds), (1000, len(seeds))), axis=1)
    places, counts = np.unique(drawn, axis=0, return_counts=True)
    taus = [stats.kendalltau(values[:, place].mean(axis=1), wanted).statistic for place in places]
    known = np.repeat(taus, counts)
    known = known[np.isfinite(known)]
    if len(seeds) < 2 or not len(known):
        interval = Interval(-1.0, 1.0)
    else:
        low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
        interval = Interval(float(low), float(high))
    return OrderAgreement(len(names), float(found.statistic), float(found.pvalue), interval)
