"""Findings: the comparisons of a study are one family of tests, and each is judged among the others.

Differences are corrected over the family by step-down max-T, and separately equivalences by Holm's method: the chance
of any false difference is at most 5 %, and so is the chance of any false equivalence.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from realm_lab.evidence.statistics.calibration import SUSPECT, calibrate
from realm_lab.evidence.statistics.intervals import FEWEST_FOR_SPREAD, Interval, t_interval
from realm_lab.evidence.statistics.paired import FEWEST_SEEDS, Comparison, holm, step_down_max_t
from realm_lab.evidence.statistics.power import (
    EQUIVALENCE_LEVEL,
    FEWEST_FOR_PROJECTION,
    detectable_difference,
    equivalence_p,
    needed_seeds,
)
from realm_lab.evidence.statistics.robust import Estimate, interquartile_mean, probability_higher
from realm_lab.records.metrics import Metric

ALPHA = 0.05
Key = TypeVar("Key", bound=Hashable)


class Kind(StrEnum):
    """The result of one comparison with the baseline."""

    LOWER = "lower"  # significantly lower
    HIGHER = "higher"
    EQUIVALENT = "equivalent"  # a difference as large as the study declares to matter is ruled out
    NOT_SIGNIFICANT = "not significant"  # with enough seeds; the study declares no difference that matters
    INCONCLUSIVE = "inconclusive"  # with enough seeds; not significant, and a difference that matters is not ruled out
    TOO_FEW_SEEDS = "too few seeds"  # for any significant difference
    ONE_PAIR = "one pair of models"  # one seed, but its interval over questions excludes zero
    REFUSED = "refused by the control"  # significant or equivalent, but the control differs, or was not tested
    NOTHING_LEARNED = "nothing was learned"  # all means are at the floor of the metric, with no significant difference


class Finding(NamedTuple):
    """One comparison with the baseline, judged among the others of its family. The words for it are in wording.py."""

    comparison: Comparison
    metric: Metric
    tests: int  # in the family
    corrected_p: float  # of a difference, corrected over the family
    bound: float | None  # the largest difference that does not matter, as the study declares; None: not declared
    equivalence_p: float | None  # corrected over the family; None: no bound, or too few seeds
    is_exploratory: bool  # in a family separate from the study's
    span: float  # the largest possible difference
    is_refused: bool = False  # the control, a second arm of the baseline's code, differs from it or was not tested
    false_alarms: float | None = None  # of only this test, with the skewness of its differences; None: too few seeds
    per_example: Interval | None = None  # for other questions and these very models: bootstrap over clusters
    seeds_and_questions: Interval | None = None  # for other seeds and other questions

    @property
    def seeds(self) -> int:
        """Number of seeds that both cells have."""
        return len(self.comparison.deltas)

    @property
    def size(self) -> float:
        """Mean difference from the baseline."""
        return self.comparison.mean

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the difference, within the range of the metric; None for fewer than three seeds."""
        return self.comparison.interval.within(self.span)

    @property
    def interquartile(self) -> Estimate | None:
        """Mean of the middle half of the differences; None for fewer than four seeds."""
        found = interquartile_mean(self.comparison.deltas)
        return found and found.within(self.span)

    @property
    def probability_higher(self) -> Estimate | None:
        """Probability that a seed's value is higher than the baseline's; None for fewer than three seeds."""
        return None if self.seeds < FEWEST_FOR_SPREAD else probability_higher(self.comparison.deltas)

    @property
    def detectable_difference(self) -> float | None:
        """Smallest true difference that these seeds show with 80 % power; None: it would exceed the range of the
        metric, or the seeds are too few."""
        if self.seeds < FEWEST_FOR_SPREAD:
            return None
        found = detectable_difference(self.comparison.deltas, self.tests)
        return None if found is None or found > self.span else found

    @property
    def needed_seeds(self) -> int | None:
        """Seeds that show a difference as large as the observed one with 80 % power; None: over 100, the difference is
        0, or it is known from fewer than five seeds."""
        return None if self.seeds < FEWEST_FOR_PROJECTION else needed_seeds(self.comparison.deltas, self.tests)

    @property
    def equivalent_within(self) -> float | None:
        """The bound, if a larger difference is ruled out."""
        return self.bound if self.equivalence_p is not None and self.equivalence_p <= ALPHA else None

    @property
    def equivalence_interval(self) -> Interval | None:
        """90 % interval of the difference; both one-sided tests at 5 % are significant if it is within the bound."""
        return t_interval(self.comparison.deltas, EQUIVALENCE_LEVEL).within(self.span)

    @property
    def kind(self) -> Kind:
        """The kind of result; NOT_SIGNIFICANT and INCONCLUSIVE need enough seeds for a significant difference."""
        if self.seeds == 1 and self.per_example and self.per_example.excludes_zero:
            return Kind.ONE_PAIR
        if self.corrected_p <= ALPHA:
            way = Kind.HIGHER if self.size > 0 else Kind.LOWER
            return Kind.REFUSED if self.is_refused else way
        if all(map(self.metric.is_at_floor, self.comparison.means)):
            return Kind.NOTHING_LEARNED
        if self.equivalent_within is not None:
            return Kind.REFUSED if self.is_refused else Kind.EQUIVALENT
        if self.comparison.smallest_p <= ALPHA:
            return Kind.NOT_SIGNIFICANT if self.bound is None else Kind.INCONCLUSIVE
        return Kind.TOO_FEW_SEEDS

    @property
    def is_skewed(self) -> bool:
        """True if the uncorrected test gives more than 7.5 % false alarms, because of skewed differences."""
        return self.false_alarms is not None and self.false_alarms > SUSPECT

    @property
    def is_significant(self) -> bool:
        """True for a significant difference, lower or higher."""
        return self.kind in (Kind.LOWER, Kind.HIGHER)

    @property
    def direction(self) -> Kind | None:
        """HIGHER or LOWER if all seeds agree, significant or not; None if they disagree."""
        deltas = self.comparison.deltas
        if min(deltas) > 0:
            return Kind.HIGHER
        return Kind.LOWER if max(deltas) < 0 else None

    @property
    def improves(self) -> bool | None:
        """True if `direction` is the metric's better direction, False if it is the other; None if one is unknown."""
        better = {"up": Kind.HIGHER, "down": Kind.LOWER}.get(self.metric.better)
        return None if better is None or self.direction is None else self.direction is better

    def as_json(self) -> dict[str, Any]:
        """The fields of a finding in summary.json."""
        found = self.comparison
        more = {"seeds_and_questions_interval": self.seeds_and_questions} if self.seeds_and_questions else {}
        return {
            "finding": self.kind,
            "exploratory": self.is_exploratory,
            "n": self.seeds,
            "delta": self.size,
            "deltas": dict(zip(map(str, found.seeds), found.deltas, strict=True)),
            "direction": self.direction,
            "improves": self.improves,
            "interval": self.interval,
            "per_example_interval": self.per_example,
            **more,
            "interquartile": self.interquartile and self.interquartile._asdict(),
            "probability_higher": self.probability_higher and self.probability_higher._asdict(),
            "p": found.p,
            "tests": self.tests,
            "corrected_p": self.corrected_p,
            "smallest_corrected_p": found.smallest_p,
            "false_alarms": self.false_alarms,
            "detectable_difference": self.detectable_difference,
            "needed_seeds": self.needed_seeds,
            "bound": self.bound,
            "equivalent_within": self.equivalent_within,
            "equivalence_interval": self.equivalence_interval,
        }


