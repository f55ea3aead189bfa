"""What is written of a study, from the run folders alone: the same runs give the same bytes.

results.csv, a row a run; summary.json, by cell, with what was found; report.md, index.html and figures/.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from realm_lab.core.files import atomic_write, read_json, write_json
from realm_lab.runner.report_cache import kept_or_written
from realm_lab.tracking.run_dir import StageRun
from realm_lab.tracking.state import UNDER_WAY, RunState, StageStates
from realm_lab.tracking.study_record import StudyRecord, StudyRun

# Of results.csv: column -> the name in the results of the evaluate stage. The first ones come in a fixed order.
RESULTS = {
    "exact_match": "exact_match",
    "recall_at_1": "recall_at_1",
    "recall_at_5": "recall_at_5",
    "retrieval_utility": "retrieval_utility_end",
}
MEASURED = ("index_staleness_steps", "wall_seconds", "device_hours")
IDENTITY = ("study", "cell", "seed", "run_key", "status")
MORE = ("engine_version", "collapsed", "flags")


@dataclass(frozen=True)
class Row:
    """One run of a study. `values`: every number that is known of it; none of its results unless it is complete."""

    run: StudyRun
    engine_version: int
    state: RunState
    values: dict[str, float] = field(default_factory=dict)

    @property
    def has_collapsed(self) -> bool:
        """True if one of its stages was flagged as collapsed."""
        return self.state.has_collapsed


def collect(root: Path, name: str) -> Path:
    """Write everything in reports/NAME of a study that has been recorded, and the common page; returns the folder.

    Raises:
        UserError: no such study.
    """
    from realm_lab.reporting.overview_page import refresh

    folder = kept_or_written(root, name, lambda: write_study_report(root, name))
    refresh(folder.parent)
    return folder


def write_study_report(root: Path, name: str) -> Path:
    """`collect` without the common page reports/index.html."""
    from realm_lab.reporting.document_files import write_document
    from realm_lab.reporting.fragment import facts_of, write_fragment
    from realm_lab.reporting.study_comparison import as_json, verdict  # pandas and matplotlib take a second to import
    from realm_lab.reporting.study_contents import StudyContents
    from realm_lab.reporting.study_report import build
    from realm_lab.reporting.tuning import tuned_json

    contents = StudyContents(Path(root) / "runs", name)
    record = contents.study
    states = StageStates(Path(root) / "runs")
    rows = [_row(root, record, run, states) for run in record.everything().runs]
    folder = Path(root) / "reports" / name
    _write_results(folder / "results.csv", record, rows)
    found = {"verdict": verdict(record, contents.results), "comparisons": as_json(contents.results)}
    if contents.tuned is not None:
        found["tuned"] = tuned_json(contents.tuned)
    write_json(folder / "summary.json", summary(record, rows) | found)
    document = build(contents)
    write_document(document, folder)
    write_fragment(folder, document, facts_of(record, _coverage(rows)), contents.points)
    return folder


def value_of(stages: dict[str, StageRun], name: str) -> float | None:
    """One number of a complete run, by its column of results.csv; of one without evaluation, the last of a curve."""
    if name in MEASURED:
        return _values(stages).get(name)
    if "evaluate" not in stages:  # it ends before, with a curve
        values = [row[name] for row in next(reversed(stages.values())).metrics.rows() if name in row]
        return values[-1] if values else None
    return dict(_numbers("", stages["evaluate"].results())).get(RESULTS.get(name, name))


def _row(root: Path, study: StudyRecord, run: StudyRun, states: StageStates) -> Row:
    runs = Path(root) / "runs"
    record = study.record(runs, run)
    folders = study.cut(record.stages)
    keys = {stage: folder.rpartition("-")[2] for stage, folder in folders.items()}
    state = states.run(keys, record.inputs["corpus"])
    stages = {stage: StageRun(runs / folder, stage) for stage, folder in folders.items()}
    return Row(run, record.engine_version, state, _values(stages) if state.state == "COMPLETE" else {})


def _values(stages: dict[str, StageRun]) -> dict[str, float]:
    seconds = {stage: run.status().wall_seconds for stage, run in stages.items()}
    devices = {stage: _processes(run.path / "env.json") for stage, run in stages.items()}
    values = _results(stages) | {"wall_seconds": sum(seconds.values())}
    return values | {"device_hours": sum(seconds[stage] * devices[stage] for stage in stages) / 3600}


def _results(stages: dict[str, StageRun]) -> dict[str, float]:
    """The numbers of the evaluate stage, nested names joined by dots, and the mean staleness over pre-training."""
    values = dict(_numbers("", stages["evaluate"].results()))
    values |= {column: values[name] for column, name in RESULTS.items() if name in values}
    rows = stages["pretrain"].metrics.rows() if "pretrain" in stages else []
    ages = [row["index_staleness_steps_mean"] for row in rows if row.get("index_staleness_steps_mean") is not None]
    if ages:
        values["index_staleness_steps"] = ages[-1]  # over all steps so far
    return values


def _processes(path: Path) -> int:
    """How many processes shared the stage, each with a device of its own."""
    return int(read_json(path).get("processes", 1)) if path.exists() else 1


def _numbers(prefix: str, value: Any) -> Iterable[tuple[str, float]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _numbers(f"{prefix}.{name}" if prefix else name, item)
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield prefix, float(value)


def _columns(rows: Sequence[Row]) -> list[str]:
    """The numbers that some run has, the fixed ones first."""
    fixed = [*RESULTS, *MEASURED]
    return fixed + sorted({name for row in rows for name in row.values} - set(fixed))


def _write_results(path: Path, record: StudyRecord, rows: Sequence[Row]) -> None:
    columns = _columns(rows)
    with atomic_write(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*IDENTITY, *columns, *MORE])
        for row in rows:
            numbers = [f"{row.values[name]:.10g}" if name in row.values else "" for name in columns]
            run = row.run
            flags = " | ".join(f"{stage}: {flag}" for stage, flags in row.state.flags.items() for flag in flags)
            named = [record.name, run.cell, run.seed, run.run_key, row.state.state]
            writer.writerow([*named, *numbers, row.engine_version, int(row.has_collapsed), flags])


def summary(record: StudyRecord, rows: Sequence[Row]) -> dict[str, Any]:
    """Per cell how many runs there are, and of each metric n, mean, sd (ddof = 1), min and max over the seeds."""
    columns = _columns(rows)
    cells = {}
    for cell in record.everything().cells:
        mine = [row for row in rows if row.run.cell == cell.name]
        metrics = {name: [row.values[name] for row in mine if name in row.values] for name in columns}
        cells[cell.name] = {
            "title": cell.title,
            "coverage": _coverage(mine),
            "collapsed": sum(row.has_collapsed for row in mine),
            "metrics": {name: _summarised(values) for name, values in metrics.items() if values},
        }
    return {
        "study": record.name,
        "question": record.question,
        "baseline": record.baseline,
        "seeds": list(record.seeds),
        "metrics": list(record.metrics),
        "coverage": _coverage(rows),
        "cells": cells,
    }


def _coverage(rows: Sequence[Row]) -> dict[str, int]:
    states = [row.state.state for row in rows]
    complete, failed = states.count("COMPLETE"), states.count("FAILED")
    under_way = sum(state in UNDER_WAY for state in states)
    missing = len(states) - complete - failed - under_way
    return {"runs": len(states), "complete": complete, "failed": failed, "running": under_way, "missing": missing}


def _summarised(values: Sequence[float]) -> dict[str, float | int | None]:
    return {
        "n": len(values),
        "mean": statistics.fmean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else None,
        "min": min(values),
        "max": max(values),
    }
