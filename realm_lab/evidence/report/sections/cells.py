"""The cells of a study and their changes."""

from __future__ import annotations

import functools
from typing import Any

from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.report.tables import coverage
from realm_lab.evidence.statistics.intervals import summarise
from realm_lab.records.parameters import show


class Cells(ReportSection):
    """The changes of each cell, compared with the baseline."""

    name = "cells"
    heading = "Variants and their changes"
    group = "How to reproduce"

    @functools.cached_property
    def rows(self) -> Rows:
        """A row for each cell, the baseline first."""
        record = self.report.record
        base, rows = record.cell(record.baseline), []
        for name, title in self.report.cells:
            cell = record.cell(name)
            parts = [f"{key} = {show(value)}" for key, value in cell.changes.items()]
            parts += [f"system {cell.system}"] if cell.system != base.system else []
            rows.append({"variant": name, "title": title, "changes": "; ".join(parts) or "nothing: the baseline"})
        return rows

    def data(self) -> dict[str, Any]:
        """Return title, coverage and collapses of each cell, and n, mean, sd (ddof = 1), min and max of each metric."""
        results, record, cells = self.report.results, self.report.record, {}
        names = [name for name in (*record.metrics, *record.exploratory) if name in results]
        for cell in record.cells:
            mine = results[results["cell"] == cell.name]
            found = {name: summarise(mine[name]) for name in names}
            cells[cell.name] = {
                "title": cell.title,
                "coverage": coverage(results, cell.name),
                "collapsed": int(mine["collapsed"].sum()),
                "metrics": {name: summary._asdict() for name, summary in found.items() if summary},
            }
        return {"cells": cells}
