"""The data of a report: results.csv, curves.csv, and further data from the runs in summary.json.

`collect` in all_sections.py reads the runs once. Everything else in the report is computed from this data, so that a
committed report can be rendered again, byte for byte, without its runs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realm_lab.errors import UserError
from realm_lab.evidence.report.comparison import Intervals, MetricResult, OverQuestions, compare_cells, family_of
from realm_lab.evidence.report.effects import AxisEffect, Interaction, axis_effects, interactions
from realm_lab.evidence.report.frames import frame, load_committed, ordered_cells, read_results
from realm_lab.evidence.statistics.calibration import Calibration, calibrate
from realm_lab.evidence.statistics.intervals import Interval
from realm_lab.records.metrics import learn
from realm_lab.records.study import STUDY_RECORD, StudyRecord

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_METRICS = ("exact_match", "recall_at_5", "retrieval_utility_end", "recall_at_20")
OVER_QUESTIONS = ("per_example_interval", "seeds_and_questions_interval")
KEYS = (
    "design", "title", "presets", "commands", "date", "machines", "runs", "confounds", "warnings", "code", "cost",
    "not_measured", "worked", "own_figures",
)  # fmt: skip
"""Fields of summary.json from the runs; its other fields are computed from them and results.csv."""


@dataclass(frozen=True)
class Report:
    """A report before it is rendered. `data` has the fields KEYS of summary.json."""

    record: StudyRecord
    results: pd.DataFrame
    data: dict[str, Any]
    over_questions: Intervals
    curves: pd.DataFrame  # of curves.csv: mean and range over the seeds

    @property
    def cells(self) -> list[tuple[str, str]]:
        """Return (name, title) of the cells, the baseline first."""
        return ordered_cells(self.record)

    @functools.cached_property
    def compared(self) -> list[MetricResult]:
        """Every metric of the study over all cells."""
        over_questions, not_measured = self.over_questions, self.data["not_measured"]
        return compare_cells(self.record, self.results, self.record.metrics, over_questions, not_measured)

    @functools.cached_property
    def effects(self) -> list[AxisEffect]:
        """The effects of the points of all axes in the first metric."""
        return axis_effects(self.record, self.compared[0]) if self.compared else []

    @functools.cached_property
    def interactions(self) -> list[Interaction]:
        """The interactions of two axes in each declared measure of quality."""
        return interactions(self.record, self.compared)

    @functools.cached_property
    def calibration(self) -> Calibration | None:
        """False alarms of the study's family; None if it has too few seeds for any."""
        return calibrate([found.comparison.by_seed for _, _, found in family_of(self.compared)])

    @property
    def flags(self) -> list[str]:
        """The warnings of all runs, a sentence each."""
        return [
            f"{run['cell']}, seed {run['seed']}, {flag['stage']}: {flag['text']}"
            for run in self.data["runs"]
            for flag in run.get("flags", ())
        ]


def metrics_of(record: StudyRecord, results: pd.DataFrame) -> Sequence[str]:
    """Return the metrics that a study declares. If it declares none: those of DEFAULT_METRICS that its runs measured,
    or all of DEFAULT_METRICS."""
    known = [name for name in DEFAULT_METRICS if name in results and results[name].notna().any()]
    return record.metrics or known or DEFAULT_METRICS


def load_report(folder: Path) -> Report:
    """Read a report from its files. UserError: a file is missing or broken, or from another version of realm_lab."""
    summary, results = load_committed(folder)
    try:
        intervals = {
            (metric, cell): OverQuestions(*(told.get(field) and Interval(*told[field]) for field in OVER_QUESTIONS))
            for metric, cells in summary["comparisons"].items()
            for cell, told in cells.items()
            if told["per_example_interval"]
        }
        path = folder / "curves.csv"
        curves = read_results(path) if path.is_file() else frame([])
        data = {key: summary[key] for key in KEYS} | {"plan": summary.get("plan")}
        return report_of(data, results, intervals, curves)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        message = f"{folder / 'summary.json'}: not of this version of realm_lab ({error!r})"
        raise UserError(f"{message}; write the report again from its runs, or delete {folder}") from None


def report_of(data: dict[str, Any], results: pd.DataFrame, intervals: Intervals, curves: pd.DataFrame) -> Report:
    """Return a report from its data. The runs of its study are in the field `runs`, not in `design`."""
    keys = {
        (cell, seed): key for cell, seed, key in zip(results["cell"], results["seed"], results["run_key"], strict=True)
    }
    runs = [
        {"cell": run["cell"], "seed": run["seed"], "run_key": keys[run["cell"], run["seed"]], "run": run["run"]}
        for run in data["runs"]
    ]
    record = STUDY_RECORD.validate_python(data["design"] | {"runs": runs})
    learn(record.own_metrics)
    return Report(record, results, data, intervals, curves)


def plain(value: Any) -> Any:
    """`value` as JSON gives it back, numbers with ten digits like those of results.csv."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return json.loads(json.dumps(value))
