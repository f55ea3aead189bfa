"""Components of variance in a study whose axes change only noise streams."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from realm_lab.evidence.report.rendering import words
from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.statistics.components import Component, components
from realm_lab.evidence.statistics.wording import MINUS, number, percent
from realm_lab.records.metrics import Metric

SEED, REST = "world", "rest"
FEWEST = 2  # seeds, axes, and points of an axis


class Sources(NamedTuple):
    """The sources of the variance of a metric: the world, each axis and the rest."""

    metric: Metric
    seeds: int  # those with a run of every cell
    components: dict[str, Component]


class Noise(ReportSection):
    """The sources of the variance between seeds."""

    name = "sources"
    heading = "Sources of the variance"
    group = ""
    template = """{% if rows %}
**What a seed is: the sources of the variance between runs of different seeds**

{% for text in section.of_seed %}
- {{ text }}
{% endfor %}

{{ table(rows) }}

From {{ section.found | map(attribute="seeds") | min }} seeds. *World*: runs in different worlds, apart from all \
noise. *Rest*: the streams together, beyond the sum of each. Analysis of variance by the method of moments (Searle, \
Casella and McCulloch 1992, chapter 4); a variance estimated below zero counts as 0. *95 % interval*: of the share \
(Weerahandi 1993), wide with few degrees of freedom.
{% endif %}
"""

    @functools.cached_property
    def found(self) -> list[Sources]:
        """The sources of each metric that varies; empty if cells change more than noise streams, or if fewer than two
        seeds have runs of all cells."""
        study = self.report.record
        changed = [name for cell in study.cells for name in cell.changes]
        is_of_noise = len(study.axes) >= FEWEST and all(name.startswith("streams.") for name in changed)
        if not is_of_noise or any(len(points) < FEWEST for points in study.axes.values()):
            return []
        found = []
        shape = [len(points) for points in study.axes.values()]
        for result in self.report.compared:
            at = result.by_points
            seeds = sorted(set.intersection(*map(set, at.values()))) if len(at) == np.prod(shape) else []
            if len(seeds) >= FEWEST:
                values = np.empty((len(seeds), *shape))
                for points, of_cell in at.items():
                    index = [axis.index(point) for axis, point in zip(study.axes.values(), points, strict=True)]
                    np.moveaxis(values, 0, -1)[tuple(index)] = [of_cell[seed] for seed in seeds]
                if np.ptp(values):
                    names = [SEED, *study.axes, REST]
                    found.append(Sources(result.metric, len(seeds), dict(zip(names, components(values), strict=True))))
        return found

    def data(self) -> dict[str, Any]:
        by_metric = {}
        for one in self.found:
            parts = {name: part._asdict() | {"interval": [*part.interval]} for name, part in one.components.items()}
            by_metric[one.metric.name] = {"seeds": one.seeds, "components": parts}
        return {"sources": by_metric} if by_metric else {}

    @property
    def of_seed(self) -> list[str]:
        """A sentence for each metric, with the share of each source in its variance."""
        texts = []
        for one in self.found:
            (seed, share), *others = [(words(name), f"{100 * c.share:.0f} %") for name, c in one.components.items()]
            rest = "".join(f", {share} the {name}" for name, share in others)
            texts.append(f"{one.metric.title}: {share} of the variance is the {seed}{rest}")
        return texts

    @functools.cached_property
    def rows(self) -> Rows:
        """A row for each metric and source of its variance."""
        rows = []
        for found in self.found:
            for name, one in found.components.items():
                shown = number(math.sqrt(one.variance), found.metric.digits + 1)
                shown += f" (estimated variance {MINUS}{-one.raw:.1g})" if one.raw < 0 else ""
                rows.append(
                    {
                        "metric": found.metric.title,
                        "source": words(name),
                        "standard deviation": shown,
                        "share of the variance": percent(one.share),
                        "95 % interval": f"{percent(one.interval.low)} to {percent(one.interval.high)}",
                        "degrees of freedom": str(one.freedom),
                    }
                )
        return rows
