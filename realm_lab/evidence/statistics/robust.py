"""Details behind a mean: runs that collapse, the middle half of differences, how often one cell beats the other.

References: McNemar (1947), Note on the sampling error of the difference between correlated proportions, with the exact
binomial p; Tukey & McLaughlin (1963), Less vulnerable confidence and significance procedures, for the interval of a
trimmed mean; Agarwal et al. (2021), Deep reinforcement learning at the edge of the statistical precipice, section 4.3,
for the interquartile mean; Clopper & Pearson (1934), The use of confidence or fiducial limits, for the interval of a
share; Bouthillier et al. (2021), Accounting for variance in machine learning benchmarks, section 4, for P(A > B).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from realm_lab.evidence.statistics.intervals import LEVEL, Interval
from realm_lab.evidence.statistics.paired import Comparison, compare

TRIMMED = 0.25  # share of the differences that is left out at each end, rounded down to whole differences
FEWEST_FOR_TRIM = 4  # with fewer nothing can be trimmed


class Estimate(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    interval: Interval

    def within(self, span: float) -> Estimate:
        """Return the estimate with its interval cut to -span and span."""
        return self._replace(interval=Interval(max(self.interval.low, -span), min(self.interval.high, span)))


class Collapse(NamedTuple):
    """Collapsed runs of a cell and the baseline, over the seeds that both have."""

    seeds: int
    cell: int  # collapsed runs
    baseline: int
    p: float  # exact, two-sided, of only this cell
    alive: Comparison | None  # the differences of the seeds where neither collapsed

    def as_json(self, span: float) -> dict[str, Any]:
        """The fields for summary.json; `span`: the largest possible difference."""
        alive = self.alive
        interval = alive.interval.within(span) if alive else None
        return self._asdict() | {
            "alive": alive and {"n": len(alive.deltas), "delta": alive.mean, "interval": interval, "p": alive.p}
        }


def interquartile_mean(deltas: Sequence[float]) -> Estimate | None:
    """The mean without a quarter of the values at each end, with the interval of Tukey and McLaughlin; None for fewer
    than four values."""
    ordered, count = np.sort(np.asarray(deltas, float)), len(deltas)
    cut = math.floor(TRIMMED * count)
    if count < FEWEST_FOR_TRIM:
        return None
    kept = ordered[cut : count - cut]
    winsorised = np.clip(ordered, kept[0], kept[-1])
    error = winsorised.std(ddof=1) * math.sqrt(count) / len(kept)
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(kept) - 1) * error)
    return Estimate(float(kept.mean()), Interval(float(kept.mean()) - half, float(kept.mean()) + half))


def probability_higher(deltas: Sequence[float]) -> Estimate:
    """P(cell > baseline) for one seed, with Clopper and Pearson's interval; equal values count half."""
    values = np.asarray(deltas, float)
    count, above = len(values), float((values > 0).sum() + 0.5 * (values == 0).sum())
    low = float(stats.beta.ppf((1 - LEVEL) / 2, above, count - above + 1)) if above else 0.0
    high = float(stats.beta.ppf((1 + LEVEL) / 2, above + 1, count - above)) if above < count else 1.0
    return Estimate(above / count, Interval(low, high))


def compare_collapse(
    cell: Mapping[int, bool],
    baseline: Mapping[int, bool],
    values: Mapping[int, float],
    baseline_values: Mapping[int, float],
) -> Collapse | None:
    """Compare the collapses of a cell and the baseline, and their values on seeds without a collapse; None if they
    share no seed.

    If both collapse with the same probability, each seed where only one does is a fair coin: McNemar's exact test.
    """
    seeds = sorted(cell.keys() & baseline.keys())
    if not seeds:
        return None
    only_cell = sum(cell[seed] and not baseline[seed] for seed in seeds)
    only_baseline = sum(baseline[seed] and not cell[seed] for seed in seeds)
    either = only_cell + only_baseline
    p = float(stats.binomtest(only_cell, either).pvalue) if either else 1.0
    alive = [seed for seed in seeds if not cell[seed] and not baseline[seed]]
    compared = compare(
        {seed: values[seed] for seed in alive if seed in values},
        {seed: baseline_values[seed] for seed in alive if seed in baseline_values},
    )
    return Collapse(len(seeds), sum(cell[s] for s in seeds), sum(baseline[s] for s in seeds), p, compared)
