"""The one loader of results: the run folders of a study -> pandas frames, or a committed results.csv -> the same frame.

Nothing that is broken or missing stops the reading: it is listed in `StudyFrames.problems`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from realm_lab.core.files import atomic_write, read_json
from realm_lab.errors import UserError
from realm_lab.metrics import METRICS
from realm_lab.reporting.values import current_name, finite, run_values
from realm_lab.tracking.metric_log import read_metrics
from realm_lab.tracking.run_dir import RunRecord, StageRun, read_run_record
from realm_lab.tracking.state import JobState, RunState, run_state, run_state_of, stage_state
from realm_lab.tracking.study_record import StudyRecord, StudyRun, read_study_record, study_folder

IDENTITY = ("study", "cell", "seed", "run_key", "status")
MORE = ("engine_version", "collapsed", "flags")
CURVE_COLUMNS = ["cell", "seed", "metric", "step", "value"]


@dataclass(frozen=True)
class Run:
    """One run of a study. `values`: its numbers by name, empty unless it is complete."""

    cell: str
    name: str
    record: RunRecord
    state: RunState
    stages: dict[str, StageRun]
    environments: dict[str, dict[str, Any]]
    values: dict[str, float]

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.record.seed

    @property
    def is_complete(self) -> bool:
        """True if every stage is complete and its results could be read."""
        return self.state.state == "COMPLETE" and bool(self.values)

    @property
    def flags(self) -> list[str]:
        """Warnings of its stages, as `<stage>: <flag>`."""
        return [f"{stage}: {flag}" for stage, flags in self.state.flags.items() for flag in flags]

    def environment(self, key: str) -> set[str]:
        """What the stages' env.json say under one key, as text."""
        return {str(env[key]) for env in self.environments.values() if env.get(key) is not None}


@dataclass(frozen=True)
class StudyFrames:
    """A study with everything that was read of it.

    Attributes:
        record: its design; cells and runs of the tuning grid are in `record.tuning` and in `runs` alike.
        runs: every run whose record could be read, in the order of the record.
        results: the table of `results.csv`: a row for each run, `status` as in tracking/state.py, a column a metric.
        problems: a sentence for each file that could not be read.
    """

    record: StudyRecord
    folder: Path  # of all runs
    runs: list[Run]
    results: pd.DataFrame
    problems: list[str]

    @property
    def cells(self) -> list[tuple[str, str]]:
        """(name, title) of the study's own cells, the baseline first."""
        ordered = sorted(self.record.cells, key=lambda cell: cell.name != self.record.baseline)
        return [(cell.name, cell.title) for cell in ordered]

    @property
    def own_runs(self) -> list[Run]:
        """The runs of the study's own cells, without those of a tuning grid."""
        return [run for run in self.runs if self.record.tuned_from(run.cell) is None]

    def of(self, cell: str) -> list[Run]:
        """The runs of a cell, by seed."""
        return sorted((run for run in self.runs if run.cell == cell), key=lambda run: run.seed)

    def values(self, cell: str, metric: str) -> dict[int, float]:
        """seed -> value of one metric of the complete runs of a cell."""
        return column(self.results, cell, metric)

    @functools.cached_property
    def curves(self) -> pd.DataFrame:
        """Every finite point of pre-training: cell, seed, metric, step, value; the grid's runs included."""
        return self.curves_of("pretrain")

    def curves_of(self, stage: str) -> pd.DataFrame:
        """The same of another stage."""
        parts = []
        read: dict[Path, pd.DataFrame] = {}
        for run in self.runs:
            if stage not in run.stages:
                continue
            path = run.stages[stage].path
            if path not in read:
                read[path] = self._points(path / "metrics.jsonl")
            parts.append(read[path].assign(cell=run.cell, seed=run.seed))
        parts = [part for part in parts if len(part)]
        if not parts:
            return pd.DataFrame(columns=CURVE_COLUMNS)
        return pd.concat(parts, ignore_index=True)[CURVE_COLUMNS]

    @property
    def pretrained(self) -> list[tuple[str, str]]:
        """(name, title) of the cells with a pre-training that no cell before them has."""
        seen: set[tuple[Path, ...]] = set()
        found = []
        for name, title in self.cells:
            folders = tuple(run.stages["pretrain"].path for run in self.of(name) if "pretrain" in run.stages)
            if folders and folders not in seen:
                seen.add(folders)
                found.append((name, title))
        return found

    def _points(self, path: Path) -> pd.DataFrame:
        """metric, step, value of one metrics.jsonl; a step logged twice counts once, the last time."""
        found: dict[tuple[str, int], float] = {}
        try:
            for row in read_metrics(path):
                for name, value in row.items():
                    if name not in ("step", "time") and (number := finite(value)) is not None:
                        found[name, row["step"]] = number
        except (UserError, KeyError) as error:
            self.problems.append(_relative(error, self.folder))
        order = sorted(found)
        return pd.DataFrame(
            {
                "metric": [name for name, _ in order],
                "step": [step for _, step in order],
                "value": [found[key] for key in order],
            }
        )


class Summary(NamedTuple):
    """What a handful of seeds says; `sd` has ddof = 1 and is None for one value."""

    n: int
    mean: float
    sd: float | None
    min: float
    max: float


def summarise(values: Iterable[Any]) -> Summary | None:
    """Mean, standard deviation and range of the finite values; None when there are none."""
    known = np.array([number for number in map(finite, values) if number is not None], dtype=float)
    if not len(known):
        return None
    sd = float(known.std(ddof=1)) if len(known) > 1 else None
    return Summary(len(known), float(known.mean()), sd, float(known.min()), float(known.max()))