def judge(
    found: Mapping[Key, tuple[Metric, Comparison]],
    largest: Mapping[str, float],
    *,
    is_exploratory: bool = False,
    spans: int = 1,
    absent: int = 0,
) -> dict[Key, Finding]:
    """Judge a family of comparisons. `largest`: metric -> the largest difference that does not matter. `spans`: 2 for
    differences of differences, which reach twice the metric's range. `absent`: number of comparisons that were declared
    but not measured."""
    deltas = [comparison.by_seed for _, comparison in found.values()]
    corrected = dict(zip(found, step_down_max_t(deltas), strict=True))
    calibrated = calibrate(deltas)
    alarms = dict(zip(found, calibrated.alone, strict=True)) if calibrated else {}
    alike = {
        key: equivalence_p(comparison.deltas, largest[metric.name])
        for key, (metric, comparison) in found.items()
        if metric.name in largest and len(comparison.deltas) >= FEWEST_FOR_SPREAD
    }
    equivalence = dict(zip(alike, holm([*alike.values()]), strict=True))
    return {
        key: Finding(
            comparison,
            metric,
            len(found) + absent,
            corrected[key],
            largest.get(metric.name),
            equivalence.get(key),
            is_exploratory,
            spans * metric.span,
            false_alarms=alarms[key].rate if key in alarms and len(comparison.deltas) >= FEWEST_SEEDS else None,
        )
        for key, (metric, comparison) in found.items()
    }
