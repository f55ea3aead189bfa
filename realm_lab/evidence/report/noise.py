"""Components of variance of a study of noise: its axes change nothing but noise streams."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from realm_lab.evidence.report.comparison import MetricResult
from realm_lab.evidence.statistics.components import Component, components
from realm_lab.records.metrics import Metric
from realm_lab.records.study import StudyRecord

SEED, REST = "world", "rest"
FEWEST = 2  # seeds, and axes


class Sources(NamedTuple):
    """The sources of the variance of a metric: the world, each axis and the rest."""

    metric: Metric
    seeds: int  # with a run of every cell
    components: dict[str, Component]

    def as_json(self) -> dict[str, Any]:
        """The sources for summary.json."""
        found = {name: one._asdict() | {"interval": [*one.interval]} for name, one in self.components.items()}
        return {"seeds": self.seeds, "components": found}


def sources(study: StudyRecord, results: list[MetricResult]) -> list[Sources]:
    """Return the sources of each metric that varies; empty for any other study, and without two seeds of all cells."""
    changed = [name for cell in study.cells for name in cell.changes]
    is_of_noise = len(study.axes) >= FEWEST and all(name.startswith("streams.") for name in changed)
    if not is_of_noise or any(len(points) < FEWEST for points in study.axes.values()):
        return []
    found = []
    shape = [len(points) for points in study.axes.values()]
    for result in results:
        at = {tuple(p.values()): cell.values for cell in result.cells if (p := cell.cell.points)}
        seeds = sorted(set.intersection(*map(set, at.values()))) if len(at) == np.prod(shape) else []
        if len(seeds) >= FEWEST:
            values = np.empty((len(seeds), *shape))
            for points, of_cell in at.items():
                place = [axis.index(point) for axis, point in zip(study.axes.values(), points, strict=True)]
                np.moveaxis(values, 0, -1)[tuple(place)] = [of_cell[seed] for seed in seeds]
            if np.ptp(values):
                names = [SEED, *study.axes, REST]
                found.append(Sources(result.metric, len(seeds), dict(zip(names, components(values), strict=True))))
    return found
