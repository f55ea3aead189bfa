"""What a handful of seeds can show: the difference that they could have shown, the seeds that one needs, equivalence.

Power is that of the exact sign-flip test for normal differences, at the level of Holm's first step, level / tests, the
strictest. Up to 12 seeds it is simulated: the test can reject at few levels there, and the noncentral t at the level
that it reaches promises .80 where .70 is true (8 seeds, one pair of signs in 128). Above, the t is close: its
difference is 2 to 3 % too small from ten pairs of signs on. The spread is known only from as many seeds, so power is
averaged over what they may say of it: with theirs in the place of the true one, .80 at 8 seeds would be .71.

References: Lehmann & Romano (2005), Testing statistical hypotheses, section 5.9; Schuirmann (1987), two one-sided tests
procedure, for equivalence.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize, stats

from realm_lab.reporting.statistics import LEVEL, SEED, smallest_p

POWER = 0.8
SIMULATED_SEEDS = 12  # up to here power is simulated
STUDIES = 2000  # that are simulated: power to 2 standard errors of .9 points
MOST_SEEDS = 100  # more are not looked for
EQUIVALENCE_LEVEL = 0.9  # of the interval that goes with two one-sided tests at 5 %


def detectable_difference(deltas: Sequence[float], tests: int) -> float | None:
    """The true difference that as many seeds, with this spread, show with 80 % power; None: no seeds so few ever do."""
    effect = detectable_effect(len(deltas), tests)
    return None if effect is None else effect * float(np.std(deltas, ddof=1))


def needed_seeds(deltas: Sequence[float], tests: int) -> int | None:
    """The fewest seeds that show a difference as large as the observed one with 80 % power; None: over 100."""
    mean, sd = abs(float(np.mean(deltas))), float(np.std(deltas, ddof=1))
    effects = ((seeds, detectable_effect(seeds, tests)) for seeds in range(2, MOST_SEEDS + 1))
    return next((seeds for seeds, effect in effects if effect is not None and effect * sd <= mean), None)


def equivalence_p(deltas: Sequence[float], largest: float) -> float:
    """p of "the true difference is `largest` or more, in one direction or the other": two one-sided paired t-tests."""
    margin = largest - abs(float(np.mean(deltas)))
    error = float(np.std(deltas, ddof=1)) / math.sqrt(len(deltas))
    return float(stats.t.sf(margin / error, len(deltas) - 1)) if error else float(margin <= 0)


@functools.cache
def detectable_effect(seeds: int, tests: int) -> float | None:
    """The detectable difference in standard deviations of the paired differences; None where no data could reject."""
    smallest = smallest_p(seeds)
    level = math.floor((1 - LEVEL) / tests / smallest + 1e-9) * smallest  # that the test can reach
    if seeds < 2 or not level:
        return None
    if seeds <= SIMULATED_SEEDS:
        return _simulated_effect(seeds, level)
    critical = stats.t.isf(level / 2, seeds - 1)
    shifts = math.sqrt(seeds) * _spreads(seeds, 50)

    def excess(effect: float) -> float:
        return float(stats.nct.sf(critical, seeds - 1, effect * shifts).mean()) - POWER

    return float(optimize.brentq(excess, 0, 4))


def _spreads(seeds: int, count: int) -> np.ndarray:
    """Standard deviations of normal samples of a true one of 1, at evenly spaced quantiles."""
    return np.sqrt(stats.chi2.ppf((np.arange(count) + 0.5) / count, seeds - 1) / (seeds - 1))


def _simulated_effect(seeds: int, level: float) -> float:
    """By bisection over one set of simulated studies, moved by the effect times a spread."""
    signs = np.array(
        [(1, *rest) for rest in itertools.product((1, -1), repeat=seeds - 1)], np.float32
    )  # without mirrors
    noise = np.random.default_rng(SEED).standard_normal((STUDIES, seeds), np.float32)
    sums = noise @ signs.T  # [studies, signs]
    moves = np.outer(_spreads(seeds, STUDIES), signs.sum(1)).astype(np.float32)  # of the sums, for an effect of 1

    def excess(effect: float) -> float:
        moved = np.abs(sums + np.float32(effect) * moves)
        p = (moved >= moved[:, :1]).mean(1)  # the observed signs are the first
        return float((p <= level + 1e-9).mean()) - POWER

    return round(float(optimize.brentq(excess, 0, 5, xtol=0.005)), 2)  # as exact as it is, and the same everywhere
