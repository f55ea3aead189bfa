"""The data of a report: results.csv, curves.csv, and data that is only in the runs, in summary.json.

`collect` reads the runs once. Everything else in the report is computed from this data, so that a committed report can
be rendered again, byte for byte, without its runs.
"""

from __future__ import annotations

import functools
import json
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realm_lab.errors import UserError
from realm_lab.evidence.report.code_notes import code_notes, mixed_code
from realm_lab.evidence.report.comparison import (
    Intervals,
    MetricResult,
    OverQuestions,
    Scores,
    as_json,
    compare_cells,
    family_of,
    question_intervals,
)
from realm_lab.evidence.report.confounds import confounds, curve_notes, reader_notes, rounding_notes
from realm_lab.evidence.report.examples import Example, table_3
from realm_lab.evidence.report.frames import (
    StudyFrames,
    frame,
    load_committed,
    load_study,
    ordered_cells,
    read_results,
    results_text,
)
from realm_lab.evidence.report.verdict import Verdict, verdict
from realm_lab.evidence.statistics.calibration import Calibration, calibrate
from realm_lab.evidence.statistics.intervals import Interval
from realm_lab.records.metrics import learn
from realm_lab.records.parameters import show
from realm_lab.records.study import DEFAULT, SCRATCH, STUDY_RECORD, StudyRecord

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_METRICS = ("exact_match", "recall_at_5", "retrieval_utility_end", "recall_at_20")
OF_PRETRAINING = ("refresh_operations", "refresh_share_of_time")  # curves whose last value is a cost
KEYS = (
    "design", "title", "presets", "commands", "date", "machines", "runs", "confounds", "warnings", "code", "cost",
    "not_measured", "worked", "own_figures",
)  # fmt: skip
"""Fields of summary.json from the runs; its other fields are computed from them and results.csv."""

FIELDS = (  # the order of summary.json, as committed reports have it
    "study", "question", "lead", "verdict", "coverage", "figures", "cells", "comparisons", "calibration", "collapse",
    "gaps", "flags", "axis_effects", "interactions", "looks", "missing", "tuning", "step_changes", "sources", "plan",
)  # fmt: skip


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

    @property
    def flags(self) -> list[str]:
        """The warnings of all runs, a sentence each."""
        return [
            f"{run['cell']}, seed {run['seed']}, {flag['stage']}: {flag['text']}"
            for run in self.data["runs"]
            for flag in run.get("flags", ())
        ]

    @property
    def flagged(self) -> str:
        """The number of warnings of each cell that has any."""
        counts = Counter(run["cell"] for run in self.data["runs"] for _ in run.get("flags", ()))
        return "; ".join(f"{counts[cell.name]} in {cell.title}" for cell in self.record.cells if cell.name in counts)

    @functools.cached_property
    def verdict(self) -> Verdict:
        """The answer in words."""
        return verdict(self.record, self.compared)

    @functools.cached_property
    def calibration(self) -> Calibration | None:
        """False alarms of the study's family; None if it has too few seeds for any."""
        return calibrate([found.comparison.by_seed for _, _, found in family_of(self.compared)])

    @property
    def comparisons(self) -> dict[str, Any]:
        """Return `compared` in the form of summary.json."""
        return dict(plain(as_json(self.compared)))


def collect(
    study: StudyFrames,
    examples: Sequence[Example],
    curves: pd.DataFrame,
    figures: Sequence[dict[str, str]] = (),
    title: str = "",
    commands: Sequence[str] = (),
    plan: dict[str, Any] | None = None,
) -> Report:
    """Return all data of a study's runs that its report needs; `figures` are the entries of custom ones.

    `title` is the heading (default: the study's name), `commands` make it again (default: the study's sweep).
    """
    metrics = metrics_of(study.record, study.results)
    design = STUDY_RECORD.dump_python(study.record, mode="json") | {"metrics": list(metrics)}
    del design["runs"]  # they are below, with more fields
    results = read_results(results_text(study.results))
    names = (*metrics, *study.record.exploratory)
    intervals = question_intervals(study.record, results, names, Scores(study.runs))
    data = {
        "design": design,
        "title": title or f"Study: {study.record.name}",
        "presets": sorted({run.preset for run in study.runs}),
        "commands": list(commands or _commands(study)),
        "date": _date(study),
        "machines": sorted({machine for run in study.runs for machine in run.environment("cpu")}),
        "runs": _runs(study),
        "confounds": [*confounds(study), *mixed_code(study)],
        "warnings": [*reader_notes(study), *curve_notes(study), *rounding_notes(study), *study.problems],
        "code": code_notes(study),
        "cost": _cost(study),
        "not_measured": study.not_measured,
        "worked": table_3(study, examples),
        "own_figures": list(figures),
        "plan": plan,
    }
    shown = {key: OverQuestions(*(one and Interval(*plain(one)) for one in found)) for key, found in intervals.items()}
    return _report(plain(data), results, shown, read_results(results_text(curves)))


