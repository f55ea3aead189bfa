"""The rule `decided`: take seeds until each cell is decided in the first metric, or the time is used up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from realm_lab.lab.rules.seeds import SeedRule

if TYPE_CHECKING:
    import pandas as pd

    from realm_lab.records.study import StudyRecord

UNITS = {"min": 1 / 60, "h": 1.0, "d": 24.0}  # in hours


def _hours(given: Any) -> Any:
    """Read `90 min`, `2 h` or `1 d` as hours."""
    found = re.fullmatch(r"\s*([\d.]+)\s*(min|h|d)\s*", str(given))
    if found is None or not found[1].replace(".", "", 1).isdigit():
        raise ValueError(f"write a time such as 90 min, 2 h or 1 d, not {given}")
    return float(found[1]) * UNITS[found[2]]


class UntilDecided(SeedRule):
    """Options of `until: decided`."""

    within: Annotated[float, BeforeValidator(_hours), Field(gt=0)] | None = None
    """Hours of device time; another seed is not taken if it would go beyond."""

    @property
    def looks(self) -> tuple[int, int] | None:
        return self.at_least, self.at_most


def until_decided(study: StudyRecord, results: pd.DataFrame, options: UntilDecided) -> dict[str, int]:
    """Return cell -> number of seeds. It rises until the cell differs from the baseline in the study's first metric, or
    is equivalent."""
    from realm_lab.evidence.report.comparison import decisions  # brings pandas

    wanted = decisions(study, results, study.metrics).wanted
    most = options.at_most
    if options.within is not None:  # one seed more than there are, if one as long as the last fits
        each = results.groupby("seed", sort=True)["device_hours"].sum()
        most = len(each) + int(each.sum() + each.iloc[-1] <= options.within)
    return {str(cell): min(count, most) for cell, count in wanted.items()}
