"""Variants that were deliberately left out, and parts of the evaluation without a value."""

from __future__ import annotations

import functools
from typing import Any

from realm_lab.evidence.report.frames import StudyFrames
from realm_lab.evidence.report.section import ReportSection, Rows


class NotRun(ReportSection):
    """Variants that were not run and parts that were not measured, with the reasons."""

    name = "not_run"
    heading = "Not run, not measured"
    group = "Per run"
    template = """{% if rows %}
**Not run**

{{ table(rows) }}

{% endif %}
{% if section.not_measured %}
**Not measured**

{{ table(section.not_measured) }}

{% endif %}"""

    @functools.cached_property
    def rows(self) -> Rows:
        """A row for each variant that was not run."""
        return [{"system": name, "why": why} for name, why in self.report.record.not_run.items()]

    @functools.cached_property
    def not_measured(self) -> Rows:
        """A row for each part of the evaluation that a cell lacks."""
        return [
            {"variant": title, "part": part, "why": reason}
            for name, title in self.report.cells
            for part, reason in self.report.data["not_measured"].get(name, {}).items()
        ]

    @staticmethod
    def of_runs(study: StudyFrames) -> dict[str, Any]:
        """Return the parts without a value, and why."""
        return {"not_measured": study.not_measured}

    @property
    def tables(self) -> dict[str, tuple[str, Rows]]:
        return {"not_run": ("Not run", self.rows), "not_measured": ("Not measured", self.not_measured)}
