"""The interactions of the two axes of a study in its report."""

from __future__ import annotations

import functools
from typing import Any

from realm_lab.evidence.report.rendering import words
from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.statistics.wording import difference, in_short, p_value


class Interactions(ReportSection):
    """The interactions of two axes."""

    name = "interactions"
    heading = "Interactions of the two axes"
    group = ""
    template = """{% if rows %}
**Interaction: how the effect of the first axis changes with the second**

{{ table(rows) }}

*Difference of differences*: the effect of a point of the first axis, compared with the baseline's, at a point of the \
second axis, minus the same effect at the baseline's point of the second axis. All rows are one family of tests.
{% endif %}
"""

    def data(self) -> dict[str, Any]:
        return {"interactions": [one.as_json() for one in self.report.interactions]}

    @functools.cached_property
    def rows(self) -> Rows:
        rows = []
        for one in self.report.interactions:
            rows.append(
                {
                    "effect": f"{one.first} at {words([*self.report.record.axes][1])} {one.second}",
                    "metric": one.metric.title,
                    "difference of differences": difference(one.finding),
                    "p": p_value(one.finding.corrected_p),
                    "finding": in_short(one.finding),
                }
            )
        return rows
