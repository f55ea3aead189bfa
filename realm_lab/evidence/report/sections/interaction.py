"""The interactions of the two axes of a study in its report."""

from __future__ import annotations

import functools
from typing import Any

from markupsafe import Markup

from realm_lab.evidence.report.interactions import Interaction, interactions
from realm_lab.evidence.report.rendering import words
from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.statistics.wording import difference, in_short, number


class Interactions(ReportSection):
    """The interactions of two axes."""

    name = "interactions"
    heading = "Interactions of the two axes"
    place = "top"
    template = """**Interaction: how the effect of the first axis changes with the second**

{{ table(rows) }}
"""
    reading = Markup(
        "*difference of differences*: the effect of a point of the first axis, compared with the baseline's, "
        "at a point of the second axis, minus the same effect at the baseline's point of the second axis. "
        "All rows are one family of tests."
    )

    @functools.cached_property
    def found(self) -> list[Interaction]:
        """The interactions of the report."""
        return interactions(self.report.record, self.report.compared)

    def data(self) -> list[dict[str, Any]]:
        """Return each interaction."""
        return [one.as_json() for one in self.found]

    @functools.cached_property
    def rows(self) -> Rows:
        """A row for each interaction."""
        rows = []
        for one in self.found:
            rows.append(
                {
                    "effect": f"{one.first} at {words([*self.report.record.axes][1])} {one.second}",
                    "metric": one.metric.title,
                    "difference of differences": difference(one.finding),
                    "p": number(one.finding.corrected_p),
                    "finding": in_short(one.finding),
                }
            )
        return rows
