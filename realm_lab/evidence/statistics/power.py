"""Power of a handful of seeds: the minimum detectable difference, the number of seeds needed, equivalence.

Power is computed for the corrected sign-flip test of one normal difference. The other tests of the family have no
difference and are independent; tests that share a baseline are correlated, and lose less power to the correction. Up to
10 seeds the procedure itself is simulated (a study in which a test without a difference has a larger statistic
counts as finding nothing). Above, power comes from Student's t at the level 1 - .95^(1 / tests), which is 1 % off from
nine seeds on, but 4 % at seven and 20 % at six, where few signs are significant. The spread is estimated from these few
seeds, so power is averaged over its uncertainty: if the estimate were taken as true, a power of .80 at 8 seeds would in
fact be .74 for one test and .69 for 18.

References: Lehmann & Romano (2005), Testing statistical hypotheses, section 5.9; Schuirmann (1987), two one-sided tests
procedure, for equivalence.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import optimize, stats

from realm_lab.evidence.statistics.intervals import FEWEST_FOR_SPREAD, LEVEL, SEED
from realm_lab.evidence.statistics.paired import FEWEST_SEEDS, signs
from realm_lab.records.files import read_json

POWER = 0.8
SIMULATED_SEEDS = 10  # up to here power is simulated
STUDIES = 2000  # simulated studies: a power of .8 has a standard error of .9 points
MOST_SEEDS = 100  # a larger number of needed seeds is not computed
FEWEST_FOR_PROJECTION = 5  # seeds; fewer give hardly any information about how many are needed
EQUIVALENCE_LEVEL = 0.9  # of the interval that goes with two one-sided tests at 5 %


def detectable_difference(deltas: Sequence[float], tests: int) -> float | None:
    """The true difference that as many seeds as `deltas`, with their spread, find with 80 % power; None if the seeds
    are too few."""
    effect = detectable_effect(len(deltas), tests)
    return None if effect is None else effect * float(np.std(deltas, ddof=1))


def needed_seeds(deltas: Sequence[float] | np.ndarray, tests: int) -> int | None:
    """The fewest seeds that show a difference as large as the observed one with 80 % power; None: over 100, or the
    observed difference is 0."""
    mean, sd = abs(float(np.mean(deltas))), float(np.std(deltas, ddof=1))
    if mean == 0:
        return None

    def is_enough(seeds: int) -> bool:
        effect = detectable_effect(seeds, tests)
        return effect is not None and effect * sd <= mean

    few, more = range(FEWEST_SEEDS, SIMULATED_SEEDS + 1), range(SIMULATED_SEEDS + 1, MOST_SEEDS + 1)
    found = next(filter(is_enough, few), None) or SIMULATED_SEEDS + 1 + bisect_left(more, True, key=is_enough)
    return found if found <= MOST_SEEDS else None


def equivalence_p(deltas: Sequence[float] | np.ndarray, largest: float) -> float:
    """p of "the true difference is `largest` or more, in one direction or the other": two one-sided paired t-tests.
    1 for fewer than three seeds, since two differences are often equal by chance, without any spread. NaN in
    `deltas`: a seed without a value."""
    known = np.asarray(deltas)[~np.isnan(deltas)]
    if len(known) < FEWEST_FOR_SPREAD:
        return 1.0
    margin = largest - abs(float(np.mean(known)))
    error = float(np.std(known, ddof=1)) / math.sqrt(len(known))
    return float(stats.t.sf(margin / error, len(known) - 1)) if error else float(margin <= 0)


@functools.cache
def detectable_effect(seeds: int, tests: int) -> float | None:
    """The detectable difference, in standard deviations of the paired differences; None: too few seeds for any."""
    if seeds < FEWEST_SEEDS:
        return None
    if seeds <= SIMULATED_SEEDS:
        known = simulated_effects()[str(seeds)]
        return known[tests - 1] if tests <= len(known) else simulated_effect(seeds, tests)
    critical = stats.t.isf((1 - LEVEL ** (1 / tests)) / 2, seeds - 1)
    shifts = math.sqrt(seeds) * spreads(seeds, 50)

    def excess(effect: float) -> float:
        return float(stats.nct.sf(critical, seeds - 1, effect * shifts).mean()) - POWER

    return float(optimize.brentq(excess, 0, 4))


def spreads(seeds: int, count: int) -> np.ndarray:
    """Return `count` evenly spaced quantiles of the standard deviation of `seeds` normal values of variance 1."""
    variances: np.ndarray = stats.chi2.ppf((np.arange(count) + 0.5) / count, seeds - 1) / (seeds - 1)
    found: np.ndarray = np.sqrt(variances)
    return found


@functools.cache
def simulated_effects() -> dict[str, list[float]]:
    """Read seeds -> `simulated_effect` for 1, 2, ... tests, which would take seconds to compute."""
    return dict(read_json(Path(__file__).with_name("simulated_effects.json")))


def simulated_effect(seeds: int, tests: int) -> float:
    """Compute the detectable effect by Brent's method over one set of simulated studies. In each study one test moves
    by the effect times one of `spreads`."""
    half = signs(seeds)[: 2 ** (seeds - 1)].T.astype(np.float32)  # without mirrors
    generator = np.random.default_rng(SEED)
    mine, *others = (generator.standard_normal((STUDIES, seeds), np.float32) for _ in range(tests))
    largest = np.zeros((STUDIES, half.shape[1]), np.float32)  # statistic of the other tests
    for deltas in others:
        np.maximum(largest, _statistics(deltas, half), out=largest)
    moves = spreads(seeds, STUDIES).astype(np.float32)[:, None]  # for an effect of 1

    def excess(effect: float) -> float:
        moved = _statistics(mine + np.float32(effect) * moves, half)
        p = (np.maximum(moved, largest) >= moved[:, :1]).mean(1)  # the observed signs are the first
        return float((p <= 1 - LEVEL).mean()) - POWER

    return round(float(optimize.brentq(excess, 0, 50, xtol=0.005)), 2)  # only exact digits, so that all machines agree


def _statistics(deltas: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return `step_down_max_t`'s statistics [studies, signs] of deltas [studies, seeds] and signs [seeds, signs]."""
    found: np.ndarray = np.abs(deltas @ signs) / np.linalg.norm(deltas, axis=1, keepdims=True)
    return found
