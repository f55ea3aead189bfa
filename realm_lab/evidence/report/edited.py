"""A check that the results of a report were not edited after they were written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from realm_lab.errors import UserError
from realm_lab.evidence.ledger import digest_text, last_look
from realm_lab.evidence.report.frames import read_summary, results_text

if TYPE_CHECKING:
    import pandas as pd


def results_digest(results: pd.DataFrame) -> str:
    """Return the digest of a results.csv with these results, as `digest_text` computes it from the file."""
    return hashlib.sha256(results_text(results).encode()).hexdigest()


def check_results(root: Path, folder: Path) -> None:
    """Compare results.csv with the last look of the ledger, if it has one, and with the digest in summary.json.
    UserError: they differ, so one of the files was edited."""
    path = folder / "results.csv"
    found, remedy = digest_text(path), "restore it from a copy, or run the study again"
    look = last_look(root / "runs", folder.name) if folder.parent.name != "reference" else None
    if look and found != look.fields["results"]:
        raise UserError(f"not the results of the last look, line {look.number} of the ledger", remedy, path=path)
    if found != read_summary(folder).get("results"):
        raise UserError("differs from its digest in summary.json: one of the two was edited", remedy, path=path)
