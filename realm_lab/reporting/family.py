"""Everything that a study looks at is one family of tests, and each is judged among the others.

Differences are corrected over the family by step-down max-T, and separately equivalences by Holm's method: the chance
of any false difference is at most 5 %, and so is that of any false equivalence.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeVar

from realm_lab.metrics import Metric
from realm_lab.reporting.power import EQUIVALENCE_LEVEL, detectable_difference, equivalence_p, needed_seeds
from realm_lab.reporting.statistics import (
    FEWEST_FOR_SPREAD,
    Comparison,
    Interval,
    holm,
    step_down_max_t,
    t_interval,
)

ALPHA = 0.05
Key = TypeVar("Key", bound=Hashable)


class Outcome(StrEnum):
    """The result of one comparison with the baseline."""

    LOWER = "lower"  # significantly
    HIGHER = "higher"
    EQUIVALENT = "equivalent"  # a difference as large as the study declares to matter is ruled out
    NOT_SIGNIFICANT = "not significant"  # though so many seeds can be
    INCONCLUSIVE = "inconclusive"  # the same, and a difference that matters is not ruled out
    TOO_FEW_SEEDS = "too few seeds"  # for any significant difference
    ONE_PAIR = "one pair of models"  # one seed, but its interval over questions excludes zero


class Judged(NamedTuple):
    """A comparison, judged among the others of its family."""

    comparison: Comparison
    metric: Metric
    tests: int  # in the family
    corrected_p: float  # of a difference
    largest: float | None  # difference that does not matter, as the study declares; None: not declared
    equivalence_p: float | None  # corrected
    is_exploratory: bool  # in a family separate from the study's
    span: float  # the largest possible difference

    @property
    def seeds(self) -> int:
        """Number of seeds that both cells have."""
        return len(self.comparison.deltas)

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the difference, within the range of the metric; None for fewer than three seeds."""
        return self.comparison.interval.within(self.span)

    @property
    def detectable_difference(self) -> float | None:
        """Smallest true difference that these seeds show with 80 % power; None: no possible one, or fewer than three
        seeds."""
        if self.seeds < FEWEST_FOR_SPREAD:
            return None
        found = detectable_difference(self.comparison.deltas, self.tests)
        return None if found is None or found > self.span else found

    @property
    def needed_seeds(self) -> int | None:
        """Seeds that show a difference as large as the observed one with 80 % power; None: over 100, or fewer than
        three seeds are known."""
        return None if self.seeds < FEWEST_FOR_SPREAD else needed_seeds(self.comparison.deltas, self.tests)

    @property
    def equivalent_within(self) -> float | None:
        """The declared difference that does not matter, if a larger one is ruled out."""
        return self.largest if self.equivalence_p is not None and self.equivalence_p <= ALPHA else None

    @property
    def equivalence_interval(self) -> Interval | None:
        """90 %: two one-sided tests at 5 % are significant if it lies within the largest difference."""
        return t_interval(self.comparison.deltas, EQUIVALENCE_LEVEL).within(self.span)

    @property
    def outcome(self) -> Outcome:
        """NOT_SIGNIFICANT and INCONCLUSIVE only if so many seeds could have been significant."""
        if self.corrected_p <= ALPHA:
            return Outcome.HIGHER if self.comparison.mean > 0 else Outcome.LOWER
        if self.equivalent_within is not None:
            return Outcome.EQUIVALENT
        if self.comparison.smallest_p <= ALPHA:
            return Outcome.NOT_SIGNIFICANT if self.largest is None else Outcome.INCONCLUSIVE
        return Outcome.TOO_FEW_SEEDS

    @property
    def direction(self) -> Outcome | None:
        """HIGHER or LOWER if every seed says so, significant or not; None if they disagree."""
        deltas = self.comparison.deltas
        if min(deltas) > 0:
            return Outcome.HIGHER
        return Outcome.LOWER if max(deltas) < 0 else None


def judge(
    found: Mapping[Key, tuple[Metric, Comparison]],
    largest: Mapping[str, float],
    *,
    is_exploratory: bool = False,
    spans: int = 1,
) -> dict[Key, Judged]:
    """A family of comparisons; `largest`: metric -> the largest difference that does not matter. A difference of
    differences can be two `spans` of its metric."""
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
            spans * metric.span,
        )
        for key, (metric, comparison) in found.items()
    }
