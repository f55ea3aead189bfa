"""Variants that were deliberately left out, and parts of the evaluation without a value."""

from __future__ import annotations

import functools

from realm_lab.evidence.report.section import ReportSection, Rows


class NotRun(ReportSection):
    """Missing cells and runs, and why."""

    name = "not_run"
    heading = "Not run"
    template = """<details markdown="1">
<summary>Not run, not measured</summary>

{% if rows %}
**Not run**

{{ table(rows) }}

{% endif %}
{% if section.not_measured %}
**Not measured**

{{ table(section.not_measured) }}

{% endif %}
</details>
"""

    @property
    def applies(self) -> bool:
        """True if anything is missing."""
        return bool(self.rows or self.not_measured)

    @functools.cached_property
    def rows(self) -> Rows:
        """A row for each variant that was not run."""
        return [{"system": name, "why": why} for name, why in self.report.record.not_run.items()]

    @functools.cached_property
    def not_measured(self) -> Rows:
        """A row for each part of the evaluation that a cell lacks."""
        return [
            {"cell": title, "part": part, "why": reason}
            for name, title in self.report.cells
            for part, reason in self.report.data["not_measured"].get(name, {}).items()
        ]

    @property
    def tables(self) -> dict[str, tuple[str, Rows]]:
        """Both tables."""
        return super().tables | {"not_measured": ("Not measured", self.not_measured)}
