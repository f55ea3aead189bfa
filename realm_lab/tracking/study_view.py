"""What a tracker should show of studies: which runs belong to each, and a study as a whole with its tables."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.errors import UserError
from realm_lab.tracking.run_dir import RunRecord, State, Status, read_run_record, run_record_paths, stage_of, state_of
from realm_lab.tracking.study_record import StudyRecord, read_study_record, study_folder, study_record_paths
from realm_lab.tracking.view import (
    HEADLINES,
    MAX_PARAM_LENGTH,
    MAX_TAG_LENGTH,
    Place,
    View,
    cut,
    differences,
    in_words,
    milliseconds,
    run_color,
    show,
)

UNPLANNED = "unplanned"  # where runs are shown that no study mentions
STUDY_KEY = "study"  # of the run that shows the study as a whole; run keys are digests
NOTE_CELLS = 40  # more would not fit a description
REPORTED = ("report.md", "results.csv", "search.csv", "summary.json", "metrics.json")


class Member(NamedTuple):
    """A run in its place."""

    record: RunRecord
    place: Place


@dataclass(frozen=True)
class Group:
    """The runs that are shown together. `study` is None for the runs that no study mentions."""

    name: str
    study: StudyRecord | None
    members: tuple[Member, ...]


def read_groups(runs: Path, problems: list[str]) -> list[Group]:
    """Every study with its runs, then the runs without any; what cannot be read is added to `problems`."""
    records: dict[str, RunRecord] = {}
    for path in run_record_paths(runs):
        try:
            record = read_run_record(path)
            records[record.name] = record
        except UserError as error:
            problems.append(str(error))
    folders = {path.parent.name for path in run_record_paths(runs)}
    groups, planned = [], set()
    for path in study_record_paths(runs):
        try:
            study = read_study_record(path)
        except UserError as error:
            problems.append(str(error))
            continue
        groups.append(Group(study.name, study, tuple(_members(study, records))))
        asked = study.everything().runs
        planned |= {run.run for run in asked}
        problems += [f"{path}: no run {run.run}; plan the study again" for run in asked if run.run not in folders]
    left = [record for name, record in records.items() if name not in planned]
    if left:
        groups.append(Group(UNPLANNED, None, tuple(_unplanned(left))))
    return groups


def _members(study: StudyRecord, records: Mapping[str, RunRecord]) -> list[Member]:
    whole = study.everything()
    cells = {cell.name: (rank, cell) for rank, cell in enumerate(whole.cells)}
    seeds = sorted({run.seed for run in whole.runs})
    members = []
    for run in whole.runs:
        if run.run in records and run.cell in cells and study.baseline in cells:
            rank, cell = cells[run.cell]
            color = run_color(rank, seeds.index(run.seed))
            place = Place(study.name, cell, cells[study.baseline][1], color, _tuned(study, run.cell))
            record = records[run.run]
            members.append(Member(replace(record, stages=study.cut(record.stages)), place))
    return members


def _tuned(study: StudyRecord, cell: str) -> str:
    """For example "realm at pretrain.retriever.learning_rate = 0.0003" for a cell of the study's grid."""
    tuned = study.tuned_from(cell)
    if tuned is None or study.tuning is None:
        return ""
    return f"{tuned.of} at {in_words({study.tuning.parameter: tuned.value})}"


def _unplanned(records: list[RunRecord]) -> list[Member]:
    labels, seeds = sorted({record.system for record in records}), sorted({record.seed for record in records})
    return [
        Member(record, Place(UNPLANNED, None, None, run_color(labels.index(record.system), seeds.index(record.seed))))
        for record in records
    ]


def read_study(runs: Path, study: StudyRecord, members: tuple[Member, ...], statuses: Statuses) -> View:
    """A study as a whole: its design, how far it is, its tables and what was reported of it.

    `statuses`: run's folder name -> stage -> status. Only `members` are in the tables, those of the grid included.
    """
    tuning, study = study.tuning, study.everything()
    known = [status for member in members for status in statuses[member.record.name].values()]
    state = _state(study, [state_of(statuses[member.record.name]) for member in members])
    started = [status.started_at for status in known if status.started_at]
    ended = [status.finished_at for status in known if status.finished_at]
    by_run = _table_of_runs(runs, study, members, statuses)
    by_cell = _table_of_cells(study, by_run)
    done = sum(row["state"] == "COMPLETE" for row in by_run)
    design = {cell.name: differences(cell, study.cell(study.baseline)) for cell in study.cells}
    files: dict[str, Path | str] = {
        "study.json": study_folder(runs, study.name) / "study.json",
        "table_of_cells.json": _as_table(by_cell),
        "table_of_runs.json": _as_table(by_run),
        **_reported(runs, study.name),
    }
    tags = {
        "realm.kind": "study",
        "realm.study": study.name,
        "realm.design": "; ".join(f"{name}: {in_words(changes)}" for name, changes in design.items()),
        "realm.progress": f"{done} of {len(study.runs)} runs complete",
        "realm.state": state,
        "mlflow.source.name": "realm_lab",
        "mlflow.note.content": _note(study, by_cell, done),
        "mlflow.loggedArtifacts": json.dumps(
            [{"path": name, "type": "table"} for name in ("table_of_cells.json", "table_of_runs.json")]
        ),
    }
    params = {
        "question": study.question,
        "baseline": study.baseline,
        "seeds": ", ".join(map(str, study.seeds)),
        "cells": ", ".join(cell.name for cell in study.cells),
        "metrics": ", ".join(study.metrics) or "none",
        "source": study.source or "none",
    }
    params |= {f"axes.{name}": ", ".join(points) for name, points in study.axes.items()}
    if tuning is not None:
        params |= {f"tune.{tuning.parameter}": ", ".join(map(show, tuning.values)), "tune.by": tuning.by}
    return View(
        key=STUDY_KEY,
        name=study.name,
        state=state,
        started_ms=milliseconds(min(started)) if started else None,
        ended_ms=milliseconds(max(ended)) if state == "COMPLETE" and ended else None,
        params={name: cut(value or "none", MAX_PARAM_LENGTH) for name, value in params.items()},
        tags={name: cut(value, MAX_TAG_LENGTH) for name, value in tags.items()},
        rows={},
        settled={},
        inputs={},
        files=files,
    )


