"""Run folders -> tidy pandas tables: one row per run, one row per point of a curve, one row per missing piece."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from realm_lab.core.files import read_json
from realm_lab.errors import UserError
from realm_lab.tracking.metric_log import read_metrics
from realm_lab.tracking.run_dir import (
    RunRecord,
    Status,
    read_run_record,
    stage_of,
)
from realm_lab.tracking.state import run_state
from realm_lab.tracking.study_record import StudyRecord, read_study_record, study_folder

STAGES = ("warm_start", "pretrain", "finetune", "evaluate")
BM25 = "bm25"
CURVE_COLUMNS = ["label", "seed", "stage", "metric", "step", "value"]


@dataclass(frozen=True)
class Run:
    """One run as the report sees it. `results` are those of its evaluate stage, empty when there are none."""

    label: str  # its cell in the study
    record: RunRecord
    statuses: dict[str, Status]
    results: dict[str, Any]
    environments: dict[str, dict[str, Any]]

    @property
    def wall_seconds(self) -> float:
        """Time of all its stages; a stage shared with another run counts in both."""
        return sum(status.wall_seconds for status in self.statuses.values())

    @property
    def flags(self) -> dict[str, tuple[str, ...]]:
        """stage -> its warnings, such as "collapsed: ..."; stages without any are left out."""
        return {stage: status.flags for stage, status in self.statuses.items() if status.flags}

    @property
    def has_collapsed(self) -> bool:
        """True if one of its stages was flagged as collapsed."""
        return any(flag.startswith("collapsed") for flags in self.flags.values() for flag in flags)

    @property
    def is_complete(self) -> bool:
        """True if every stage is complete and left results."""
        return all(status.state == "COMPLETE" for status in self.statuses.values()) and bool(self.results)


@dataclass(frozen=True)
class Collection:
    """Every run that is shown, the seeds that were asked for, and what could not be read."""

    runs_folder: Path
    runs: list[Run]
    seeds: list[int]
    missing_runs: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    baseline: str | None = None  # the label that the others are compared with

    @property
    def labels(self) -> list[str]:
        """Baseline first, then realm, then the others by name."""
        names = {run.label for run in self.runs}
        return sorted(names, key=lambda name: (name != self.baseline, name != "realm", name))

    @property
    def treatment(self) -> str | None:
        """The label the verdict is about: realm, else the first that is not the baseline."""
        return next((label for label in self.labels if label != self.baseline), None)

    def of(self, label: str | None) -> list[Run]:
        """Runs of one label, by seed."""
        return [run for run in self.runs if run.label == label]


class Summary(NamedTuple):
    """What a handful of seeds says; `sd` has ddof = 1 and is None for one value."""

    n: int
    mean: float
    sd: float | None
    low: float
    high: float


def summarise(values: Iterable[Any]) -> Summary | None:
    """Mean, standard deviation (ddof = 1) and range of the finite values; None when there are none."""
    series = pd.Series([number for number in map(finite, values) if number is not None], dtype=float)
    if series.empty:
        return None
    sd = float(series.std(ddof=1)) if len(series) > 1 else None
    return Summary(len(series), float(series.mean()), sd, float(series.min()), float(series.max()))


def finite(value: Any) -> float | None:
    """`value` as a float, or None when it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def collect(
    runs_folder: Path, study: str, names: list[str] | None = None, seeds: list[int] | None = None
) -> Collection:
    """Read the runs called `names`, or all runs of `study` as it is; nothing that is broken stops the reading."""
    problems: list[str] = []
    design = _design(Path(runs_folder), study, problems)
    return collect_design(runs_folder, design, problems, names, seeds)


