"""Confidence intervals of a mean over seeds, over clusters of questions, and over both.

References: Student (1908), The probable error of a mean; Davison & Hinkley (1997), Bootstrap methods, section 3.8, for
clusters; Searle, Casella & McCulloch (1992), Variance components, chapter 4, for crossed effects; Satterthwaite (1946),
An approximate distribution of estimates of variance components. Owen (2007), The pigeonhole bootstrap, is an
alternative for crossed effects. With six seeds its 95 % interval covers the truth in 92 % of cases if the seeds vary
most, and in 99 % if they share no questions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95
FEWEST_FOR_SPREAD = 3  # two values are too few to estimate a spread: Student's interval is ± 12.7 standard errors
BOOTSTRAPS = 2000
FEWEST_CLUSTERS = 10  # with fewer, a bootstrap interval is too narrow
SEED = 20200210  # of the resampling, so that a report can be written again byte for byte


class Interval(NamedTuple):
    """A confidence interval; infinite if the data are too few."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """True if zero is outside."""
        return self.low > 0 or self.high < 0

    def within(self, span: float) -> Interval | None:
        """Cut to -span and span, the largest possible differences; None if it is infinite."""
        if not math.isfinite(self.low):
            return None
        return Interval(max(self.low, -span), min(self.high, span))


class Summary(NamedTuple):
    """Statistics of a metric over seeds; `sd` has ddof = 1 and is None for one value."""

    n: int
    mean: float
    sd: float | None
    min: float
    max: float


def summarise(values: Iterable[float]) -> Summary | None:
    """Mean, standard deviation and range of the values that are known; None when there are none."""
    known = np.array([value for value in values if value is not None], float)  # pandas is slow with few values
    known = known[~np.isnan(known)]
    if not len(known):
        return None
    sd = float(known.std(ddof=1)) if len(known) > 1 else None
    return Summary(len(known), float(known.mean()), sd, float(known.min()), float(known.max()))


def t_interval(values: Sequence[float] | np.ndarray, level: float = LEVEL) -> Interval:
    """Student's interval of the mean of normal values; infinite for fewer than three values."""
    values = np.asarray(values, float)
    if len(values) < FEWEST_FOR_SPREAD:
        return Interval(-math.inf, math.inf)
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return Interval(float(values.mean()) - half, float(values.mean()) + half)


def per_example_interval(blocks: Sequence[Mapping[Any, np.ndarray]]) -> Interval:
    """Interval for other questions and these very trained models, by a paired bootstrap over clusters of questions.

    blocks: for each seed, cluster -> the differences in score of its questions. Questions of one article are alike, so
    an article is drawn with all of its questions, in all seeds that have it. The mean is taken over the drawn
    questions, then over the seeds. The interval does not apply to other seeds. Too few clusters: infinite.
    """
    if not blocks or min(map(len, blocks)) < FEWEST_CLUSTERS:
        return Interval(-math.inf, math.inf)
    sums, sizes = _by_cluster(blocks)
    # kinds: [kinds, 2 · seeds]. Many clusters have the same sums and sizes, so the count of each kind is drawn.
    kinds, counts = np.unique(np.hstack([sums, sizes]), axis=0, return_counts=True)
    drawn = np.random.default_rng(SEED).multinomial(len(sums), counts / len(sums), size=BOOTSTRAPS) @ kinds
    means = drawn[:, : len(blocks)] / np.maximum(drawn[:, len(blocks) :], 1)
    low, high = np.quantile(means.mean(1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def seeds_and_questions_interval(blocks: Sequence[Mapping[Any, np.ndarray]]) -> Interval:
    """Interval of the mean difference for other seeds and other questions; `blocks` as in `per_example_interval`.

    Seeds and clusters of questions are crossed random effects. The spread of the seeds' means has the variance between
    seeds and the noise of single answers. It lacks the variance of the choice of questions, which all seeds share. That
    variance is the covariance of two seeds' means, from the clusters that both have, and is added. The interval is
    Student's, with Satterthwaite's degrees of freedom; if the covariance is not positive, as without shared questions,
    it is `t_interval`. Fewer than three seeds or too few clusters: infinite.
    """
    if len(blocks) < FEWEST_FOR_SPREAD or min(map(len, blocks)) < FEWEST_CLUSTERS:
        return Interval(-math.inf, math.inf)
    sums, sizes = _by_cluster(blocks)
    clusters, seeds = sums.shape
    means = sums.sum(0) / sizes.sum(0)
    parts = (sums - means * sizes) / sizes.sum(0)  # part of each cluster in the error of a seed's mean
    over_seeds = means.var(ddof=1) / seeds
    scale = clusters / (clusters - 1) / seeds
    over_questions = scale * np.square(parts.sum(1)).sum() / seeds
    shared = scale * (np.square(parts.sum(1)).sum() - np.square(parts).sum()) / (seeds - 1)
    noise = over_questions - shared
    if shared <= 0:
        return t_interval(means)
    variance = over_seeds + shared
    squares = over_seeds**2 + over_questions**2 * (seeds - 1) / (clusters - 1) + noise**2 / (clusters - 1)
    freedom = variance**2 * (seeds - 1) / squares
    half = float(stats.t.ppf((1 + LEVEL) / 2, freedom) * math.sqrt(variance))
    return Interval(float(means.mean()) - half, float(means.mean()) + half)


def _by_cluster(blocks: Sequence[Mapping[Any, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Sums and numbers of the differences, each [clusters, seeds]; 0 where a seed lacks a cluster."""
    names = dict.fromkeys(name for block in blocks for name in block)
    empty = np.zeros(0)
    sums = [[block.get(name, empty).sum() for block in blocks] for name in names]
    sizes = [[len(block.get(name, empty)) for block in blocks] for name in names]
    return np.array(sums), np.array(sizes)
