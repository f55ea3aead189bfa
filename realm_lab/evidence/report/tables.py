"""Parts that several tables of a report share."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from realm_lab.evidence.report.frames import column
from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.statistics.intervals import summarise
from realm_lab.evidence.statistics.wording import NOTHING, mean_sd, number

if TYPE_CHECKING:
    import pandas as pd


class Means(ReportSection):
    """Mean and spread of several `columns` (column -> heading), a row for each cell that has any of them."""

    columns: ClassVar[dict[str, str]]

    @functools.cached_property
    def rows(self) -> Rows:
        rows = []
        for name, title in self.report.cells:
            found = {key: summarise(column(self.report.results, name, key).values()) for key in self.columns}
            if any(found.values()):
                row = {"variant": title, "n": str(max(one.n for one in found.values() if one))}
                rows.append(
                    row
                    | {self.columns[key]: mean_sd(one, 0 if "questions" in key else 3) for key, one in found.items()}
                )
        return rows


def coverage(results: pd.DataFrame, cell: str | None = None) -> dict[str, Any]:
    """Number of runs, of complete ones, and of those in each state."""
    states = Counter(results["status"] if cell is None else results["status"][results["cell"] == cell])
    return {"runs": states.total(), "complete": states.get("COMPLETE", 0), "states": dict(sorted(states.items()))}


def mean_of(values: Mapping[int, float], scale: float, digits: int) -> str:
    """The mean of the seeds in another unit; a dash for none."""
    return number(sum(values.values()) / len(values) / scale, digits) if values else NOTHING