def collect_design(
    runs_folder: Path,
    design: StudyRecord | None,
    problems: list[str],
    names: list[str] | None = None,
    seeds: list[int] | None = None,
) -> Collection:
    """The same of a study that has been read; what cannot be read is added to `problems`."""
    runs_folder = Path(runs_folder)
    cells = {run.run: run.cell for run in design.runs} if design else {}
    found: list[Run] = []
    missing = []
    for name in sorted({*(cells if names is None else names)}):
        path = runs_folder / name / "run.json"
        if names is not None and not path.exists():
            missing.append(name)
            continue
        try:
            record = read_run_record(path)
            found.append(_read_run(runs_folder, record, cells.get(name, record.system), problems))
        except (UserError, OSError) as error:
            problems.append(_relative(error, runs_folder))
    baseline = design.baseline if design else None
    found.sort(key=lambda run: (run.label != baseline, run.label, run.record.seed, run.record.run_key))
    planned = design.seeds if design and names is None else ()
    asked = sorted({*(seeds or []), *planned, *(run.record.seed for run in found)})
    return Collection(runs_folder, found, asked, missing, problems, baseline)


def results_table(collection: Collection) -> pd.DataFrame:
    """One row per run: label, seed, run, and every number of its evaluate results (nested ones as bm25.recall_at_5)."""
    rows = []
    for run in collection.runs:
        row: dict[str, Any] = {"label": run.label, "seed": run.record.seed, "run": run.record.name}
        for name, value in run.results.items():
            nested = value.items() if isinstance(value, dict) else ()
            row.update({f"{name}.{inner}": finite(number) for inner, number in nested})
            if (number := finite(value)) is not None:
                row[name] = number
        rows.append(row)
    return pd.DataFrame(rows, columns=None if rows else ["label", "seed", "run"])


def column(rows: pd.DataFrame, label: str | None, metric: str) -> dict[int, float]:
    """seed -> value of one metric of one label, finite values only."""
    if metric not in rows:
        return {}
    chosen = rows[(rows["label"] == label) & rows[metric].notna()]
    return {int(seed): float(value) for seed, value in zip(chosen["seed"], chosen[metric], strict=True)}


def curves_table(collection: Collection, stages: Container[str] = STAGES) -> pd.DataFrame:
    """Every finite point of every metrics.jsonl, long form; a step logged twice counts once, the last time.

    A warm start that several labels share appears once, under the label "shared"; other stages under each label.
    """
    columns: dict[str, list[Any]] = {name: [] for name in CURVE_COLUMNS}
    seen: set[tuple[Path, str]] = set()
    shared_seeds: set[int] = set()
    for run in collection.runs:
        for stage in run.record.stages:
            found = stage_of(collection.runs_folder, run.record, stage)
            whose = "" if stage == "warm_start" else run.label
            if stage not in stages or found is None or (found.path, whose) in seen:
                continue
            seen.add((found.path, whose))
            try:
                points = _points(read_metrics(found.path / "metrics.jsonl"))
            except UserError as error:
                collection.problems.append(_relative(error, collection.runs_folder))
                continue
            if not points:
                continue
            label = run.label
            if stage == "warm_start" and run.record.seed not in shared_seeds:
                shared_seeds.add(run.record.seed)
                label = "shared"
            columns["metric"] += [metric for metric, _ in points]
            columns["step"] += [step for _, step in points]
            columns["value"] += points.values()
            for name, value in (("label", label), ("seed", run.record.seed), ("stage", stage)):
                columns[name] += [value] * len(points)
    table = pd.DataFrame(columns, columns=CURVE_COLUMNS)
    if table.empty:
        return table
    # Sorted as categories, whose places are numbers: a study of a thousand runs has millions of points.
    order = ["stage", "metric", "label"]
    ranks = {name: pd.Categorical(table[name], categories=sorted(set(columns[name]))).codes for name in order}
    places = np.lexsort(
        [table["step"].to_numpy(), table["seed"].to_numpy(), *(ranks[name] for name in reversed(order))]
    )
    return table.iloc[places].reset_index(drop=True)


def _points(rows: list[dict[str, Any]]) -> dict[tuple[str, int], float]:
    """(metric, step) -> its last finite value. A loop, not a frame: there are thousands of small files."""
    found = {}
    for row in rows:
        step = row["step"]
        for metric, value in row.items():
            if metric not in ("step", "time") and value is not None and (number := finite(value)) is not None:
                found[metric, step] = number
    return found


