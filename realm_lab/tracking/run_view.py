"""What a tracker should show of one run: parameters, points, tags, times and files, read from its folders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from realm_lab.errors import UserError
from realm_lab.params.load import flatten
from realm_lab.tracking.run_dir import RunRecord, StageRun, State, Status, stage_of, stage_statuses, state_of
from realm_lab.tracking.run_tags import display_name, run_tags
from realm_lab.tracking.view import MAX_PARAM_LENGTH, Place, Point, Row, View, cut, metric_name, milliseconds, show


def read_run(runs: Path, record: RunRecord, place: Place) -> View:
    """Read everything of one run.

    Raises:
        UserError: a file of the run is broken; the message names it.
    """
    statuses = stage_statuses(runs, record)
    stages = {stage: run for stage in record.stages if (run := stage_of(runs, record, stage))}
    state = state_of(statuses)
    started = [status.started_at for status in statuses.values() if status.started_at]
    rows, settled = {}, {}
    for stage, run in stages.items():
        rows[stage], settled[stage] = _rows(run)
    return View(
        key=record.run_key,
        name=display_name(record, place, statuses),
        state=state,
        started_ms=milliseconds(min(started)) if started else None,
        ended_ms=_ended_ms(state, statuses),
        params={metric_name(key): cut(show(value), MAX_PARAM_LENGTH) for key, value in flatten(record.params).items()},
        tags=run_tags(record, place, state, stages, statuses, rows),
        rows=rows,
        settled=settled,
        inputs=record.inputs,
        files=_files(runs, record, stages),
    )


def settled_step(run: StageRun, status: Status) -> float:
    """The points of a stage up to this step stay, whatever happens; -1 if none of them does.

    A stage that goes on begins at its newest checkpoint and cuts off what was logged later. One that is complete, or
    failed by an error of its own, ends as it is (until it is run again on purpose).
    """
    if status.state in ("COMPLETE", "FAILED"):
        return math.inf
    # Published by rename, after the points of its step were written.
    steps = [int(path.parent.name.partition("-")[2]) for path in run.path.glob("checkpoints/step-*/checkpoint.json")]
    return max(steps, default=-1)


def _rows(run: StageRun) -> tuple[list[Row], int]:
    """All lines of a stage, and how many of them are settled."""
    status = run.status()
    last = settled_step(run, status)  # looked at before the lines: what is logged meanwhile is later
    lines = run.metrics.rows()
    rows = [
        tuple(
            Point(f"{run.stage}/{metric_name(name)}", number, milliseconds(row["time"]), row["step"])
            for name, value in row.items()
            if name not in ("step", "time") and (number := _number(value, name, run.metrics.path)) is not None
        )
        for row in lines
    ]
    settled = sum(1 for _ in itertools.takewhile(lambda row: row["step"] <= last, lines))
    if status.state == "COMPLETE" and status.finished_at:
        curves = {point.name for row in rows for point in row}
        finals = []
        for name, value in _scalars(run.results()):
            # A final score must not become one more point of the curve with its name.
            full = f"{run.stage}/{name}" if f"{run.stage}/{name}" not in curves else f"{run.stage}/final_{name}"
            # Step 0, at which MLflow draws bars to compare; at any other step, an empty plot with one dot.
            finals.append(Point(full, value, milliseconds(status.finished_at), 0))
        rows.append(tuple(finals))
        settled += 1
    return rows, settled


def _scalars(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        name = f"{prefix}{metric_name(key)}"
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield name, float(value)


def _number(value: Any, name: str, path: Path) -> float | None:
    """None for what cannot be drawn: null, NaN and infinities (MLflow stores those as 1.8e308)."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{path}: metric '{name}' has the value {value!r}, not a number; delete that line")
    return float(value) if math.isfinite(value) else None


def _files(runs: Path, record: RunRecord, stages: Mapping[str, StageRun]) -> dict[str, Path | str]:
    files = {"run.json": runs / record.name / "run.json"}
    for stage, run in stages.items():
        files[f"config/{stage}.yaml"] = run.path / "config.yaml"
        for name in ("env.json", "results.json"):
            files[f"{name.removesuffix('.json')}/{stage}.json"] = run.path / name
        if stage == "evaluate" and run.is_complete():
            files["eval/predictions.jsonl"] = run.path / "eval" / "predictions.jsonl"
    return {name: path for name, path in files.items() if path.exists()}


def _ended_ms(state: State, statuses: Mapping[str, Status]) -> int | None:
    """End of the last stage of a run that is complete, or failed by an error of its own.

    A run that was stopped or lost is not at its end: it goes on when it is submitted again.
    """
    if state not in ("COMPLETE", "FAILED"):
        return None
    ends = [status.finished_at for status in statuses.values() if status.state == state and status.finished_at]
    return milliseconds(max(ends)) if ends else None
