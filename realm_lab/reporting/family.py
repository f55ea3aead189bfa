"""Everything that a study looks at is one family of tests: each is judged among the others, and says so in words.

Differences are corrected over the family by step-down max-T, and apart from that equivalences by Holm's method: the
chance of any false difference is at most 5 %, and so is that of any false equivalence.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

from realm_lab.metrics import Metric
from realm_lab.reporting.power import (
    EQUIVALENCE_LEVEL,
    MOST_SEEDS,
    detectable_difference,
    equivalence_p,
    needed_seeds,
)
from realm_lab.reporting.rendering import interval, number
from realm_lab.reporting.statistics import Comparison, Interval, holm, step_down_max_t, t_interval

ALPHA = 0.05
NO_DIFFERENCE = "no significant difference"
NOT_ENOUGH = "not enough data"
EQUIVALENT = "no difference larger than"
TOO_FEW = "too few for significance"
EXPLORATORY = "exploratory: "
Key = TypeVar("Key", bound=Hashable)


class Judged(NamedTuple):
    """A comparison, judged among the others of its family."""

    comparison: Comparison
    metric: Metric
    tests: int  # in the family
    corrected_p: float  # of a difference
    largest: float | None  # difference that does not matter, as the study declares; None: not declared
    equivalence_p: float | None  # corrected
    is_exploratory: bool  # in a family beside the study's

    @property
    def detectable_difference(self) -> float | None:
        """What these seeds could have shown with 80 % power; None: nothing, or one seed."""
        deltas = self.comparison.deltas
        return detectable_difference(deltas, self.tests) if len(deltas) > 1 else None

    @property
    def needed_seeds(self) -> int | None:
        """To show a difference as large as the observed one with 80 % power; None: over 100, or one seed."""
        deltas = self.comparison.deltas
        return needed_seeds(deltas, self.tests) if len(deltas) > 1 else None

    @property
    def equivalent_within(self) -> float | None:
        """The difference that does not matter, where a larger one is ruled out."""
        return self.largest if self.equivalence_p is not None and self.equivalence_p <= ALPHA else None

    @property
    def equivalence_interval(self) -> Interval:
        """90 %: two one-sided tests at 5 % are significant where it lies within the largest difference."""
        return t_interval(self.comparison.deltas, EQUIVALENCE_LEVEL)

    @property
    def finding(self) -> str:
        """In a few words. "No significant difference" only where these seeds could have shown one."""
        return EXPLORATORY * self.is_exploratory + self._finding()

    def _finding(self) -> str:
        deltas, seeds = self.comparison.deltas, len(self.comparison.deltas)
        way = "higher" if self.comparison.mean > 0 else "lower"
        if self.corrected_p <= ALPHA:
            return way
        if self.equivalent_within is not None:
            return f"{EQUIVALENT} {self.bound}"
        if self.comparison.smallest_p <= ALPHA:
            return NO_DIFFERENCE if self.largest is None else NOT_ENOUGH
        if seeds > 1 and (min(deltas) > 0 or max(deltas) < 0):
            return f"{way} in {'both' if seeds == 2 else f'all {seeds}'} seeds, {TOO_FEW}"
        return "one seed is too few to tell" if seeds == 1 else f"{seeds} seeds are too few to tell"

    @property
    def bound(self) -> str:
        """The largest difference that does not matter, with its unit."""
        return f"{self.largest:g} {self.metric.unit}".strip()

    @property
    def detail(self) -> str:
        """What the finding rests on: the interval of an equivalence, or what these seeds could have shown."""
        if self.equivalent_within is not None:
            found = f"90 % interval {interval(self.equivalence_interval, self.metric.digits)}"
            return f"{EQUIVALENT} {self.bound}: {found}" if self.corrected_p <= ALPHA else found
        if self.corrected_p <= ALPHA or len(self.comparison.deltas) == 1:
            return ""
        could, seeds = self.detectable_difference, len(self.comparison.deltas)
        shown = f"{number(could, self.metric.digits)} {self.metric.unit}".strip()
        told = f"could have shown a difference of {shown}"
        if could is None:
            told = f"with {seeds} seeds no difference can be significant"
        return f"{told}; the observed one needs {self.needed}"

    @property
    def needed(self) -> str:
        """The seeds that the observed difference needs, in words."""
        return f"more than {MOST_SEEDS} seeds" if self.needed_seeds is None else f"about {self.needed_seeds} seeds"


def judge(
    found: Mapping[Key, tuple[Metric, Comparison]], largest: Mapping[str, float], *, is_exploratory: bool = False
) -> dict[Key, Judged]:
    """A family of comparisons; `largest`: metric -> the largest difference that does not matter."""
    deltas = [dict(zip(comparison.seeds, comparison.deltas, strict=True)) for _, comparison in found.values()]
    corrected = dict(zip(found, step_down_max_t(deltas), strict=True))
    alike = {
        key: equivalence_p(comparison.deltas, largest[metric.name])
        for key, (metric, comparison) in found.items()
        if metric.name in largest and len(comparison.deltas) > 1
    }
    equivalence = dict(zip(alike, holm([*alike.values()]), strict=True))
    return {
        key: Judged(
            comparison,
            metric,
            len(found),
            corrected[key],
            largest.get(metric.name),
            equivalence.get(key),
            is_exploratory,
        )
        for key, (metric, comparison) in found.items()
    }