def coverage_table(collection: Collection) -> pd.DataFrame:
    """One row per label and seed that should exist: label, seed, run, then the state of each stage.

    A stage the label does not have is "–"; a run that does not exist is "no run".
    """
    rows = []
    for label in collection.labels:
        by_seed = {run.record.seed: run for run in collection.of(label)}
        for seed in collection.seeds:
            run = by_seed.get(seed)
            row: dict[str, Any] = {"label": label, "seed": seed, "run": run.record.name if run else "none"}
            for stage in STAGES:
                status = run.statuses.get(stage) if run else None
                row[stage] = status.state if status else ("–" if run else "no run")
            rows.append(row)
    return pd.DataFrame(rows, columns=["label", "seed", "run", *STAGES])


def gaps(collection: Collection) -> list[str]:
    """One sentence for every missing or unfinished piece, failures with their cause; empty when all is there."""
    found = [f"Run {name} is listed in metrics.json and has no folder." for name in collection.missing_runs]
    for label in collection.labels:
        by_seed = {run.record.seed: run for run in collection.of(label)}
        for seed in collection.seeds:
            run = by_seed.get(seed)
            if run is None:
                found.append(f"{label}, seed {seed}: there is no run.")
                continue
            for stage, status in run.statuses.items():
                if status.state == "COMPLETE":
                    continue
                cause = f" ({status.error})" if status.error else ""
                done = f" at step {status.step} of {status.total_steps}" if status.total_steps else ""
                found.append(f"{label}, seed {seed}: stage {stage} is {status.state}{done}{cause}.")
            if not run.results and run.statuses.get("evaluate", Status()).state == "COMPLETE":
                found.append(f"{label}, seed {seed}: stage evaluate left no readable results.json.")
    return found


def _read_run(runs_folder: Path, record: RunRecord, label: str, problems: list[str]) -> Run:
    statuses = _statuses(runs_folder, record)
    results: dict[str, Any] = {}
    environments: dict[str, dict[str, Any]] = {}
    for stage in record.stages:
        found = stage_of(runs_folder, record, stage)
        if found is None:
            continue
        environments[stage] = _read_object(found.path / "env.json", runs_folder, problems)
        if stage == "evaluate" and statuses[stage].state == "COMPLETE":
            results = _read_object(found.path / "results.json", runs_folder, problems)
    return Run(label, record, statuses, results, environments)


def _read_object(path: Path, runs_folder: Path, problems: list[str]) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = read_json(path)
    except UserError as error:
        problems.append(_relative(error, runs_folder))
        return {}
    return value if isinstance(value, dict) else {}


def _design(runs_folder: Path, study: str, problems: list[str]) -> StudyRecord | None:
    path = study_folder(runs_folder, study) / "study.json"
    try:
        return read_study_record(path) if path.exists() else None
    except UserError as error:
        problems.append(_relative(error, runs_folder))
        return None


def _relative(error: Exception, runs_folder: Path) -> str:
    """The message with the run folder's own path shortened: reports must read the same on every machine."""
    return str(error).replace(f"{runs_folder}/", "runs/")


def _statuses(runs: Path, record: RunRecord) -> dict[str, Status]:
    """What each stage's status.json says; a lost one has failed."""
    found = run_state(runs, record).stages
    return {
        name: replace(found[name].status, state="FAILED", error=found[name].error)
        if found[name].state == "LOST"
        else found[name].status
        for name in record.stages
    }


def state_of(statuses: Mapping[str, Status]) -> str:
    """COMPLETE if every stage is; else FAILED, RUNNING, PREEMPTED or PENDING."""
    present = {status.state for status in statuses.values()}
    if present == {"COMPLETE"}:
        return "COMPLETE"
    return next((state for state in ("FAILED", "RUNNING", "PREEMPTED") if state in present), "PENDING")
