"""The criterion that a study declares for its cells, and the cells that meet it."""

from __future__ import annotations

import functools

from realm_lab.evidence.report.comparison import CellResult, MetricResult
from realm_lab.evidence.report.section import ReportSection

MOST_NAMED = 3  # variants that meet the criterion; if there are more, none is named
CRITERIA = {
    "same sign": "the same sign on all seeds",
    "significant": "a significant difference",
    "equivalent": "equivalence within delta",
}


class Declared(ReportSection):
    """The number of cells that meet the criterion, in each declared measure of quality."""

    name = "declared"

    @functools.cached_property
    def sentence(self) -> str:
        record, results = self.report.record, self.report.compared
        shown = [one for one in results if one.metric.name in record.metrics and not one.is_cost]
        if not record.declared or not shown:
            return ""
        met = ", ".join(map(self._met, shown))
        return f"Declared: {CRITERIA[record.declared]}. Met {met}."

    def _met(self, result: MetricResult) -> str:
        others = result.cells[1:]
        titles = [one.cell.title for one in others if self._is_met(one)]
        named = f" ({'; '.join(titles)})" if 0 < len(titles) <= MOST_NAMED else ""
        return f"by {len(titles)} of {len(others)} variants{named} in {result.metric.title}"

    def _is_met(self, cell: CellResult) -> bool:
        found, criterion = cell.finding, self.report.record.declared
        if found is None:
            return False
        if criterion == "same sign":
            return found.direction is not None and found.seeds == len(self.report.record.of(cell.cell.name))
        return found.is_significant if criterion == "significant" else found.equivalent_within is not None
