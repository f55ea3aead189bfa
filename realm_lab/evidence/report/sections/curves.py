"""Curves over pre-training: the figure of the data in curves.csv."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from realm_lab.evidence.report.figures import COLOURS, DASHES, Panel, Sketch, Styles, bands, bands_figure
from realm_lab.evidence.report.frames import AGE, StudyFrames
from realm_lab.evidence.report.rendering import seeds_text
from realm_lab.evidence.report.section import ReportSection
from realm_lab.records.metrics import curve
from realm_lab.records.study import StudyRecord

if TYPE_CHECKING:
    import pandas as pd

EVALUATED = ("retrieval_utility", "recall_at_5", "cloze_log_likelihood")
OVER_TIME = (*EVALUATED, AGE)
SOURCE = "pretrain.candidate_source"
WITHOUT_INDEX = ("batch", "random", "oracle", "empty")  # candidate sources that do not search the index


class Curves(ReportSection):
    """Curves as means and ranges over the seeds."""

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
        shared = report.record.common.get(SOURCE)
        aside = [cell.name for cell in report.record.cells if cell.changes.get(SOURCE, shared) in WITHOUT_INDEX]
        curves = report.curves[(report.curves["metric"] != AGE) | ~report.curves["cell"].isin(aside)]
        known = set(curves["metric"])
        panels = [panel_of(name) for name in OVER_TIME if name in known]
        seeds, styles = seeds_text(report.record.seeds), styles_of(report.record)
        text = f"Over pre-training: mean over the seeds, with a band from the lowest to the highest ({seeds})."
        if "recall_at_5" in known:
            text += " Recall is of development questions."
        if AGE in known:
            text += " The age of the index is the mean over all steps since the point before."
            text += " Variants whose candidates come from no index have none." if aside else ""
        alt = f"Curves of {', '.join(curve(panel.metric).title for panel in panels)} over the steps of pre-training"

        def make() -> Any:
            columns = 3 if len(panels) == 3 else 2
            return bands_figure(even_ages(curves), panels, report.cells, columns=columns, styles=styles)

        return [Sketch("curves", text, alt, make)]


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


def even_ages(found: pd.DataFrame) -> pd.DataFrame:
    """Average the age of the index between evaluations, for cells that refresh the index more often than every second
    logged point. The mean age between two points depends on the refreshes that happen there. `found`: from `bands`.
    """
    import pandas as pd

    parts = [found[found["metric"] != AGE]]
    for cell, ages in found[found["metric"] == AGE].groupby("cell", sort=False):
        ages = ages.sort_values("step")
        widths = np.diff(ages["step"], prepend=0)
        mean = np.average(ages["mean"], weights=widths) if widths.any() else 0.0  # about half of a refresh interval
        evaluated = found[(found["cell"] == cell) & found["metric"].isin(EVALUATED)]["step"]
        ends = np.intersect1d(evaluated, ages["step"])
        if 2 * mean + 1 < 2 * np.median(widths) and len(ends) > 1:
            which = np.searchsorted(ends, ages["step"])
            known = which < len(ends)
            ages, widths, which = ages[known], widths[known], which[known]
            columns = ["mean", "low", "high"]
            means = ages[columns].mul(widths, axis=0).groupby(which).sum().div(np.bincount(which, widths), axis=0)
            ages = ages.groupby(which).last().assign(**{name: means[name] for name in columns})
        parts.append(ages)
    return pd.concat(parts, ignore_index=True)


def study_curves(study: StudyFrames) -> pd.DataFrame:
    """Return the data of curves.csv: means and ranges of OVER_TIME. Empty if no cell was pre-trained."""
    points = study.curves_once
    return bands(points[points["metric"].isin(OVER_TIME)])
