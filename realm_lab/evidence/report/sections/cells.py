"""The cells of a study and their changes."""

from __future__ import annotations

import functools

from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.records.parameters import show


class Cells(ReportSection):
    """Each cell's changes of the baseline."""

    name = "cells"
    heading = "Cells"
    place = "end"
    template = """<details markdown="1">
<summary>Cells and their changes</summary>

{{ table(rows) }}

</details>
"""

    @property
    def tables(self) -> dict[str, tuple[str, Rows]]:
        """Its table, as changes.tex."""
        return {"changes": (self.heading, self.rows)}

    @functools.cached_property
    def rows(self) -> Rows:
        """A row for each cell, the baseline first."""
        record = self.report.record
        base, rows = record.cell(record.baseline), []
        for name, title in self.report.cells:
            cell = record.cell(name)
            parts = [f"{key} = {show(value)}" for key, value in cell.changes.items()]
            parts += [f"system {cell.system}"] if cell.system != base.system else []
            rows.append({"cell": name, "title": title, "changes": "; ".join(parts) or "nothing: the baseline"})
        return rows
