"""Power before any run: the differences that a study will detect, from the paired differences of earlier runs.

Studies without any effect are simulated, with the skewness and the correlations of the earlier differences, as for
calibration. Then one comparison at a time gets an effect, up in half of the studies and down in the others. The test is
the report's: sign flips, corrected for the family, once or at each look of a rule. The other comparisons stay without
an effect and take all seeds. A study in which another comparison has a larger statistic counts as finding nothing. The
spread is known from a few seeds only, so power is averaged over its uncertainty, as in `power`.

References: as in `calibration`, `power` and `sequential`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize

from realm_lab.evidence.statistics.calibration import skewed, some_signs
from realm_lab.evidence.statistics.intervals import FEWEST_FOR_SPREAD, SEED
from realm_lab.evidence.statistics.paired import FEWEST_SEEDS, TIED
from realm_lab.evidence.statistics.power import POWER, STUDIES, spreads
from realm_lab.evidence.statistics.sequential import ALPHA, Rule

POWER_ERROR = (POWER * (1 - POWER) / STUDIES) ** 0.5  # standard error of the simulated power
LARGEST = 64.0  # largest effect that is tried, in standard deviations


class Spread(NamedTuple):
    """Standard deviation of paired differences, estimated from a number of seeds."""

    sd: float
    seeds: float


class Detectable(NamedTuple):
    """The smallest true difference that is found with 80 % power."""

    difference: float
    seeds: float  # the mean number of seeds that are taken at this difference


def detectable_differences(pilot: np.ndarray, known: Sequence[Spread | None], rule: Rule) -> list[Detectable | None]:
    """The detectable difference of each comparison of a family; None: no spread is known, no data could be significant,
    or not even 64 standard deviations are detected.

    `pilot`: earlier paired differences, [seeds, tests]; NaN where a test lacks a seed. A test with fewer than three
    differences is simulated as normal and independent. `rule`: for a fixed number n of seeds, one look: `Rule(n, n)`.
    """
    if rule.at_most < FEWEST_SEEDS:
        return [None] * len(known)
    family = _Family(_without_effect(pilot, rule.at_most), rule)
    return [one and _detectable(family, test, one) for test, one in enumerate(known)]


def _without_effect(pilot: np.ndarray, seeds: int) -> np.ndarray:
    """Simulate differences without an effect, [studies, seeds, tests], of variance 1."""
    generator = np.random.default_rng(SEED)
    made = generator.standard_normal((STUDIES, seeds, pilot.shape[1]))
    has_skew = np.isfinite(pilot).sum(0) >= FEWEST_FOR_SPREAD
    if has_skew.any():
        made[..., has_skew] = skewed(pilot[:, has_skew], STUDIES, generator, seeds)
    return made.astype(np.float32)


def _detectable(family: _Family, test: int, spread: Spread) -> Detectable | None:
    """Find the difference that a test detects, by Brent's method over one set of simulated studies."""
    if not spread.sd:
        return Detectable(0.0, FEWEST_SEEDS)
    count, most = len(family.studies), family.rule.at_most
    true = spreads(round(spread.seeds), count).astype(np.float32)  # estimates for a true spread of 1
    moves = np.where(np.arange(count) % 2, true, -true)  # for an effect of 1

    def excess(effect: float) -> float:
        return float((family.found_at(test, np.float32(effect) * moves) > 0).mean()) - POWER

    high = 1.0
    while excess(high) < 0:
        high *= 2
        if high > LARGEST:
            return None
    effect = float(optimize.brentq(excess, 0, high, xtol=0.005))
    at = family.found_at(test, np.float32(effect) * moves)
    return Detectable(effect * spread.sd, float(np.where(at, at, most).mean()))


class _Family:
    """Simulated studies without an effect, with the statistics of their tests at each look."""

    def __init__(self, studies: np.ndarray, rule: Rule):
        """`studies`: [studies, seeds, tests]."""
        self.studies, self.rule = studies, rule
        flips = some_signs(rule.at_most).astype(np.float32)
        self._looks = []  # per look: seeds, signs, the two largest statistics over all tests, the test with the largest
        for seeds in range(rule.at_least, rule.at_most + 1):
            width = min(len(flips), 2 ** (seeds - 1))
            mine = flips[:: len(flips) // width, :seeds]  # one row for each choice of the first `seeds` signs
            if self._room(seeds, width):  # else nothing can be significant yet
                self._looks.append((seeds, mine, *self._largest(seeds, mine)))

    def found_at(self, test: int, moves: np.ndarray) -> np.ndarray:
        """Return the number of seeds at which the test is significant in each study, [studies], if its differences move
        by `moves`; 0: it never is."""
        moved = self.studies[..., test] + moves[:, None]
        at = np.zeros(len(moved), int)
        crossed = np.zeros((len(moved), 1), bool)  # the steps of sequential.py, in all studies at once
        for seeds, flips, first, second, owner in self._looks:
            mine = _statistics(moved[:, :seeds], flips)
            largest = np.maximum(mine, np.where(owner == test, second, first))
            crossed = np.repeat(crossed, len(flips) // crossed.shape[1], axis=1)
            p = (crossed | (largest >= mine[:, :1] - TIED)).mean(1) / self.rule.share(seeds)
            at[(at == 0) & (p <= ALPHA + TIED)] = seeds
            if seeds < self.rule.at_most:
                room = self._room(seeds, len(flips))
                top = np.where(crossed, np.float32(-1), largest)
                top = np.sort(np.partition(top, -1 - room, axis=1)[:, -1 - room :], axis=1)[:, ::-1]
                left = np.maximum(room - crossed.sum(1), 0)
                crossed |= largest > np.take_along_axis(top, left[:, None], 1) + TIED
        return at

    def _room(self, seeds: int, width: int) -> int:
        """The number of sign vectors that may have crossed a threshold by the look at that many seeds."""
        return int(ALPHA * self.rule.share(seeds) * width + TIED)

    def _largest(self, seeds: int, flips: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        first, second = np.full((2, len(self.studies), len(flips)), -1, np.float32)
        owner = np.zeros(first.shape, np.int16)
        for test in range(self.studies.shape[2]):
            found = _statistics(self.studies[:, :seeds, test], flips)
            is_first = found > first
            second = np.where(is_first, first, np.maximum(second, found))
            first, owner = np.maximum(first, found), np.where(is_first, np.int16(test), owner)
        return first, second, owner


def _statistics(deltas: np.ndarray, flips: np.ndarray) -> np.ndarray:
    """Return `paired.step_down_max_t`'s statistics of one test, |deltas @ flips| / |deltas|, [studies, signs]."""
    lengths = np.linalg.norm(deltas, axis=1, keepdims=True)
    found: np.ndarray = np.abs(deltas / np.where(lengths, lengths, 1.0) @ flips.T)
    return found
