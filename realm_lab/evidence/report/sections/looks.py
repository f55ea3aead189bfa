"""The looks of a study with seeds until decided, which adds seeds to a cell until its result is clear."""

from __future__ import annotations

import functools
from typing import Any

from realm_lab.evidence.report.comparison import decisions
from realm_lab.evidence.report.section import ReportSection


class Looks(ReportSection):
    """The looks and the cells that they decided."""

    name = "looks"

    @functools.cached_property
    def found(self) -> dict[str, Any]:
        """The fewest and the most seeds, the seeds at the last look, and the decided cells; empty without `until`."""
        record = self.report.record
        if not record.until:
            return {}
        at_looks, (at_least, at_most) = decisions(record, self.report.results, record.metrics), record.until
        return {"at_least": at_least, "at_most": at_most, "last": at_looks.seeds, "stopped": at_looks.stopped}

    def data(self) -> dict[str, Any]:
        return {"looks": self.found} if self.found else {}

    @functools.cached_property
    def sentence(self) -> str:
        if not self.found:
            return ""
        stopped = ", ".join(f"{cell} after {seeds}" for cell, seeds in self.found["stopped"].items())
        decided = f"Decided: {stopped} seeds. " if stopped else ""
        return (
            f"Seeds until decided by the first metric: a look after each seed from {self.found['at_least']} to "
            f"{self.found['at_most']}, the last one after {self.found['last']}. {decided}p is corrected for the looks, "
            "too; intervals are not."
        )
