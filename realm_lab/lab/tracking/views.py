"""Views of a run and of a study for MLflow, read from run directories and study.json. No MLflow here."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.engine.params.load import flatten
from realm_lab.errors import UserError
from realm_lab.lab.tracking.saved_view import HEADLINES
from realm_lab.records.code_record import CodeStates, accepted_lines, changes_line
from realm_lab.records.computed import computed_values
from realm_lab.records.files import read_object
from realm_lab.records.metric_log import RESERVED, scalars
from realm_lab.records.metrics import METRICS
from realm_lab.records.parameters import show
from realm_lab.records.run import KEY_LENGTH, Run, StageRun, read_run, run_paths
from realm_lab.records.run_values import run_values
from realm_lab.records.state import STATES, StageState, StageStates
from realm_lab.records.study import DEFAULT, STUDY_RECORD, Studies, StudyCell, StudyRecord, study_folder
from realm_lab.records.validation import cut

UNPLANNED = "unplanned"  # the experiment of runs that no study mentions
STUDY_KEY = "study"  # key of the view of a study as a whole; keys of runs are digests
MAX_NAME, MAX_PARAM, MAX_TAG = 250, 6000, 5000  # of MLflow 3 (mlflow/utils/validation.py)
BEGINNINGS = ("prepare", "warm_start")  # stages that runs share: not part of a run's duration
HEADLINE = "headline"  # key in `points`, next to stages, of metrics without a stage in their name
SYSTEM = "system"  # the folder that MLflow's page of a run shows as system metrics
VALUES = "values.json"  # the table of everything that was measured once
COSTS = ("wall_seconds", "device_hours", "training_teraflop", "peak_memory_gibibytes", "parameters")
# data set -> what it is used for, the names of its files in corpus.files, and the columns of its rows
DATA_SETS = {
    "corpus": ("training", ("knowledge", "knowledge_updated", "pretrain"), ("id", "title", "body")),
    "questions": ("evaluation", ("questions_train", "questions_dev", "questions_test"), ("id", "question", "answers")),
}
MODEL_BYTES = 100 * 2**20  # a larger model stays only in runs/


class Point(NamedTuple):
    """One value of one metric; `time_ms` is unix time."""

    name: str
    value: float
    time_ms: int
    step: int


@dataclass(frozen=True)
class View:
    """A run, or a study, as MLflow shows it.

    `points`: stage -> its points in order, only those that a resumed stage cannot take back. `ended_ms` is None as
    long as the run may continue.
    """

    key: str
    name: str
    state: str
    started_ms: int | None
    ended_ms: int | None
    note: str  # Markdown
    tags: dict[str, str]
    params: dict[str, str] = field(default_factory=dict)
    inputs: tuple[DataInput, ...] = ()
    points: dict[str, list[Point]] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)  # artifact path -> file
    texts: dict[str, str] = field(default_factory=dict)  # artifact path -> content
    model: Path | None = None  # the trained model's folder, once the run is complete
    study: StudyRecord | None = None  # only in the view of a study as a whole


Group = tuple[StudyRecord | None, list[Run]]  # a study, None for runs of no study, and its runs


def read_groups(studies: Studies, problems: list[str]) -> dict[str, Group]:
    """Return experiment -> study and its runs. Errors of unreadable records are added to `problems`."""
    runs = studies.runs
    records: dict[str, Run] = {}
    for path in run_paths(runs):
        with noted(problems):
            records[path.parent.name] = read_run(path)
    groups: dict[str, Group] = {}
    states, planned = StageStates(runs), set[str]()
    for name in studies.names():
        with noted(problems):
            for shown in studies.read(name).with_trials:
                planned |= {run.name for run in shown.runs}
                members = groups.setdefault(shown.name, (shown, []))[1]
                for run in shown.runs:
                    if run.name in records:
                        with noted(problems):
                            members.append(states.look(shown.member(run, records[run.name])))
                    elif name != DEFAULT:  # `default` follows params.yaml, and may not have run yet
                        problems.append(f"{study_folder(runs, name)}: no run {run.name}; plan the study again")
    if left := [run for name, run in records.items() if name not in planned]:
        groups[UNPLANNED] = None, []
        for run in left:
            with noted(problems):
                groups[UNPLANNED][1].append(states.look(replace(run, cell=run.system)))
    return groups


@contextlib.contextmanager
def noted(problems: list[str]) -> Iterator[None]:
    """Add a UserError inside to `problems`, and go on."""
    try:
        yield
    except UserError as error:
        problems.append(str(error))


def view_of(run: Run, study: StudyRecord | None, codes: CodeStates | None = None) -> View:
    """Return the view of one run.

    UserError: a file of the run is broken; the message names it.
    """
    runs, stages = run.runs, run.begun()
    cell = study.cell(run.cell) if study else None
    flags = [f"{stage}: {flag}" for stage, flag in run.flags]
    environments = [stage.environment() for stage in stages.values()]
    used = (codes or CodeStates(runs)).of_run(run.folders(runs))
    others = [one for one in used if one.changes]
    tags = {
        "realm.kind": "run",
        "realm.run_key": run.run_key,
        "realm.variant": run.cell,
        "realm.seed": str(run.seed),
        "realm.system": run.system,
        "realm.study": study.name if study else "",
        "realm.changes": changes_of(cell, study) if study and cell else "",
        # commit and user of the last stage that recorded them: stages before it may be older and shared
        "realm.git_commit": next((e["git_commit"] for e in reversed(environments) if e.get("git_commit")), ""),
        "mlflow.user": next((e["user"] for e in reversed(environments) if e.get("user")), ""),
        "realm.state": run.state,
        "realm.flags": "; ".join(flags),
        "realm.other_code": changes_line(others, 1) if others else "",
        "realm.accepted_code": " ".join(accepted_lines(used)),
        "realm.error": run.error or "",
        "mlflow.source.name": "realm_lab",
        "mlflow.loggedArtifacts": json.dumps([{"path": VALUES, "type": "table"}]),
    }
    tags |= study.tags if study else {}
    mark = "COLLAPSED " if run.has_collapsed else "FLAGGED " if flags else ""
    files = {"run.json": runs / run.name / "run.json"}
    for stage, one in stages.items():
        names = ("config.yaml", "env.json", "results.json", "eval/predictions.jsonl")
        files |= {f"{stage}/{name}": one.path / name for name in names if (one.path / name).exists()}
    everything = flatten({**run.params, "inputs": {"corpus": run.corpus_key}})
    variant = " · ".join(cell.points.values()) if cell and cell.points else run.cell  # with axes, only the points
    params = flatten(run.params) | {"seed": run.seed, "system": run.system, "variant": variant}
    points = {stage: _points(one, run.states[stage]) for stage, one in stages.items()}
    started_ms, ended_ms = _own_times(run)
    model = None
    if run.state == "COMPLETE":
        computed, reasons = computed_values(study.own_metrics, stages) if study else ({}, {})
        compared = study.metrics if study else ()
        points = {HEADLINE: _headline(stages, computed, compared, _times([run])[1] or 0)} | points
        tags["realm.problems"] = "; ".join(f"{name}: {why}" for name, why in reasons.items())
        model = trained_model(stages)
    if model and sum(path.stat().st_size for path in model.rglob("*")) > MODEL_BYTES:
        model = None
    return View(
        key=run.run_key,
        name=mark + (f"{variant}-s{run.seed}" if study else run.name),
        state=run.state,
        started_ms=started_ms or (_planned(run) if study else None),
        ended_ms=ended_ms if run.state in ("COMPLETE", "FAILED") else None,
        note=f"Record: `runs/{run.name}/run.json`",
        tags={name: cut(value, MAX_TAG) for name, value in tags.items() if value},
        params={metric_name(name): cut(show(value), MAX_PARAM) for name, value in params.items()},
        inputs=data_inputs(run),
        points=points,
        files=files,
        texts={
            "params.yaml": "".join(f"{name}: {json.dumps(value)}\n" for name, value in everything.items()),
            VALUES: _values(stages, run),
        },
        model=model,
    )


def trained_model(stages: dict[str, StageRun]) -> Path | None:
    """The folder of the model of the last stage that has one."""
    return next((run.path / "model" for run in reversed(stages.values()) if (run.path / "model").is_dir()), None)


def _headline(
    stages: dict[str, StageRun], computed: dict[str, float], of_study: Sequence[str], time_ms: int
) -> list[Point]:
    """Return metrics of a complete run, named as in results.csv: headline metrics, those on development data, those
    that its study compares, and costs as `system/NAME`."""
    values = run_values(stages) | computed
    names = {metric.name: metric.name for metric in METRICS.values() if metric.headline or metric.split == "dev"}
    names |= {name: f"{SYSTEM}/{name}" for name in COSTS}
    names |= {name: name for name in of_study if name not in names}
    return [Point(metric_name(shown), values[name], time_ms, 0) for name, shown in names.items() if name in values]


def _values(stages: dict[str, StageRun], run: Run) -> str:
    """Everything that the complete stages of a run measured once, as a table of MLflow."""
    rows: list[list[str | float]] = []
    for stage, one in stages.items():
        if run.states[stage].state == "COMPLETE":
            rows += [[stage, name, value] for name, value in scalars(one.results(), "/")]
            rows.append([stage, "minutes", run.states[stage].status.wall_seconds / 60])
    return json.dumps({"columns": ["stage", "name", "value"], "data": rows})


def _own_times(run: Run) -> tuple[int | None, int | None]:
    """Return the start of the run's first unshared stage, and the end if its unshared stages had run without a pause.
    Before the first one has started, shared stages count, so that the run is visible from its start."""
    begun = {name: stage.status for name, stage in run.states.items() if stage.status.started_at}
    counted = [status for name, status in begun.items() if name not in BEGINNINGS] or list(begun.values())
    if not counted:
        return None, None
    started = min(status.started_at or 0.0 for status in counted)
    return milliseconds(started), milliseconds(started + sum(status.wall_seconds for status in counted))


def _planned(run: Run) -> int:
    """Return the time when a run was recorded, shown as its start until one of its stages has started."""
    return milliseconds((run.runs / run.name / "run.json").stat().st_mtime)


def _times(runs: Sequence[Run]) -> tuple[int | None, int | None]:
    """Return the start of the first stage of these runs, and the end of the last one, if there is one."""
    known = [stage.status for run in runs for stage in run.states.values()]
    started = [status.started_at for status in known if status.started_at]
    ended = [status.finished_at for status in known if status.finished_at]
    return milliseconds(min(started)) if started else None, milliseconds(max(ended)) if ended else None


def settled_step(run: StageRun, state: StageState) -> float:
    """Return the step up to which the points of a stage are final; -1 if none is.

    A stage that resumes starts at its newest checkpoint and cuts off later points. One that is complete, or
    failed by an error, ends as it is (until it is run again on purpose).
    """
    if state.state in ("COMPLETE", "FAILED"):
        return math.inf
    # A checkpoint is published by rename, after the points of its step were written.
    steps = [int(path.parent.name.partition("-")[2]) for path in run.path.glob("checkpoints/step-*/checkpoint.json")]
    return max(steps, default=-1)


def _points(run: StageRun, state: StageState) -> list[Point]:
    """The settled points of a stage in order."""
    last = settled_step(run, state)  # before the lines are read: lines logged meanwhile are later
    points = []
    for row in itertools.takewhile(lambda row: row["step"] <= last, run.metrics.rows()):
        time_ms = milliseconds(row["time"])
        values = {name: value for name, value in row.items() if name not in RESERVED}
        points += [Point(f"{run.stage}/{metric_name(n)}", v, time_ms, row["step"]) for n, v in scalars(values, "/")]
    return points


def read_study(runs: Path, study: StudyRecord, members: Sequence[Run]) -> View:
    """Return the view of a study, above its runs: its question, progress, the means of its cells, and its report."""
    done = sum(run.state == "COMPLETE" for run in members)
    is_complete = done == len(study.runs)
    found = {run.state for run in members}
    started_ms, ended_ms = _times(members)
    if started_ms is None:
        started_ms = min(map(_planned, members), default=None)
    tags = {
        "realm.kind": "study",
        "realm.study": study.name,
        "realm.question": study.question,
        "realm.baseline": study.baseline,
        "realm.progress": f"{done} of {len(study.runs)} runs complete",
        "realm.state": "COMPLETE" if is_complete else next((s for s in STATES[:-1] if s in found), "PENDING"),
        "mlflow.source.name": "realm_lab",
        "mlflow.user": _users(members),
        **study.tags,
    }
    folder = runs.parent / "reports" / study.name
    reported = [*folder.glob("report.md"), *folder.glob("results.csv"), *folder.glob("figures/*.png")]
    return View(
        key=STUDY_KEY,
        name=study.name,
        state=tags["realm.state"],
        started_ms=started_ms,
        ended_ms=ended_ms if is_complete else None,
        note=f"**{study.question}**" + (f"\n\n{study.note}" if study.note else ""),
        tags={name: cut(value, MAX_TAG) for name, value in tags.items() if value},
        points={cell.name: _means(study, cell.name, members) for cell in study.cells},
        files={path.relative_to(folder).as_posix(): path for path in reported},
        texts={"study.json": STUDY_RECORD.dump_json(study, indent=2).decode()},
        study=study,
    )


def _users(members: Sequence[Run]) -> str:
    """Return the users that ran any stage of these runs."""
    users: set[str] = set()
    for member in members:
        with contextlib.suppress(UserError):  # a broken file is named where its run is read
            users |= {stage.environment().get("user") or "" for stage in member.begun().values()}
    return ", ".join(sorted(users - {""}))


def _means(study: StudyRecord, cell: str, members: Sequence[Run]) -> list[Point]:
    """Return `VARIANT/exact_match` and the like, means over the seeds of a cell, once all its runs are complete."""
    of_cell = [member for member in members if member.cell == cell]
    if not of_cell or len(of_cell) != len(study.of(cell)) or any(member.state != "COMPLETE" for member in of_cell):
        return []
    time_ms = _times(of_cell)[1] or 0
    try:
        found = [dict(scalars(member.folder([*member.keys()][-1]).results())) for member in of_cell]
    except UserError:  # a broken file is named where its run is read
        return []
    means = {name: [values[key] for values in found if (key := METRICS[name].key) in values] for name in HEADLINES}
    return [Point(f"{metric_name(cell)}/{n}", sum(v) / len(v), time_ms, 0) for n, v in means.items() if v]


def changes_of(cell: StudyCell, study: StudyRecord) -> str:
    """Describe the changes of a cell: "pretrain.masking = random_token, pretrain.steps = 100"."""
    system = {"system": cell.system} if cell.system != study.cell(study.baseline).system else {}
    return ", ".join(f"{name} = {show(value)}" for name, value in (system | cell.changes).items()) or "nothing"


@functools.cache
def metric_name(name: str) -> str:
    """Return a name that MLflow accepts: letters, digits and _ - . / : blank; recall@5 becomes recall_at_5."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_").replace("%", "percent"))[:MAX_NAME].strip("/")


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


