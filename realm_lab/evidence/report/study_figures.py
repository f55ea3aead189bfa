"""The figures of a study: those of every study, which are drawn from its data, and those that it names itself.

A study's file may name figures: `figures: [package.module:function]`. Such a function is called with the StudyFrames
and returns a matplotlib figure, or None if there is nothing to draw. The first paragraph of its docstring is the
caption, its name that of the file.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from realm_lab.errors import UserError
from realm_lab.evidence.report.all_sections import sections_of
from realm_lab.evidence.report.comparison import MetricResult
from realm_lab.evidence.report.figures import (
    Drawing,
    Sketch,
    bands,
    draw,
    drawable,
)
from realm_lab.evidence.report.figures_differences import FEWEST_FOR_MEAN, differences_figure, other_differences_figure
from realm_lab.evidence.report.frames import StudyFrames
from realm_lab.evidence.report.own_figures import FIGURES
from realm_lab.evidence.report.rendering import seeds_text
from realm_lab.evidence.report.report_data import Report
from realm_lab.evidence.report.section import ReportSection
from realm_lab.evidence.report.sections.curves import OVER_TIME
from realm_lab.records.plugins import Choice, option_suffix
from realm_lab.records.study import StudyRecord

if TYPE_CHECKING:
    import pandas as pd

MOST_PANELS = 3  # of other metrics
NAMES = " Names stand for titles that the font cannot write or that several cells have."


def sketches(report: Report, sections: Mapping[str, ReportSection]) -> list[Sketch]:
    """The figures that are drawn from the data of a report, in its order: before and after those of the study's own.

    Those without data are left out.
    """
    record = _labelled(report.record)
    note = NAMES if record != report.record else ""
    if note:
        report = replace(report, record=record)
        sections = sections_of(report)
    seeds = seeds_text(record.seeds)
    shown = [result for result in report.compared if any(cell.finding for cell in result.cells)]
    found = _at("top", sections) + _differences(record, shown[:1], "deltas", seeds)
    found += _differences(record, shown[1 : 1 + MOST_PANELS], "other_metrics", seeds)
    found += _at("folded", sections)
    return [sketch._replace(caption=sketch.caption + note) for sketch in (*found, *_at("end", sections))]


def _at(place: str, sections: Mapping[str, ReportSection]) -> list[Sketch]:
    """Return the figures of the sections in one group."""
    return [sketch for section in sections.values() if section.place == place for sketch in section.figures()]


def own_figures(study: StudyFrames, *, is_paper: bool = False) -> list[tuple[dict[str, str], Drawing]]:
    """The figures that a study names, drawn from its runs, each with its entry in summary.json; those without data are
    left out, and one that fails is a problem of the study."""
    found = []
    record = _labelled(study.record)
    shown, note = (study, "") if record == study.record else (replace(study, record=record), NAMES)
    for choice in study.record.figures:
        try:
            sketch = own_sketch(choice, shown)
            sketch = sketch._replace(caption=sketch.caption + note)
            if drawing := draw(sketch, is_paper=is_paper):
                found.append((sketch.entry, drawing))
        except UserError as error:
            study.problems.append(str(error))
        except Exception as error:  # of the user's code, which must not take the report away
            study.problems.append(f"figure '{choice.name}' failed: {type(error).__name__}: {error}")
    return found


def own_sketch(choice: Choice, study: StudyFrames) -> Sketch:
    """A figure that a study names by its code; its options are in its name."""
    chosen = FIGURES.choose("figures", choice)
    function = chosen.load()
    caption = " ".join((inspect.getdoc(function) or choice.name).split("\n\n")[0].split())
    alt = caption.partition(". ")[0].rstrip(".")
    return Sketch(f"{function.__name__}{option_suffix(choice)}", caption, alt, lambda: chosen(study))


def study_curves(study: StudyFrames) -> pd.DataFrame:
    """The data of the figure `curves`: curves.csv. Empty if no cell was pre-trained."""
    points = study.curves_once
    return bands(points[points["metric"].isin(OVER_TIME)])


def _differences(record: StudyRecord, shown: Sequence[MetricResult], name: str, seeds: str) -> list[Sketch]:
    """The differences from the baseline in one metric, with their numbers, or in several."""
    if not shown:
        return []
    findings = [cell.finding for result in shown for cell in result.cells if cell.finding]
    most = max(finding.seeds for finding in findings)
    base, titles = record.cell(record.baseline).title, ", ".join(result.metric.title for result in shown)
    text = f"Paired differences from {base}. Ticks: {seeds}"
    if most >= FEWEST_FOR_MEAN:
        text += "; dot and line: their mean with Student's 95 % interval"
    if name == "deltas":
        text += ". On the right: mean, difference" + " [95 % interval]" * any(one.interval for one in findings)
        text += " and p, corrected for all comparisons of the study"
        text += "; intervals are not corrected, and p decides" * any(one.interval for one in findings)
    cells = len({cell.cell.name for result in shown for cell in result.cells if cell.finding})
    alt = f"Differences of {cells} cell{'s' * (cells != 1)} from {base} in {titles}, with a mark for each seed"
    make = partial(differences_figure, shown[0]) if name == "deltas" else partial(other_differences_figure, shown)
    return [Sketch(name, f"{text}.", alt, make)]


def _labelled(record: StudyRecord) -> StudyRecord:
    """The record with names for titles that the font cannot write, or that several cells have."""
    counts = Counter(cell.title for cell in record.cells)
    cells = tuple(
        cell if counts[cell.title] == 1 and drawable(cell.title) == cell.title else replace(cell, title=cell.name)
        for cell in record.cells
    )
    return replace(record, cells=cells)
