"""The sections of a report in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from realm_lab.errors import UserError
from realm_lab.evidence.report.own_figures import REPORT_SECTIONS
from realm_lab.evidence.report.report_data import FIELDS, KEYS
from realm_lab.evidence.report.section import ReportSection
from realm_lab.evidence.report.sections.axes import Axes
from realm_lab.evidence.report.sections.cells import Cells
from realm_lab.evidence.report.sections.collapse import CollapsedRuns
from realm_lab.evidence.report.sections.corpus_update import CorpusUpdate
from realm_lab.evidence.report.sections.corpus_updates import CorpusUpdates
from realm_lab.evidence.report.sections.cost import Cost
from realm_lab.evidence.report.sections.curves import Curves
from realm_lab.evidence.report.sections.interaction import Interactions
from realm_lab.evidence.report.sections.looks import Looks
from realm_lab.evidence.report.sections.noise import Noise
from realm_lab.evidence.report.sections.not_run import NotRun
from realm_lab.evidence.report.sections.overlap import Overlap
from realm_lab.evidence.report.sections.plan import Plan
from realm_lab.evidence.report.sections.step_changes import StepChanges
from realm_lab.evidence.report.sections.tuning import Tuning
from realm_lab.evidence.report.sections.utility import Utility
from realm_lab.evidence.report.sections.worked import Worked
from realm_lab.records.plugins import Choice

if TYPE_CHECKING:
    from realm_lab.evidence.report.report_data import Report

SECTIONS: tuple[type[ReportSection], ...] = (
    Axes,
    Interactions,
    Noise,
    Looks,
    Tuning,
    StepChanges,
    Plan,
    CollapsedRuns,
    Utility,
    Overlap,
    CorpusUpdate,
    CorpusUpdates,
    Worked,
    NotRun,
    Curves,
    Cells,
    Cost,
)


def sections_of(report: Report) -> dict[str, ReportSection]:
    """Return the sections of a report by name, those that the study names last. Each computes what it has once. One of
    the study that fails is a warning of the report."""
    found = {section.name: section(report) for section in SECTIONS}
    for choice in report.record.sections:
        try:
            section = _custom(choice, report)
            if {section.name, section.field} & {*found, *FIELDS, *KEYS}:
                raise UserError(f"section '{choice.name}': summary.json has another {section.name}; rename it")
            found[section.name] = section
        except UserError as error:
            if str(error) not in report.data["warnings"]:
                report.data["warnings"].append(str(error))
    return found


def _custom(choice: Choice, report: Report) -> ReportSection:
    """Return a section that a study names. UserError: its code cannot be imported, or fails."""
    chosen = REPORT_SECTIONS.choose("sections", choice)
    found = chosen(report)
    if not isinstance(found, ReportSection):
        raise UserError(f"section '{choice.name}': not a subclass of realm_lab.ReportSection")
    with chosen.running():  # all that a report asks for, so that an error names the line of the custom code
        found.data(), found.figures(), found.applies and found.text
    return found
