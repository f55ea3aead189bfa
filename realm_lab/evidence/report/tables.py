"""Parts that several tables of a report share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from realm_lab.evidence.statistics.wording import NOTHING, number

if TYPE_CHECKING:
    import pandas as pd


def coverage(results: pd.DataFrame, cell: str | None = None) -> dict[str, Any]:
    """Return the numbers of runs, of complete runs, and of runs in each state."""
    states = Counter(results["status"] if cell is None else results["status"][results["cell"] == cell])
    return {"runs": states.total(), "complete": states.get("COMPLETE", 0), "states": dict(sorted(states.items()))}


def mean_of(values: Mapping[int, float], scale: float, digits: int) -> str:
    """Return the mean over the seeds, divided by `scale`, as text; a dash for no value."""
    return number(sum(values.values()) / len(values) / scale, digits) if values else NOTHING
