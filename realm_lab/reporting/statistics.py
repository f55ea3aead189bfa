"""The statistics of comparing two cells of a study: what they differ by, how sure we are, and when nobody can be.

The unit is the seed: a cell and the baseline share it (data, initial weights, order of batches), so what is compared is
the paired delta of each seed. A handful of seeds says little, and each function here says how little.

References: Student (1908) for the interval of a mean; Fisher (1935), The design of experiments, section 21, for the
sign-flip test; Holm (1979), A simple sequentially rejective multiple test procedure; Davison & Hinkley (1997),
Bootstrap methods, section 3.8, for clusters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95
EXACT_SEEDS = 16  # up to here all 2^n assignments of signs are counted, above it `RESAMPLES` of them are drawn
RESAMPLES = 10_000
BOOTSTRAPS = 2000
FEWEST_CLUSTERS = 10  # of fewer, a bootstrap says too much
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


def fewest_seeds(tests: int) -> int:
    """With fewer seeds no data could be significant after Holm's correction over so many tests."""
    return 1 + math.ceil(math.log2(tests / (1 - LEVEL)) - 1e-9)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p of each of several tests: the chance of any false alarm among all stays at its level."""
    order = np.argsort(ps)
    stepped = np.maximum.accumulate(np.sort(ps) * np.arange(len(ps), 0, -1))
    adjusted = np.empty(len(ps))
    adjusted[order] = np.minimum(1.0, stepped)
    return [float(p) for p in adjusted]


def per_example_interval(blocks: Sequence[Mapping[Hashable, np.ndarray]]) -> Interval:
    """Paired bootstrap over clusters of questions: other questions, but these very trained models.

    blocks: for each seed, cluster -> the differences in score of its questions. Questions of one article are alike, so
    an article is drawn with all of its questions, and one that several seeds have is drawn in all of them. The mean is
    that of the questions drawn, then of the seeds. Of other seeds it says nothing. Too few clusters: infinite.
    """
    if not blocks or min(map(len, blocks)) < FEWEST_CLUSTERS:
        return Interval(-math.inf, math.inf)
    names = dict.fromkeys(name for block in blocks for name in block)
    empty = np.zeros(0)
    sums = [[block.get(name, empty).sum() for block in blocks] for name in names]
    sizes = [[len(block.get(name, empty)) for block in blocks] for name in names]
    # [different clusters, 2 seeds]: many clusters have the same sums and sizes, so draw how often each kind comes
    kinds, counts = np.unique(np.hstack([sums, sizes]), axis=0, return_counts=True)
    drawn = np.random.default_rng(SEED).multinomial(len(names), counts / len(names), size=BOOTSTRAPS) @ kinds
    means = drawn[:, : len(blocks)] / np.maximum(drawn[:, len(blocks) :], 1)
    low, high = np.quantile(means.mean(1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))
