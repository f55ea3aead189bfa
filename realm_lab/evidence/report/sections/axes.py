"""The first metric by the axes of a study."""

from __future__ import annotations

import functools
from functools import partial
from typing import Any

from realm_lab.evidence.report.figures import Sketch, axes_figure
from realm_lab.evidence.report.rendering import words
from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.statistics.intervals import summarise
from realm_lab.evidence.statistics.wording import mean_sd


class Axes(ReportSection):
    """The first metric by two axes; summary.json has the effect of each point for two or more axes."""

    name = "axes"
    group = ""
    template = """{% if rows %}
**{{ metric(report.compared[0]) }}, means by both axes**

{{ table(rows) }}
{% endif %}
"""

    @property
    def heading(self) -> str:
        return f"{self.report.compared[0].metric.title} by both axes" if self.report.compared else ""

    @functools.cached_property
    def rows(self) -> Rows:
        """A row for each point of the first axis, a column for each of the second; empty without two axes."""
        if len(self.report.record.axes) != 2 or not self.report.compared:
            return []
        (first, points), (second, others) = self.report.record.axes.items()
        result, digits = self.report.compared[0], self.report.compared[0].metric.digits
        at = result.by_points
        return [
            {words(first): point}
            | {
                f"{words(second)} {other}": mean_sd(summarise(at.get((point, other), {}).values()), digits)
                for other in others
            }
            for point in points
        ]

    def data(self) -> dict[str, Any]:
        return {"axis_effects": [effect.as_json() for effect in self.report.effects]}

    def figures(self) -> list[Sketch]:
        if len(self.report.record.axes) != 2 or not self.report.compared or not self.report.compared[0].is_measured:
            return []
        (first, points), (second, others) = self.report.record.axes.items()
        result, metric = self.report.compared[0], self.report.compared[0].metric
        values: dict[Any, list[float]] = {at: [*found.values()] for at, found in result.by_points.items() if found}
        names = words(first), words(second), metric.title
        caption = (
            f"{metric.title} by {names[0]}, a line for each value of {names[1]}: means over the seeds, with a light "
            "dot for each run. Lines that are not parallel are an interaction."
        )
        alt = f"{metric.title} over {names[0]}, with a line for each value of {names[1]}"
        return [Sketch.of("axes", caption, alt, partial(axes_figure, values, points, others, names, metric), 1)]
