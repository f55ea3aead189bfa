"""The kinds of plug-ins for figures and sections of a report. No matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from realm_lab.records.plugins import Kind

FIGURES: Kind[Callable[..., Any]] = Kind("figure", "function", "study")
register_figure = FIGURES.register  # makes a figure selectable in the `figures` of a study
REPORT_SECTIONS: Kind[Callable[..., Any]] = Kind("section of a report", "class", "report")
register_section = REPORT_SECTIONS.register  # makes a section selectable in the `sections` of a study
OF_TRAINING = "retrieval_utility recall early_warnings by_kind index_freshness warm_start corpus_update".split()
for _name in (*OF_TRAINING, "quality_over_drift", "quality_over_refreshing"):
    FIGURES.declare(_name, f"realm_lab.evidence.report.figures_training:{_name}")
