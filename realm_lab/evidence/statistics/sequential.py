"""Tests that are looked at after every seed, and cells that take no more seeds once they are decided.

Joint sign flips, as in `paired.step_down_max_t`, with a level that is spent over the looks: by the look at n of at most
N seeds, at most a share of .05 n / N of all sign vectors of these seeds may have crossed a threshold (the linear
spending function of Lan & DeMets). A sign vector keeps its first signs, so the thresholds of all looks come from one
set of sign vectors, and without any effect the observed one is drawn at random from this set. So the chance of any
false difference at any look is at most 5 %, whenever the study stops. Found differences leave the family (step-down). A
cell that stops because it is equivalent keeps its statistic in the family; for such cells the 5 % are checked by
simulation (benchmarks/false_alarms.py), not proved.

Equivalences have a separate level of 5 %, divided over the looks in the same way (Bonferroni) and over the comparisons
by Holm's method for sequential tests.

References: Lan & DeMets (1983), Discrete sequential boundaries for clinical trials; Westfall & Young (1993),
Resampling-based multiple testing, section 2.8; Bartroff & Song (2014), Sequential tests of multiple hypotheses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from realm_lab.evidence.statistics.intervals import LEVEL
from realm_lab.evidence.statistics.paired import TIED, holm, signs
from realm_lab.evidence.statistics.power import equivalence_p

ALPHA = 1 - LEVEL
Key = TypeVar("Key", bound=Hashable)


class Rule(NamedTuple):
    """Seeds until decided: a look after each seed from `at_least` to `at_most`."""

    at_least: int
    at_most: int

    def share(self, seeds: int) -> float:
        """The share of the level that may be spent by the look at that many seeds."""
        return seeds / self.at_most

    def new_share(self, seeds: int) -> float:
        """The share of the level that the look at that many seeds adds."""
        return self.share(seeds) - (self.share(seeds - 1) if seeds > self.at_least else 0.0)


class Decisions(NamedTuple, Generic[Key]):
    """The state after the last look. A p of at most .05 decides a comparison."""

    seeds: int  # of the last look; 0: none yet
    differences: dict[Key, float]  # p, corrected for the family and for the looks
    equivalences: dict[Key, float]  # p of equivalence, corrected for the comparisons and for the looks
    stopped: dict[Hashable, int]  # group -> seeds at which it was decided
    wanted: dict[Hashable, int]  # group -> seeds that it needs now


def decide(
    tests: Mapping[Key, Sequence[float]],
    bounds: Mapping[Key, float],
    groups: Mapping[Key, Hashable],
    deciding: Collection[Key],
    rule: Rule,
    is_at_floor: Callable[[Key, int], bool] = lambda key, seeds: False,
) -> Decisions[Key]:
    """Replay every look that the data allow.

    `tests`: the known differences of each comparison in the order of the seeds; NaN: a seed whose runs lack the metric.
    `bounds`: comparison -> the largest difference that does not matter. `groups`: comparison -> its cell; a cell stops
    when its comparisons in `deciding` are decided. `is_at_floor`: true if nothing was learned in a comparison by that
    many seeds; its equivalence then decides nothing. The same data always give the same decisions.
    """
    family = _Family(tests, rule)
    found: dict[Key, float] = {}
    alike = dict.fromkeys(bounds, 1.0)  # the smallest p of equivalence so far, corrected for the looks
    equal = dict.fromkeys(bounds, 1.0)
    stopped: dict[Hashable, int] = {}
    names = dict.fromkeys(groups.values())
    seeds = 0
    for now in range(rule.at_least, rule.at_most + 1):
        going = [key for key in tests if groups[key] not in stopped]
        if not going or any(len(tests[key]) < now for key in going):
            break
        seeds = now
        family.look(now, {groups[key] for key in going}, groups)
        while new := {key: p for key, p in family.shares(found).items() if p <= ALPHA}:
            found |= new
        for key in going:
            if key in bounds:
                alike[key] = min(alike[key], equivalence_p(tests[key][:now], bounds[key]) / rule.new_share(now))
        equal = dict(zip(alike, holm([*alike.values()]), strict=True))
        for name in names:
            mine = [key for key in deciding if groups[key] == name]
            decided = [key in found or (equal.get(key, 1.0) <= ALPHA and not is_at_floor(key, now)) for key in mine]
            if name not in stopped and mine and all(decided):
                stopped[name] = now
    unfinished = min(max(seeds + 1, rule.at_least), rule.at_most)
    wanted = {name: stopped.get(name, unfinished) for name in names}
    return Decisions(seeds, family.shares(found) | found if seeds else {}, equal, stopped, wanted)


class _Family(Generic[Key]):
    """The statistics of all comparisons under all signs, look by look."""

    def __init__(self, tests: Mapping[Key, Sequence[float]], rule: Rule):
        self._tests, self._rule = tests, rule
        self._looks: list[tuple[int, dict[Key, np.ndarray]]] = []

    def look(self, seeds: int, going: Collection[Hashable], groups: Mapping[Key, Hashable]) -> None:
        """Add the look at that many seeds; a comparison of a stopped group keeps the statistic of the look before."""
        flips = signs(seeds)[: 2 ** (seeds - 1)]  # half of them: the opposite signs give the same statistics
        added = {}
        for key, deltas in self._tests.items():
            if groups[key] in going:
                values = np.nan_to_num(deltas[:seeds])
                length = np.linalg.norm(values)
                added[key] = np.abs(flips @ (values / (length or 1.0)))
            else:
                added[key] = np.repeat(self._looks[-1][1][key], 2)
        self._looks.append((seeds, added))

    def shares(self, found: Collection[Key]) -> dict[Key, float]:
        """Return p of every comparison that is not in `found`, corrected for all of these and for the looks."""
        left = [key for key in self._tests if key not in found]
        result = dict.fromkeys(left, 1.0)
        crossed = np.zeros(1, bool)
        for seeds, statistics in self._looks if left else ():
            largest = np.max([statistics[key] for key in left], axis=0)
            crossed = np.repeat(crossed, len(largest) // len(crossed))
            share = self._rule.share(seeds)
            for key in left:
                reached = float((crossed | (largest >= statistics[key][0] - TIED)).mean()) / share
                result[key] = result[key] if result[key] <= ALPHA else min(1.0, reached)
            room = int(ALPHA * share * len(largest) + TIED) - int(crossed.sum())
            others = np.sort(largest[~crossed])[::-1]
            crossed |= largest > (others[max(room, 0)] + TIED)
        return result
