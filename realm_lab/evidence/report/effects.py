"""Effects of the axes of a study: the effect of each point, averaged over the other axes, and the interactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from realm_lab.evidence.report.comparison import MetricResult
from realm_lab.evidence.statistics.family import Finding, judge
from realm_lab.evidence.statistics.paired import Comparison, compare
from realm_lab.records.metrics import Metric
from realm_lab.records.study import StudyRecord


class AxisEffect(NamedTuple):
    """A point of an axis compared with the baseline's point, averaged over the points of the other axes."""

    axis: str
    point: str
    finding: Finding  # judged among all points of all axes

    def as_json(self) -> dict[str, Any]:
        """The effect for summary.json."""
        return {"axis": self.axis, "point": self.point} | self.finding.as_json()


def axis_effects(study: StudyRecord, result: MetricResult) -> list[AxisEffect]:
    """Return the effect of every point of every axis except the baseline's points. Empty without several axes, and in a
    study of seeds until decided, since p would have to be corrected for its looks."""
    base = study.cell(study.baseline).points
    if len(study.axes) < 2 or not base or study.until:
        return []
    compared: dict[tuple[str, str], tuple[Metric, Comparison]] = {}
    for place, (axis, known) in enumerate(study.axes.items()):
        for point in (point for point in known if point != base[axis]):
            mine = {points: values for points, values in result.by_points.items() if points[place] == point}
            theirs = [result.by_points.get((*p[:place], base[axis], *p[place + 1 :]), {}) for p in mine]
            pairs = [
                (one, other) for one, other in zip(mine.values(), theirs, strict=True) if one.keys() & other.keys()
            ]
            seeds = sorted(set.intersection(*(one.keys() & other.keys() for one, other in pairs))) if pairs else []
            deltas = {seed: float(np.mean([one[seed] - other[seed] for one, other in pairs])) for seed in seeds}
            if found := compare(deltas, dict.fromkeys(deltas, 0.0)):
                sides = zip(*pairs, strict=True)
                means = (float(np.mean([[cell[seed] for seed in seeds] for cell in side])) for side in sides)
                compared[axis, point] = result.metric, found._replace(means=tuple(means))
    return [AxisEffect(axis, point, finding) for (axis, point), finding in judge(compared, study.delta).items()]


class Interaction(NamedTuple):
    """A difference of differences: the effect of a point of the first axis at a point of the second axis, minus its
    effect at the baseline's point of the second axis. An effect is the difference from the baseline's point."""

    metric: Metric
    first: str  # points
    second: str
    here: float  # mean effect of `first` at `second`
    at_base: float  # mean effect of `first` at the baseline's point of the second axis
    finding: Finding  # judged among all interactions of the study, a separate family from its cells

    def as_json(self) -> dict[str, Any]:
        """The interaction for summary.json."""
        named = {"metric": self.metric.name, "first": self.first, "second": self.second}
        return named | {"here": self.here, "at_base": self.at_base} | self.finding.as_json()


def interactions(study: StudyRecord, results: Sequence[MetricResult]) -> list[Interaction]:
    """Return the interactions in each declared measure of quality, for each pair of points other than the baseline's;
    empty unless there are exactly two axes, and in a study of seeds until decided."""
    base = study.cell(study.baseline).points
    if len(study.axes) != 2 or not base or study.until:
        return []
    first, second = study.axes
    found: dict[tuple[str, str, str], tuple[Metric, Comparison]] = {}
    effects: dict[tuple[str, str, str], tuple[float, float]] = {}
    for result in results:
        if result.is_cost or result.metric.name in study.exploratory:
            continue
        for one in (point for point in study.axes[first] if point != base[first]):
            for other in (point for point in study.axes[second] if point != base[second]):
                corners = [result.by_points.get((a, b), {}) for a in (one, base[first]) for b in (other, base[second])]
                seeds = sorted(set.intersection(*map(set, corners)))
                here = {seed: corners[0][seed] - corners[2][seed] for seed in seeds}
                at_base = {seed: corners[1][seed] - corners[3][seed] for seed in seeds}
                if compared := compare(here, at_base):
                    levels = (sum(corner[seed] for seed in seeds) / len(seeds) for corner in corners)
                    compared = compared._replace(means=tuple(levels))
                    key = result.metric.name, one, other
                    found[key] = result.metric, compared
                    effects[key] = sum(here.values()) / len(seeds), sum(at_base.values()) / len(seeds)
    return [
        Interaction(finding.metric, *key[1:], *effects[key], finding)
        for key, finding in judge(found, study.delta, spans=2).items()
    ]
