"""Components of variance: how much of the variance between runs is due to the seed, and how much to each noise stream.

The runs are a balanced table: S seeds, and for each seed one run of every combination of the levels of some factors.
All effects are random, and the levels of a factor are different draws for each seed:

    y = mean + seed + first factor within seed + second factor within seed + ... + rest

The estimates come from the analysis of variance: mean squares are equated to their expectations (the method of
moments; Searle, Casella and McCulloch 1992, Variance components, chapter 4). The intervals are generalised confidence
intervals: each mean square has a scaled chi-squared distribution (Weerahandi 1993, JASA 88, 899-905).
"""

# Shapes: S seeds, one axis for each of the F factors; R draws; C components (seed, F factors, rest)

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from realm_lab.evidence.statistics.intervals import LEVEL, SEED, Interval

DRAWS = 10_000


class Component(NamedTuple):
    """One source of variance. `raw` may be negative by chance; `variance` is 0 then."""

    raw: float
    variance: float
    share: float  # of the sum of all variances; nan if that is 0
    interval: Interval  # of the share
    freedom: int  # degrees of freedom of its mean square


def components(values: np.ndarray) -> list[Component]:
    """Estimate the components of the seed (first axis of `values`), of each factor (further axes) and of the rest.

    At least two seeds, and two factors with two levels each, are needed.
    """
    assert values.ndim >= 3, "nothing would be left for the rest"
    square_C, freedom_C = _mean_squares(values)
    raw_C = _estimates(square_C, values.shape)
    rng = np.random.default_rng(SEED)
    drawn_RC = _estimates(square_C * freedom_C / rng.chisquare(freedom_C, (DRAWS, len(freedom_C))), values.shape)
    ends = (1 - LEVEL) / 2, (1 + LEVEL) / 2
    low_C, high_C = np.quantile(_shares(drawn_RC), ends, axis=0)
    return [
        Component(float(raw), max(float(raw), 0.0), float(share), Interval(float(low), float(high)), int(freedom))
        for raw, share, low, high, freedom in zip(raw_C, _shares(raw_C), low_C, high_C, freedom_C, strict=True)
    ]


def _mean_squares(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean squares of seed, factors and rest, and their degrees of freedom."""
    seeds, *levels = values.shape
    runs, factors = math.prod(levels), range(1, values.ndim)
    seed_means = values.mean(tuple(factors), keepdims=True)
    sums, freedoms = [runs * ((seed_means - values.mean()) ** 2).sum()], [seeds - 1]
    rest = values - seed_means
    for factor in factors:
        effects = (values - seed_means).mean(tuple(other for other in factors if other != factor), keepdims=True)
        sums.append(runs / values.shape[factor] * (effects**2).sum())
        freedoms.append(seeds * (values.shape[factor] - 1))
        rest = rest - effects
    sums.append((rest**2).sum())
    freedoms.append(seeds * runs - 1 - sum(freedoms))
    return np.array(sums) / freedoms, np.array(freedoms)


def _estimates(square_C: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Solve the expectations of the mean squares [..., C] for the components.

    With N runs of a seed and n levels of a factor: E(rest) = rest, E(factor) = rest + N/n factor, and
    E(seed) = rest + N seed + the sum of N/n factor.
    """
    levels = np.array(shape[1:])
    runs = levels.prod()
    seed, factor_F, rest = square_C[..., :1], square_C[..., 1:-1], square_C[..., -1:]
    of_seed = (seed - rest - (factor_F - rest).sum(-1, keepdims=True)) / runs
    return np.concatenate([of_seed, (factor_F - rest) * levels / runs, rest], -1)


def _shares(raw_C: np.ndarray) -> np.ndarray:
    """Return the share of each component in the sum, [..., C]; a negative component counts as 0."""
    variance_C = np.maximum(raw_C, 0.0)
    total = variance_C.sum(-1, keepdims=True)
    share_C: np.ndarray = np.divide(variance_C, total, out=np.full_like(variance_C, np.nan), where=total > 0)
    return share_C
