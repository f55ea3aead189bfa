"""What MLflow shows of a run and of a study, read from run directories and study.json. No MLflow here."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from realm_lab.core.files import read_json
from realm_lab.core.records import cut
from realm_lab.errors import UserError
from realm_lab.params.load import flatten, show
from realm_lab.tracking.metric_log import RESERVED, scalars
from realm_lab.tracking.run_dir import RunRecord, StageRun, read_run_record, run_record_paths, stage_of
from realm_lab.tracking.state import STATES, RunState, StageState, run_state
from realm_lab.tracking.study_record import StudyCell, StudyRecord, read_study_record, study_folder, study_record_paths

UNPLANNED = "unplanned"  # the experiment of runs that no study mentions
STUDY_KEY = "study"  # of the view of a study as a whole; those of runs are digests
MAX_NAME, MAX_PARAM, MAX_TAG = 250, 6000, 5000  # of MLflow 3 (mlflow/utils/validation.py)


class Point(NamedTuple):
    """One value of one metric; `time_ms` is unix time."""

    name: str
    value: float
    time_ms: int
    step: int


@dataclass(frozen=True)
class View:
    """A run, or a study as a whole, as MLflow shows it.

    `points`: stage -> its points in order, only those that a resumed stage cannot take back. `ended_ms` is None as
    long as the run may go on.
    """

    key: str
    name: str
    state: str
    started_ms: int | None
    ended_ms: int | None
    note: str  # Markdown
    tags: dict[str, str]
    params: dict[str, str] = field(default_factory=dict)
    points: dict[str, list[Point]] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)  # artifact path -> file


class Member(NamedTuple):
    """A run with its state and its cell in a study; no cell where no study mentions the run."""

    record: RunRecord
    state: RunState
    study: StudyRecord | None = None
    cell: StudyCell | None = None


def read_groups(runs: Path, problems: list[str]) -> dict[str, tuple[StudyRecord | None, list[Member]]]:
    """Experiment -> study and its runs; what cannot be read is added to `problems`."""
    records: dict[str, RunRecord] = {}
    for path in run_record_paths(runs):
        try:
            records[path.parent.name] = read_run_record(path)
        except UserError as error:
            problems.append(str(error))
    groups: dict[str, tuple[StudyRecord | None, list[Member]]] = {}
    planned = set()
    for path in study_record_paths(runs):
        try:
            study = read_study_record(path).everything()
        except UserError as error:
            problems.append(str(error))
            continue
        planned |= {run.run for run in study.runs}
        members = groups.setdefault(study.name, (study, []))[1]
        for run in study.runs:
            if run.run not in records:
                problems.append(f"{path}: no run {run.run}; plan the study again")
                continue
            record = replace(records[run.run], stages=study.cut(records[run.run].stages))
            members += _member(runs, record, problems, study, study.cell(run.cell))
    left = [record for name, record in records.items() if name not in planned]
    if left:
        groups[UNPLANNED] = None, [member for record in left for member in _member(runs, record, problems)]
    return groups


def _member(
    runs: Path, record: RunRecord, problems: list[str], study: StudyRecord | None = None, cell: StudyCell | None = None
) -> list[Member]:
    """The run with its state; none where a status cannot be read."""
    try:
        return [Member(record, run_state(runs, record), study, cell)]
    except UserError as error:
        problems.append(str(error))
        return []


def read_run(runs: Path, member: Member) -> View:
    """Everything that is shown of one run.

    UserError: a file of the run is broken; the message names it.
    """
    record, state, study, cell = member
    stages = {stage: run for stage in state.stages if (run := stage_of(runs, record, stage))}
    flags = [f"{stage}: {flag}" for stage, found in state.flags.items() for flag in found]
    environments = [read_json(path) for run in stages.values() if (path := run.path / "env.json").exists()]
    tags = {
        "realm.kind": "run",
        "realm.run_key": record.run_key,
        "realm.cell": cell.name if cell else record.system,
        "realm.seed": str(record.seed),
        "realm.system": record.system,
        "realm.study": study.name if study else "",
        "realm.changes": changes_of(cell, study) if study and cell else "",
        # Of the last stage that recorded one: the stages before it may be older and shared.
        "realm.git_commit": next((e["git_commit"] for e in reversed(environments) if e.get("git_commit")), ""),
        "realm.state": state.state,
        "realm.flags": "; ".join(flags),
        "realm.error": state.error or "",
        "mlflow.source.name": "realm_lab",
    }
    mark = "COLLAPSED " if state.has_collapsed else "FLAGGED " if flags else ""
    files = {"run.json": runs / record.name / "run.json"}
    for stage, run in stages.items():
        names = ("config.yaml", "env.json", "results.json", "eval/predictions.jsonl")
        files |= {f"{stage}/{name}": run.path / name for name in names if (run.path / name).exists()}
    params = flatten({"inputs": record.inputs, **record.params})
    started_ms, ended_ms = _times([state])
    return View(
        key=record.run_key,
        name=mark + (f"{cell.name}-s{record.seed}" if cell else record.name),
        state=state.state,
        started_ms=started_ms,
        ended_ms=ended_ms if state.state in ("COMPLETE", "FAILED") else None,
        note=f"Record: `runs/{record.name}/run.json`",
        tags={name: cut(value, MAX_TAG) for name, value in tags.items() if value},
        params={metric_name(name): cut(show(value), MAX_PARAM) for name, value in params.items()},
        points={stage: _points(run, state.stages[stage]) for stage, run in stages.items()},
        files=files,
    )


def _times(states: Sequence[RunState]) -> tuple[int | None, int | None]:
    """When the first stage of these runs began, and when the last one ended, if any did."""
    known = [stage.status for state in states for stage in state.stages.values()]
    started = [status.started_at for status in known if status.started_at]
    ended = [status.finished_at for status in known if status.finished_at]
    return milliseconds(min(started)) if started else None, milliseconds(max(ended)) if ended else None


def settled_step(run: StageRun, state: StageState) -> float:
    """The points of a stage up to this step stay; -1 if none of them does.

    A stage that goes on begins at its newest checkpoint and cuts off what was logged later. One that is complete, or
    failed by an error of its own, ends as it is (until it is run again on purpose).
    """
    if state.state in ("COMPLETE", "FAILED"):
        return math.inf
    # A checkpoint is published by rename, after the points of its step were written.
    steps = [int(path.parent.name.partition("-")[2]) for path in run.path.glob("checkpoints/step-*/checkpoint.json")]
    return max(steps, default=-1)


def _points(run: StageRun, state: StageState) -> list[Point]:
    """The settled points of a stage in order; those of a complete one end with its results and its time, at step 0."""
    last = settled_step(run, state)  # before the lines are read: what is logged meanwhile is later
    points = []
    for row in itertools.takewhile(lambda row: row["step"] <= last, run.metrics.rows()):
        time_ms = milliseconds(row["time"])
        values = {name: value for name, value in row.items() if name not in RESERVED}
        points += [Point(f"{run.stage}/{metric_name(n)}", v, time_ms, row["step"]) for n, v in scalars(values, "/")]
    if state.state == "COMPLETE":
        time_ms = milliseconds(state.status.finished_at or 0)
        curves = {point.name for point in points}
        for name, value in scalars(run.results(), "/"):
            # A final score must not become one more point of the curve with its name.
            full = f"{run.stage}/{metric_name(name)}"
            full = f"{run.stage}/final_{metric_name(name)}" if full in curves else full
            # Step 0, at which MLflow draws bars to compare; at any other step, an empty plot with one dot.
            points.append(Point(full, value, time_ms, 0))
        points.append(Point(f"time/{run.stage}_minutes", state.status.wall_seconds / 60, time_ms, 0))
    return points


def read_study(runs: Path, study: StudyRecord, states: Sequence[RunState]) -> View:
    """A study as a whole, above its runs, which are in these states: what it asks, how far it is, and its report."""
    done = sum(state.state == "COMPLETE" for state in states)
    is_complete = done == len(study.runs)
    found = {state.state for state in states}
    started_ms, ended_ms = _times(states)
    tags = {
        "realm.kind": "study",
        "realm.study": study.name,
        "realm.question": study.question,
        "realm.baseline": study.baseline,
        "realm.progress": f"{done} of {len(study.runs)} runs complete",
        "realm.state": "COMPLETE" if is_complete else next((s for s in STATES[:-1] if s in found), "PENDING"),
        "mlflow.source.name": "realm_lab",
    }
    folder = runs.parent / "reports" / study.name
    reported = [*folder.glob("report.md"), *folder.glob("results.csv"), *folder.glob("figures/*.png")]
    return View(
        key=STUDY_KEY,
        name=study.name,
        state=tags["realm.state"],
        started_ms=started_ms,
        ended_ms=ended_ms if is_complete else None,
        note=f"**{study.question}**",
        tags={name: cut(value, MAX_TAG) for name, value in tags.items()},
        files={"study.json": study_folder(runs, study.name) / "study.json"}
        | {path.relative_to(folder).as_posix(): path for path in reported},
    )


def changes_of(cell: StudyCell, study: StudyRecord) -> str:
    """What a cell changes in the baseline: "pretrain.masking = random_token, pretrain.steps = 100"."""
    system = {"system": cell.system} if cell.system != study.cell(study.baseline).system else {}
    return ", ".join(f"{name} = {show(value)}" for name, value in (system | cell.changes).items()) or "nothing"


def metric_name(name: str) -> str:
    """A name MLflow takes: letters, digits and _ - . / : blank; recall@5 becomes recall_at_5."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_").replace("%", "percent"))[:MAX_NAME].strip("/")


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
