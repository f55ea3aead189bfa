"""The criterion that a study declares for its cells, judged."""

from __future__ import annotations

import functools

from realm_lab.evidence.report.comparison import CellResult
from realm_lab.evidence.report.section import ReportSection

CRITERIA = {
    "same sign": "the same sign on all seeds",
    "significant": "a significant difference",
    "equivalent": "equivalence within delta",
}


class Declared(ReportSection):
    """The number of cells that meet it, in each declared measure of quality."""

    name = "declared"

    @functools.cached_property
    def sentence(self) -> str:
        record, results = self.report.record, self.report.compared
        shown = [one for one in results if one.metric.name in record.metrics and not one.is_cost]
        if not record.declared or not shown:
            return ""
        others = f"of {len(record.cells) - 1} variants"
        met = (f"by {sum(map(self._is_met, one.cells[1:]))} {others} in {one.metric.title}" for one in shown)
        return f"Declared: {CRITERIA[record.declared]}. Met {', '.join(met)}."

    def _is_met(self, cell: CellResult) -> bool:
        found, criterion = cell.finding, self.report.record.declared
        if found is None:
            return False
        if criterion == "same sign":
            return found.direction is not None and found.seeds == len(self.report.record.of(cell.cell.name))
        return found.is_significant if criterion == "significant" else found.equivalent_within is not None
