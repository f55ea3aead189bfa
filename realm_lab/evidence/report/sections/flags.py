"""Flagged runs, and warnings about the comparison."""

from __future__ import annotations

from typing import Any

from realm_lab.evidence.report.code_notes import code_notes
from realm_lab.evidence.report.confounds import confounds, curve_notes, rounding_notes
from realm_lab.evidence.report.frames import StudyFrames
from realm_lab.evidence.report.section import ReportSection
from realm_lab.evidence.report.tables import coverage

FAILED = "failed"  # custom sections that failed in this rendering; not stored in summary.json


class Flags(ReportSection):
    """The warnings of single runs."""

    name = "flags"
    group = "Per run"
    template = """{% for line in section.lines %}
- {{ line }}
{% endfor %}
"""

    @property
    def heading(self) -> str:
        return f"Flagged runs: {len(self.lines)}"

    @property
    def lines(self) -> list[str]:
        return self.report.flags


class Warnings(Flags):
    """The warnings of the whole study."""

    name = "warnings"

    @property
    def heading(self) -> str:
        return f"Warnings: {len(self.lines)}"

    @property
    def lines(self) -> list[str]:
        runs = coverage(self.report.results)
        states = ", ".join(f"{count} {state}" for state, count in runs["states"].items() if state != "COMPLETE")
        text = f"Incomplete: {runs['complete']} of {runs['runs']} runs are complete ({states})."
        data = self.report.data
        return [*[text] * bool(states), *data["warnings"], *data.get(FAILED, ()), *data["code"]]

    @staticmethod
    def of_runs(study: StudyFrames) -> dict[str, Any]:
        """Return the confounds, the warnings with all `problems` of the frames, and the notes on the code."""
        mixed, notes = code_notes(study)
        return {
            "confounds": [*dict.fromkeys(confounds(study)), *mixed],
            "warnings": [*curve_notes(study), *rounding_notes(study), *study.problems],
            "code": notes,
        }
