"""The sections of a report, in their order, and the data that they read from the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from realm_lab.errors import UserError
from realm_lab.evidence.report.comparison import OverQuestions, question_intervals
from realm_lab.evidence.report.edited import results_digest
from realm_lab.evidence.report.figures import draw
from realm_lab.evidence.report.frames import StudyFrames, read_results, results_text
from realm_lab.evidence.report.own_figures import REPORT_SECTIONS
from realm_lab.evidence.report.report_data import KEYS, Report, metrics_of, plain, report_of
from realm_lab.evidence.report.section import ReportSection
from realm_lab.evidence.report.sections.axes import Axes
from realm_lab.evidence.report.sections.cells import Cells
from realm_lab.evidence.report.sections.collapse import CollapsedRuns
from realm_lab.evidence.report.sections.corpus_updates import CorpusUpdates
from realm_lab.evidence.report.sections.cost import Cost
from realm_lab.evidence.report.sections.curves import Curves, study_curves
from realm_lab.evidence.report.sections.declared import Declared
from realm_lab.evidence.report.sections.flags import FAILED, Flags, Warnings
from realm_lab.evidence.report.sections.interaction import Interactions
from realm_lab.evidence.report.sections.looks import Looks
from realm_lab.evidence.report.sections.means import CorpusUpdate, Overlap, Utility
from realm_lab.evidence.report.sections.metrics import Details, FirstMetric, OtherMetrics, Reading
from realm_lab.evidence.report.sections.more_figures import NAMES, MoreFigures, labelled
from realm_lab.evidence.report.sections.noise import Noise
from realm_lab.evidence.report.sections.not_run import NotRun
from realm_lab.evidence.report.sections.overview import Overview
from realm_lab.evidence.report.sections.plan import Plan
from realm_lab.evidence.report.sections.runs import Reproduction, Runs
from realm_lab.evidence.report.sections.step_changes import StepChanges
from realm_lab.evidence.report.sections.tuning import Tuning
from realm_lab.evidence.report.sections.worked import Worked
from realm_lab.evidence.statistics.intervals import Interval
from realm_lab.records.plugins import Choice
from realm_lab.records.study import STUDY_RECORD

FIRST: tuple[type[ReportSection], ...] = (
    Overview, StepChanges, Axes, Interactions, Noise, FirstMetric, OtherMetrics, Declared, Looks, Tuning, Plan,
    CollapsedRuns, Utility, Overlap, CorpusUpdate, CorpusUpdates, Worked, Curves, MoreFigures,
)  # fmt: skip
LAST: tuple[type[ReportSection], ...] = (Cost, Details, Reading, Flags, Warnings, NotRun, Runs, Cells, Reproduction)
FIELDS = (  # the order of summary.json, as committed reports have it
    "study", "question", "lead", "verdict", "coverage", "figures", "cells", "comparisons", "calibration", "collapse",
    "gaps", "axis_effects", "interactions", "looks", "missing", "tuning", "step_changes", "sources", "plan",
)  # fmt: skip


def collect(
    study: StudyFrames,
    figures: Sequence[dict[str, str]] = (),
    title: str = "",
    commands: Sequence[str] = (),
    plan: dict[str, Any] | None = None,
) -> Report:
    """Read the report of a study from its runs; `figures` are the entries of custom figures in summary.json.

    `title` is the heading (default: the study's name), `commands` reproduce the report (default: the study's sweep).
    """
    record, results = study.record, read_results(results_text(study.results))
    metrics = metrics_of(record, study.results)
    design = STUDY_RECORD.dump_python(record, mode="json") | {"metrics": list(metrics)}
    del design["runs"]  # data["runs"] has them, with more fields
    intervals = question_intervals(record, results, (*metrics, *record.exploratory), study.runs)
    shown = {key: OverQuestions(*(one and Interval(*plain(one)) for one in found)) for key, found in intervals.items()}
    data = {"design": design, "title": title or f"Study: {record.name}", "own_figures": list(figures), "plan": plan}
    data |= {key: value for section in (*FIRST, *LAST) for key, value in section.of_runs(study).items()}
    data |= {"commands": list(commands)} if commands else {}
    return report_of(plain(data), results, shown, read_results(results_text(study_curves(study))))


def sections_of(report: Report) -> dict[str, ReportSection]:
    """Return the sections of a report by name. A section computes its data once. A custom section that fails is left
    out, with a warning in the report."""
    found = {section.name: section(report) for section in FIRST}
    failed: list[str] = report.data.setdefault(FAILED, [])
    failed.clear()
    taken = {*KEYS, *FIELDS, *(section.name for section in LAST)}
    for choice in report.record.sections:
        try:
            section = _custom(choice, report)
            if names := {section.name, *section.data()} & {*found, *taken}:
                problem = f"section '{choice.name}': summary.json has another '{min(names)}'"
                raise UserError(problem, "rename the section or this key of its data")
            found[section.name] = section
        except UserError as error:
            failed.append(str(error))
    found |= {section.name: section(report) for section in LAST}
    record = labelled(report.record)
    drawn = found if record == report.record else sections_of(replace(report, record=record))
    for name, section in found.items():
        sketches = section.figures() if drawn is found else drawn[name].sketches
        note = "" if drawn is found or name == MoreFigures.name else NAMES
        section.sketches = [sketch._replace(caption=sketch.caption + note) for sketch in sketches]
    return found


def _custom(choice: Choice, report: Report) -> ReportSection:
    """Return a section that a study names. UserError: its code cannot be imported, is no section, or fails."""
    chosen = REPORT_SECTIONS.choose("sections", choice)
    found = chosen(report)
    if not isinstance(found, ReportSection):
        raise UserError(f"section '{choice.name}': not a subclass of realm_lab.ReportSection")
    if not getattr(found, "name", ""):
        raise UserError(f"section '{choice.name}': it has no name; give its class one")
    with chosen.running():  # computes all that a report needs, so that an error names the custom code
        found.data(), found.tables, found.text
        for sketch in found.figures():
            if draw(sketch) is None:
                raise ValueError(f"figure '{sketch.name}' draws nothing")
    return found


def summary_of(report: Report, sections: dict[str, ReportSection]) -> dict[str, Any]:
    """Return the content of summary.json: the data of the sections, then the data from the runs."""
    found = {"figures": [sketch.entry for section in sections.values() for sketch in section.sketches]}
    found |= {name: value for section in sections.values() for name, value in section.data().items()}
    names = [*FIELDS, *(name for name in found if name not in FIELDS)]
    kept = {key: report.data[key] for key in KEYS} | {"results": results_digest(report.results)}
    return dict(plain({name: found[name] for name in names if name in found} | kept))