Statuses = Mapping[str, Mapping[str, Status]]
Table = list[dict[str, Any]]  # a row: column -> value; all rows with the same columns


def reports_folder(runs: Path, study: str) -> Path:
    """Where a study is reported: that of the default pipeline at the top of reports/."""
    reports = runs.parent / "reports"
    return reports / study if study != "default" or (reports / study).is_dir() else reports


def _reported(runs: Path, study: str) -> dict[str, Path | str]:
    folder = reports_folder(runs, study)
    files: dict[str, Path | str] = {name: folder / name for name in REPORTED if (folder / name).exists()}
    return files | {f"figures/{path.name}": path for path in sorted(folder.glob("figures/*.png"))}


def _state(study: StudyRecord, states: list[State]) -> State:
    """Of a study whose runs have these states: complete with all of them, and under way as long as one of them is."""
    if len(states) == len(study.runs) and set(states) == {"COMPLETE"}:
        return "COMPLETE"
    order: tuple[State, ...] = ("RUNNING", "FAILED", "PREEMPTED")
    return next((state for state in order if state in states), "PENDING")


def _metrics(study: StudyRecord) -> tuple[str, ...]:
    return study.metrics or HEADLINES


def _table_of_runs(runs: Path, study: StudyRecord, members: tuple[Member, ...], statuses: Statuses) -> Table:
    """One row per run of the study, in its order: cell, seed, state, metrics."""
    rows = []
    for record, place in members:
        run = stage_of(runs, record, "evaluate")
        results = run.results() if run and statuses[record.name]["evaluate"].state == "COMPLETE" else {}
        state = state_of(statuses[record.name])
        row = {"cell": place.cell.name if place.cell else "", "seed": record.seed, "state": state}
        numbers = {name: results.get(name) for name in _metrics(study)}
        rows.append(row | {name: _rounded(value) for name, value in numbers.items()} | {"run": record.name})
    return rows


def _table_of_cells(study: StudyRecord, by_run: Table) -> Table:
    """One row per cell: runs complete, and of each metric the mean over its seeds and the standard deviation."""
    rows = []
    for cell in study.cells:
        mine = [row for row in by_run if row["cell"] == cell.name]
        done = [row for row in mine if row["state"] == "COMPLETE"]
        changes = "baseline" if cell.name == study.baseline else in_words(differences(cell, study.cell(study.baseline)))
        row: dict[str, Any] = {
            "cell": cell.name,
            "title": cell.title,
            "changes": changes,
            "runs": f"{len(done)}/{len(study.of(cell.name))}",
        }
        for name in _metrics(study):
            values = [row[name] for row in done if row[name] is not None]
            row[name] = _rounded(statistics.fmean(values)) if values else None
            row[f"{name}_sd"] = _rounded(statistics.stdev(values)) if len(values) > 1 else None
        rows.append(row)
    return rows


def _as_table(rows: Table) -> str:
    """In the format of MLflow's log_table, which its pages show as a table."""
    columns = list(rows[0]) if rows else []
    return json.dumps({"columns": columns, "data": [[row[name] for name in columns] for row in rows]})


def _note(study: StudyRecord, by_cell: Table, done: int) -> str:
    """Markdown for the page of the study."""
    shown = [name for name in _metrics(study) if any(row[name] is not None for row in by_cell)]
    lines = ["| " + " | ".join(["cell", "changes", "runs", *shown]) + " |", "|---" * (3 + len(shown)) + "|"]
    for row in by_cell[:NOTE_CELLS]:
        values = ["–" if row[name] is None else f"{row[name]:.3f}" for name in shown]
        lines.append("| " + " | ".join([row["cell"], row["changes"].replace("|", "\\|"), row["runs"], *values]) + " |")
    if len(by_cell) > NOTE_CELLS:
        lines.append(f"\n{len(by_cell) - NOTE_CELLS} more cells: table_of_cells.json")
    parts = [
        f"**{study.question}**",
        f"{done} of {len(study.runs)} runs complete; baseline `{study.baseline}`; means over seeds:",
        "\n".join(lines),
        f"Record: `runs/studies/{study.name}/study.json`",
    ]
    return "\n\n".join(parts)


def _rounded(value: Any) -> float | None:
    """Six digits are more than any of these measures has."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(f"{value:.6g}")
