"""A section of a report: when it applies, its data, rows, figures, sentence and its piece of report.md."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from markupsafe import Markup

from realm_lab.evidence.report.rendering import render_piece

if TYPE_CHECKING:
    from realm_lab.evidence.report.figures import Sketch
    from realm_lab.evidence.report.frames import StudyFrames
    from realm_lab.evidence.report.report_data import Report

Rows = list[dict[str, str]]
"""A table: finished strings, a dict for each row."""
Group = Literal["", "More results", "How certain", "Per run", "How to reproduce"]
"""A folded part of report.md; "" is its first screen, which is not folded."""


class ReportSection:
    """A part of a report, left out if it is empty. A subclass overrides the attributes that its section has.

    `name` names its table in LaTeX; `heading` is its title in LaTeX and in a folded part. report.md has its figures and
    then the table of its rows with a `note` below. A `template` replaces table and note; it can use `section`, `report`
    and `rows`.
    """

    name: ClassVar[str]
    group: ClassVar[Group] = "More results"
    note: ClassVar[str] = ""
    template: ClassVar[str] = ""
    sketches: Sequence[Sketch] = ()  # `figures` without titles that the font cannot write (set by all_sections.py)

    def __init__(self, report: Report) -> None:
        self.report = report

    @staticmethod
    def of_runs(study: StudyFrames) -> dict[str, Any]:
        """Read fields of summary.json from the runs of a study. It is called only for sections of realm_lab."""
        return {}

    @property
    def heading(self) -> str:
        """The title of the section."""
        return ""

    @functools.cached_property
    def rows(self) -> Rows:
        """The rows of the section's table."""
        return []

    @property
    def tables(self) -> dict[str, tuple[str, Rows]]:
        """The section's tables in LaTeX by name: heading and rows."""
        return {self.name: (self.heading, self.rows)} if self.heading else {}

    def data(self) -> dict[str, Any]:
        """Return the section's fields of summary.json, by name."""
        return {}

    @functools.cached_property
    def sentence(self) -> str:
        """The section's sentence below the first table; "" if it has none."""
        return ""

    def figures(self) -> list[Sketch]:
        """Return the section's figures that have data."""
        return []

    @property
    def text(self) -> Markup:
        """The section's piece of report.md; "" if it has none."""
        body = self.template or f"{{% if rows %}}\n{{{{ table(rows) }}}}\n\n{self.note}\n{{% endif %}}\n"
        template = f"{{% for one in section.sketches %}}\n{{{{ figure(one.entry) }}}}\n\n{{% endfor %}}\n{body}"
        return Markup(render_piece(template, section=self, report=self.report, rows=self.rows).strip())
