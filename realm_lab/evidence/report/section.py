"""A section of a report: when it applies, its data, rows, figures, sentence and its piece of report.md."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from markupsafe import Markup

from realm_lab.evidence.report.rendering import render_piece

if TYPE_CHECKING:
    from realm_lab.evidence.report.figures import Sketch
    from realm_lab.evidence.report.report_data import Report

Rows = list[dict[str, str]]
"""A table: finished strings, a dict for each row."""


class ReportSection:
    """A part of a report that its data decides about. A section overrides what it has.

    `name` names its table in LaTeX and, unless there is a `field`, its field in summary.json; `heading` is the title of
    this table. `template` is its piece of report.md, in which `section` and `rows` are known. `place`: below
    the answer, folded, or at the end. `reading` explains it under "How to read these tables".
    """

    name: ClassVar[str]
    field: ClassVar[str] = ""
    template: ClassVar[str] = ""
    place: ClassVar[Literal["top", "folded", "end"]] = "folded"
    reading: ClassVar[Markup] = Markup()

    def __init__(self, report: Report) -> None:
        self.report = report

    @property
    def heading(self) -> str:
        """The title of its table in LaTeX."""
        return ""

    @property
    def applies(self) -> bool:
        """True if report.md has it."""
        return bool(self.rows)

    @functools.cached_property
    def rows(self) -> Rows:
        """The rows of its table."""
        return []

    @property
    def tables(self) -> dict[str, tuple[str, Rows]]:
        """Its tables in LaTeX by name: heading and rows."""
        return {self.name: (self.heading, self.rows)}

    def data(self) -> Any:
        """Return its field of summary.json; None if it has none."""
        return None

    @functools.cached_property
    def sentence(self) -> str:
        """Return its sentence below the first table; "" if it has none."""
        return ""

    def figures(self) -> list[Sketch]:
        """Return its figures that have data."""
        return []

    @property
    def text(self) -> Markup:
        """Its piece of report.md."""
        return render_piece(self.template, section=self, rows=self.rows)
