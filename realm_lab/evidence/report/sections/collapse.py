"""Collapsed runs: their number, and the first metric over the seeds where neither cell nor baseline collapsed."""

from __future__ import annotations

import functools
from typing import Any

from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.statistics.paired import holm
from realm_lab.evidence.statistics.robust import Collapse, compare_collapse
from realm_lab.evidence.statistics.wording import interval, p_value, signed


class CollapsedRuns(ReportSection):
    """The collapses of each cell, compared with the baseline; empty if no run collapsed."""

    name = "collapse"
    heading = "Collapsed runs"
    group = "How certain"
    note = """\
The retriever of a collapsed run no longer finds useful passages. *p*: McNemar's exact test over the seeds, corrected \
over the variants by Holm's method. On the right: {{ report.compared[0].metric.title }}, only over the seeds \
where neither collapsed. That difference is for runs that do not collapse, and no reason to ignore those that do.
"""

    @functools.cached_property
    def found(self) -> dict[str, Collapse]:
        """Cell -> its collapses, and the first metric without them, against the baseline; empty if no run collapsed."""
        known = self.report.results[self.report.results["status"] == "COMPLETE"]
        if not self.report.compared or not known["collapsed"].any():
            return {}
        marks = known["collapsed"] > 0
        flags = {name: dict(zip(mine["seed"], marks[mine.index], strict=True)) for name, mine in known.groupby("cell")}
        first = self.report.compared[0]
        values = {cell.cell.name: cell.values for cell in first.cells}
        base = self.report.record.baseline
        found = {
            name: compare_collapse(flags.get(name, {}), flags.get(base, {}), values[name], values[base])
            for name in values
            if name != base
        }
        return {name: one for name, one in found.items() if one}

    def data(self) -> dict[str, Any]:
        return {"collapse": {n: one.as_json(self.report.compared[0].metric.span) for n, one in self.found.items()}}

    @functools.cached_property
    def rows(self) -> Rows:
        """A row for each cell: rates of collapse, and the difference without collapsed runs."""
        found = self.found
        adjusted = dict(zip(found, holm([one.p for one in found.values()]), strict=True))
        rows = []
        for name, title in self.report.cells:
            if one := found.get(name):
                metric, alive = self.report.compared[0].metric, one.alive
                rows.append(
                    {
                        "variant": title,
                        "collapsed": f"{one.cell} of {one.seeds}",
                        "baseline, same seeds": f"{one.baseline} of {one.seeds}",
                        "p, corrected": p_value(adjusted[name]),
                        "seeds where neither collapsed": str(len(alive.deltas)) if alive else "0",
                        "difference there": signed(alive and alive.mean, metric.digits),
                        "95 % interval there": interval(alive and alive.interval.within(metric.span), metric.digits),
                    }
                )
        return rows