def column(results: pd.DataFrame, cell: str, metric: str) -> dict[int, float]:
    """seed -> value of one metric of one cell, finite values only."""
    if metric not in results:
        return {}
    chosen = results[(results["cell"] == cell) & results[metric].notna()]
    return {int(seed): float(value) for seed, value in zip(chosen["seed"], chosen[metric], strict=True)}


def study_record(runs: Path, name: str) -> StudyRecord:
    """The record of a study that was swept here.

    Raises:
        UserError: there is none; it says how to make it, and which there are.
    """
    path = study_folder(runs, name) / "study.json"
    if not path.exists():
        known = ", ".join(sorted(other.parent.name for other in (Path(runs) / "studies").glob("*/study.json")))
        there = f"; studies with runs here: {known}" if known else ""
        raise UserError(f"{path}: no runs of study '{name}' here; run `realm-lab sweep {name}`{there}")
    return read_study_record(path)


def load_study(runs: Path, name: str, jobs: Mapping[str, JobState] | None = None) -> StudyFrames:
    """Everything of a recorded study; `jobs`: what a scheduler says of its stages (tracking/state.py)."""
    return load_runs(runs, study_record(runs, name), jobs)


def load_runs(runs: Path, record: StudyRecord, jobs: Mapping[str, JobState] | None = None) -> StudyFrames:
    """The runs of a design, which need not be recorded as a study."""
    runs = Path(runs)
    problems: list[str] = []
    found, rows = [], []
    for member in record.everything().runs:
        run = _read_run(runs, record, member, jobs, problems)
        rows.append(_row(record.name, member, run))
        if run is not None:
            found.append(run)
    return StudyFrames(record, runs, found, _table(rows), problems)


def load_committed(folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """(summary.json, results.csv) of a report whose runs are elsewhere; older names of metrics become the present ones.

    Raises:
        UserError: a missing or broken file.
    """
    summary = read_json(folder / "summary.json")
    if not isinstance(summary, dict) or not {"study", "cells", "baseline", "coverage"} <= summary.keys():
        raise UserError(f"{folder / 'summary.json'}: not the summary of a study; write the report again")
    try:
        frame = pd.read_csv(folder / "results.csv")
        frame = frame.rename(columns=current_name)
        missing = {"cell", "seed", "status"} - set(frame.columns)
        if missing:
            raise ValueError(f"no column {', '.join(sorted(missing))}")
    except (OSError, ValueError) as error:  # pandas' parser errors are ValueErrors
        raise UserError(f"{folder / 'results.csv'}: {error}; write the report again") from None
    return summary, frame


def write_results(path: Path, results: pd.DataFrame) -> None:
    """results.csv: the fixed columns first, numbers with ten digits."""
    with atomic_write(path) as file:
        results.to_csv(file, index=False, lineterminator="\n", float_format="%.10g")


def metric_columns(results: pd.DataFrame) -> list[str]:
    """The columns that hold numbers of runs."""
    return [name for name in results.columns if name not in (*IDENTITY, *MORE)]


def _read_run(
    runs: Path, study: StudyRecord, member: StudyRun, jobs: Mapping[str, JobState] | None, problems: list[str]
) -> Run | None:
    try:
        record = read_run_record(runs / member.run / "run.json")
    except (UserError, OSError) as error:
        problems.append(_relative(error, runs))
        return None
    stages = {name: StageRun(runs / folder, name) for name, folder in study.cut(record.stages).items()}
    environments = {name: _object(stage.path / "env.json", runs, problems) for name, stage in stages.items()}
    try:
        whole = run_state(runs, record, jobs)
        state = run_state_of({name: whole.stages[name] for name in stages})
    except UserError as error:  # a status.json that cannot be read
        problems.append(_relative(error, runs))
        state = run_state_of({name: stage_state(runs / ".unreadable" / name) for name in stages})
    values: dict[str, float] = {}
    if state.state == "COMPLETE":
        try:
            values = run_values(stages)
        except (UserError, OSError, TypeError, ValueError, AttributeError) as error:
            problems.append(_relative(error, runs))
    return Run(member.cell, member.run, record, state, stages, environments, values)


def _row(study: str, member: StudyRun, run: Run | None) -> dict[str, Any]:
    row: dict[str, Any] = {"study": study, "cell": member.cell, "seed": member.seed, "run_key": member.run_key}
    row |= {"status": run.state.state if run else "PENDING"} | (run.values if run else {})
    flags = " | ".join(run.flags) if run else ""
    collapsed = int(run.state.has_collapsed) if run else 0
    return row | {"engine_version": run.record.engine_version if run else None, "collapsed": collapsed, "flags": flags}


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Identity, the headline metrics whether measured or not, every other number that some run has, then the rest."""
    fixed = [m.name for m in METRICS.values() if m.headline] + ["device_hours"]
    measured = {name for row in rows for name in row} - {*IDENTITY, *MORE, *fixed}
    known = [name for name in METRICS if name in measured]
    columns = [*IDENTITY, *fixed, *known, *sorted(measured - set(known)), *MORE]
    table = pd.DataFrame(rows, columns=columns)
    return table.astype({"engine_version": "Int64"} | dict.fromkeys(metric_columns(table), float))


def _object(path: Path, runs: Path, problems: list[str]) -> dict[str, Any]:
    try:
        value = read_json(path) if path.exists() else {}
    except UserError as error:
        problems.append(_relative(error, runs))
        return {}
    return value if isinstance(value, dict) else {}


def _relative(error: Exception, runs: Path) -> str:
    """The message with the run folder's own path shortened: reports must read the same on every machine."""
    return str(error).replace(f"{runs}/", "runs/")
