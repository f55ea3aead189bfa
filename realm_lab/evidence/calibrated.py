"""`realm-lab verdict --calibrate STUDY`: false alarms of a study's family, and of each of its tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from realm_lab.errors import UserError
from realm_lab.evidence.report.comparison import compare_cells, family_of
from realm_lab.evidence.report.frames import load_runs, report_folder
from realm_lab.evidence.report.report_data import load_report, metrics_of
from realm_lab.evidence.statistics.calibration import calibrate
from realm_lab.evidence.statistics.paired import FEWEST_SEEDS
from realm_lab.evidence.statistics.wording import false_alarms, in_short, percent
from realm_lab.records.files import print_json
from realm_lab.records.study import Studies


def show_calibration(studies: Studies, root: Path, study: str, *, as_json: bool = False) -> None:
    """Print the rates of a study of runs here, or of its report. UserError: it has too few seeds for any finding."""
    there = report_folder(root, study)
    if study in studies.names():
        frames = load_runs(studies.runs, studies.read(study))
        results = compare_cells(frames.record, frames.results, metrics_of(frames.record, frames.results))
    elif there:
        results = load_report(there).compared
    else:
        raise UserError(f"no study '{study}' has runs or a report here", remedy="see `realm-lab status`")
    family = family_of(results)
    found = calibrate([finding.comparison.by_seed for _, _, finding in family])
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
