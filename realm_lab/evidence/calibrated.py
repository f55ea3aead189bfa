"""`realm-lab verdict --calibrate STUDY`: false alarms of a study's family of tests, and of each test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from realm_lab.errors import UserError
from realm_lab.evidence.report.comparison import family_of
from realm_lab.evidence.report.frames import report_folder
from realm_lab.evidence.report.report_data import load_report
from realm_lab.evidence.statistics.paired import FEWEST_SEEDS
from realm_lab.evidence.statistics.wording import false_alarms, in_short, percent
from realm_lab.records.files import print_json


def show_calibration(root: Path, study: str, *, as_json: bool = False) -> None:
    """Print the false alarms of a study. UserError: the study has no report, or too few seeds for any finding."""
    folder = report_folder(root, study)
    if folder is None:
        raise UserError(f"no study '{study}' has a report here", remedy="see `realm-lab status`")
    report = load_report(folder)
    family, found = family_of(report.compared), report.calibration
    if found is None:
        raise UserError(
            f"study {study}: fewer than {FEWEST_SEEDS} seeds, so that nothing can be significant, falsely or not",
            remedy="run more seeds",
        )
    rows: list[dict[str, Any]] = [
        {
            "metric": metric.name,
            "cell": cell.name,
            "finding": in_short(finding),
            "alone": alone.rate,
            "corrected": corrected.rate,
        }
        for (metric, cell, finding), alone, corrected in zip(family, found.alone, found.corrected, strict=True)
    ]
    if as_json:
        print_json({"study": study} | found.as_json() | {"comparisons": rows})
        return
    print(false_alarms(found))
    for row in sorted(rows, key=lambda row: -row["alone"]):
        rates = f"{percent(row['alone']):>7} alone, {percent(row['corrected']):>6} in the family"
        print(f"{rates}  {row['metric']}, {row['cell']}: {row['finding']}")
