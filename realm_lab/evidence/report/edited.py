"""Results of a report that were edited after they were written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from realm_lab.errors import UserError
from realm_lab.evidence.ledger import digest_text, last_look
from realm_lab.evidence.report.frames import column, read_summary
from realm_lab.evidence.statistics.intervals import summarise

if TYPE_CHECKING:
    import pandas as pd

SAME = 1e-8  # relative: results.csv has ten digits
REMEDY = "restore it from a copy, or run the study again"


def check_results(root: Path, folder: Path, results: pd.DataFrame) -> None:
    """Compare results.csv with the last look of the ledger, if it has one, and with the means in summary.json.
    UserError: they differ, so one of the files was edited."""
    look = last_look(root / "runs", folder.name) if folder.parent.name != "reference" else None
    if look and digest_text(folder / "results.csv") != look.fields["results"]:
        problem = f"not the results of the last look, line {look.number} of the ledger"
        raise UserError(problem, REMEDY, path=folder / "results.csv")
    for cell, fields in read_summary(folder).get("cells", {}).items():
        for metric, told in fields["metrics"].items():
            found = summarise(column(results, cell, metric).values())
            if found is None or not math.isclose(found.mean, told["mean"], rel_tol=SAME, abs_tol=1e-12):
                shown = f"{found.mean:.6g}" if found else "no value"
                problem = f"{cell} {metric} is {shown}, and {told['mean']:.6g} in summary.json; one was edited"
                raise UserError(problem, REMEDY, path=folder / "results.csv")