class DataInput(NamedTuple):
    """A data set that a run used. `use`: training or evaluation. `counts`: part of it -> number of records."""

    name: str
    digest: str
    use: str
    source: str
    columns: tuple[str, ...]
    counts: dict[str, int]


def data_inputs(run: Run) -> tuple[DataInput, ...]:
    """The corpus and the questions of a run, once they are prepared. UserError: a broken file; the message names it."""
    key, path = run.corpus_key, run.folder("prepare").path / "results.json"
    if not path.exists():
        return ()
    counts: dict[str, int] = read_object(path)["counts"]
    corpus: dict[str, Any] = run.params["corpus"]
    source = corpus["source"]["name"] if isinstance(corpus["source"], Mapping) else corpus["source"]
    found = []
    for part, (use, names, columns) in DATA_SETS.items():
        files = [file for name in names for file in corpus["files"][name]] if source == "files" else []
        is_of_part = {name: name.startswith("questions") == (part == "questions") for name in counts}
        found.append(
            DataInput(
                name=f"{source} {part}",
                digest=key[:KEY_LENGTH],
                use=use,
                source=", ".join(dict.fromkeys(files)) or f"runs/corpora/{key[:KEY_LENGTH]}",
                columns=columns,
                counts={name: count for name, count in counts.items() if is_of_part[name]},
            )
        )
    return tuple(found)
