"""`realm-lab report`: the reports of all studies whose runs are here, of the default run, and the common page."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

from realm_lab.errors import UserError
from realm_lab.runner.report_cache import kept_or_written
from realm_lab.tracking.state import run_state
from realm_lab.tracking.study_record import read_study_record, study_record_paths


def report_all(root: Path) -> Path:
    """Write every report that the run folders can make, then reports/index.html; returns the page's path.

    A study with fewer complete runs here than its report in reports/ counts keeps that report: it was run elsewhere,
    and this machine only has a part of it. `realm-lab report NAME` writes it all the same.
    """
    from realm_lab.reporting.report import write_report  # pandas and matplotlib take a second to import
    from realm_lab.runner.collect import write_study_report

    root = Path(root)
    for path in study_record_paths(root / "runs"):
        name = path.parent.name
        if name == "default" or name.startswith("search-"):  # a search writes its own report
            continue
        try:
            if complete_runs(root, name) >= reported_runs(root / "reports" / name):
                kept_or_written(root, name, functools.partial(write_study_report, root, name))
        except UserError as error:  # a broken study must not take the page away from the others
            print(f"study {name}: its report stays as it is: {error}", file=sys.stderr)
    return write_report(root / "runs", root / "reports")


def complete_runs(root: Path, name: str) -> int:
    """How many runs of a study are complete on this machine."""
    record = read_study_record(Path(root) / "runs" / "studies" / name / "study.json")
    runs = Path(root) / "runs"
    found = [run_state(runs, record.record(runs, run)) for run in record.everything().runs]
    return sum(state.state == "COMPLETE" for state in found)


def reported_runs(folder: Path) -> int:
    """How many complete runs the report in a folder counts; 0 where there is none that can be read."""
    try:
        found = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        return int(found["coverage"]["complete"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
