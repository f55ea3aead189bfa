"""Curves over pre-training: the figure that curves.csv has the data of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from realm_lab.evidence.report.figures import COLOURS, DASHES, Panel, Sketch, Styles, bands, bands_figure
from realm_lab.evidence.report.frames import StudyFrames
from realm_lab.evidence.report.rendering import seeds_text
from realm_lab.evidence.report.section import ReportSection
from realm_lab.records.metrics import curve
from realm_lab.records.study import StudyRecord

if TYPE_CHECKING:
    import pandas as pd

OVER_TIME = ("retrieval_utility", "recall_at_5", "cloze_log_likelihood", "index_staleness_steps")


class Curves(ReportSection):
    """Means and ranges over the seeds."""

    name = "curves"
    heading = "Curves over pre-training"
    template = """{% if section.are_missing %}
This report has no curves over pre-training, because their data was not kept. `{{ report.data.commands[0] }}` draws \
them from new runs.
{% endif %}
"""

    @property
    def are_missing(self) -> bool:
        """True if runs pre-trained, and the curves were not kept."""
        age = self.report.results.get("index_staleness_steps")
        return self.report.curves.empty and age is not None and bool(age.notna().any())

    def figures(self) -> list[Sketch]:
        report = self.report
        if report.curves.empty:
            return []
        known = set(report.curves["metric"])
        panels = [panel_of(name) for name in OVER_TIME if name in known]
        seeds, styles = seeds_text(report.record.seeds), styles_of(report.record)
        text = f"Over pre-training: mean over the seeds, with a band from the lowest to the highest ({seeds})."
        if "recall_at_5" in known:
            text += " Recall is of development questions."
        if "index_staleness_steps" in known:
            text += " The age of the index is the mean over all steps since the point before."
        alt = f"Curves of {', '.join(curve(panel.metric).title for panel in panels)} over the steps of pre-training"
        columns = 3 if len(panels) == 3 else 2
        return [
            Sketch(
                "curves",
                text,
                alt,
                lambda: bands_figure(report.curves, panels, report.cells, columns=columns, styles=styles),
            )
        ]


def styles_of(record: StudyRecord) -> Styles:
    """Styles for a study of two axes: colours are the points of the first, dashes those of the second."""
    if len(record.axes) != 2:
        return {}
    first, second = (list(points) for points in record.axes.values())
    found = {}
    for cell in record.cells:
        if points := cell.points:
            one, other = points.values()
            found[cell.name] = first.index(one) % len(COLOURS), second.index(other) % len(DASHES)
    return found


def panel_of(name: str, **given: Any) -> Panel:
    """A panel of a registered curve, within the bounds of its values."""
    known = curve(name)
    high = None if known.high is None else known.high + 0.03 * known.span
    return Panel(name, **{"low": known.low, "high": high} | given)


def study_curves(study: StudyFrames) -> pd.DataFrame:
    """The data of the figure: curves.csv. Empty if no cell was pre-trained."""
    points = study.curves_once
    return bands(points[points["metric"].isin(OVER_TIME)])
