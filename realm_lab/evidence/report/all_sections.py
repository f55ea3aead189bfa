"""The sections of a report in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from realm_lab.evidence.report.section import Section
from realm_lab.evidence.report.sections.axes import Axes
from realm_lab.evidence.report.sections.cells import Cells
from realm_lab.evidence.report.sections.collapse import CollapsedRuns
from realm_lab.evidence.report.sections.corpus_update import CorpusUpdate
from realm_lab.evidence.report.sections.corpus_updates import CorpusUpdates
from realm_lab.evidence.report.sections.cost import Cost
from realm_lab.evidence.report.sections.interaction import Interactions
from realm_lab.evidence.report.sections.noise import Noise
from realm_lab.evidence.report.sections.not_run import NotRun
from realm_lab.evidence.report.sections.overlap import Overlap
from realm_lab.evidence.report.sections.step_changes import StepChanges
from realm_lab.evidence.report.sections.tuning import Tuning
from realm_lab.evidence.report.sections.utility import Utility
from realm_lab.evidence.report.sections.worked import Worked

if TYPE_CHECKING:
    from realm_lab.evidence.report.report_data import Report

SECTIONS: tuple[type[Section], ...] = (
    Axes,
    Interactions,
    Noise,
    Tuning,
    StepChanges,
    CollapsedRuns,
    Utility,
    Overlap,
    CorpusUpdate,
    CorpusUpdates,
    Worked,
    NotRun,
    Cells,
    Cost,
)


def sections_of(report: Report) -> dict[str, Section]:
    """Return the sections of a report by name. Each computes what it has once."""
    return {section.name: section(report) for section in SECTIONS}