def metrics_of(record: StudyRecord, results: pd.DataFrame) -> Sequence[str]:
    """The declared metrics of a study; those of the usual ones that its runs measured if it declares none."""
    known = [name for name in DEFAULT_METRICS if name in results and results[name].notna().any()]
    return record.metrics or known or DEFAULT_METRICS


def standing(runs: Path, name: str) -> str:
    """The verdict of a study by its runs as they are, in a sentence, and one about metrics that no run measured.
    UserError: it has no runs here."""
    study = load_study(runs, name)
    record = study.record
    compared = compare_cells(record, study.results, metrics_of(record, study.results), {}, study.not_measured)
    return str(verdict(record, compared)._replace(rest=""))


def load_report(folder: Path) -> Report:
    """Return the same from committed files. UserError: a file is missing or broken, or of another version of
    realm_lab."""
    summary, results = load_committed(folder)
    try:
        intervals = {
            (metric, cell): OverQuestions(
                *(
                    Interval(*told[field]) if told.get(field) else None
                    for field in ("per_example_interval", "seeds_and_questions_interval")
                )
            )
            for metric, cells in summary["comparisons"].items()
            for cell, told in cells.items()
            if told["per_example_interval"]
        }
        path = folder / "curves.csv"
        curves = read_results(path) if path.is_file() else frame([])
        return _report({key: summary[key] for key in KEYS} | {"plan": summary.get("plan")}, results, intervals, curves)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        message = f"{folder / 'summary.json'}: not of this version of realm_lab ({error!r})"
        raise UserError(f"{message}; write the report again from its runs, or delete {folder}") from None


def _report(data: dict[str, Any], results: pd.DataFrame, intervals: Intervals, curves: pd.DataFrame) -> Report:
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


def _commands(study: StudyFrames) -> tuple[str, ...]:
    """Commands that make the results of a study again. One without a file is the default pipeline, its commands with
    other parameters, or a DVC experiment."""
    record = study.record
    if record.source:
        return f"realm-lab sweep {record.source}", f"realm-lab report {record.name}"
    if record.name == SCRATCH:
        flags = [f"--preset {run.preset}" for run in study.runs[:1]]
        flags += [f"--set {shlex.quote(f'{name}={show(value)}')}" for name, value in record.common.items()]
        return " ".join(["realm-lab run", *flags]), f"realm-lab report {SCRATCH}"
    return ("dvc repro",) if record.name == DEFAULT else (f"dvc exp apply {record.name}", "dvc repro")


def _date(study: StudyFrames) -> str:
    """The day on which its last run ended; "" before the first one has."""
    ended = [status.status.finished_at for run in study.runs for status in run.states.values()]
    known = [one for one in ended if one]
    return datetime.fromtimestamp(max(known), UTC).date().isoformat() if known else ""


def _runs(study: StudyFrames) -> list[dict[str, Any]]:
    """Every run with its origin and flags, and of one that is not complete its stage and the reason."""
    found = {(run.cell, run.seed): run for run in study.runs}
    rows = []
    for member in study.record.runs:
        row: dict[str, Any] = {"cell": member.cell, "seed": member.seed, "run": member.name}
        rows.append(row)
        run = found.get((member.cell, member.seed))
        if run is None:
            row["error"] = "not readable"
            continue
        row["commits"] = sorted(run.environment("git_commit"))
        row["is_changed"] = "True" in run.environment("git_dirty")
        row["corpus"] = run.corpus_key
        if run.flags:
            row["flags"] = [{"stage": stage, "name": flag.name, "text": flag.text} for stage, flag in run.flags]
        if run.stage:
            deciding = run.states[run.stage]
            row |= {"stage": run.stage, "step": deciding.status.step, "total_steps": deciding.status.total_steps}
            row |= {"error": run.error, "why": asdict(deciding.reason) if deciding.reason else None}
    return rows


def _cost(study: StudyFrames) -> dict[str, Any]:
    """Return the mean minutes of a complete run by stage for each cell, and the share of refreshing."""
    ends = study.curves.groupby(["cell", "metric", "seed"])["value"].last()
    found: dict[str, Any] = {}
    for name, _ in study.cells:
        found[name] = {"minutes": study.minutes(name)}
        for metric in OF_PRETRAINING:
            if (name, metric) in ends:
                found[name][metric] = float(ends[name, metric].mean())
    return found
