"""Results of a report that were edited after they were written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from realm_lab.errors import UserError
from realm_lab.evidence.ledger import last_look
from realm_lab.evidence.report.frames import read_summary, results_text

if TYPE_CHECKING:
    import pandas as pd

REMEDY = "restore it from a copy, or run the study again"


def results_digest(results: pd.DataFrame) -> str:
    """Return the SHA-256 of a results.csv as hex, as summary.json and the ledger have it."""
    return hashlib.sha256(results_text(results).encode()).hexdigest()


def check_results(root: Path, folder: Path, results: pd.DataFrame) -> None:
    """Compare results.csv with the last look of the ledger, if it has one, and with summary.json. UserError: they
    differ, so one of the files was edited."""
    found, path = results_digest(results), folder / "results.csv"
    look = last_look(root / "runs", folder.name) if folder.parent.name != "reference" else None
    if look and found != look.fields["results"]:
        raise UserError(f"not the results of the last look, line {look.number} of the ledger", REMEDY, path=path)
    if found != read_summary(folder).get("results", found):
        raise UserError("not the results of which summary.json has the digest; one was edited", REMEDY, path=path)
