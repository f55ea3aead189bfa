"""MLflow as a view of run folders. This is the only file that imports mlflow.

Whatever the view shows can be built again from runs/. MLflow can add points but not take them back, so a run
whose folder contradicts its view (metrics cut back by a resumed run, a changed parameter) is shown anew and the
old view goes to MLflow's trash.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from realm_lab.errors import UserError
from realm_lab.tracking.run_dir import RunRecord, read_run_record, run_record_paths, run_state
from realm_lab.tracking.run_view import FLAGS_TAG, RunView, read_run, rows_digest, run_color

# Before the import below: MLflow reads these when it is loaded.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
# An unreachable server is an answer, not a reason to wait for minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

# Limits of one log_batch call (mlflow/utils/validation.py).
MAX_METRICS = 1000
MAX_PARAMS = 100
MAX_DATASET_DIGEST = 36
STATUS_OF = {
    "COMPLETE": "FINISHED",
    "FAILED": "FAILED",
    "RUNNING": "RUNNING",
    "PREEMPTED": "KILLED",
    "PENDING": "SCHEDULED",
}
FINAL = ("COMPLETE", "FAILED")
# The interface hides tags under "mlflow."; these two are for the mirror alone.
MARK = "mlflow.realm_lab.mirrored"
FILES_MARK = "mlflow.realm_lab.files"


@dataclass(frozen=True)
class MirrorSummary:
    """What a mirroring did. `problems`: one line for each record or run that could not be shown."""

    uri: str
    states: dict[str, int]
    created: int = 0
    updated: int = 0
    rebuilt: int = 0
    waiting: int = 0  # not started yet, hence not in MLflow
    points: int = 0
    problems: tuple[str, ...] = ()

    @property
    def runs(self) -> int:
        """Readable records."""
        return sum(self.states.values())

    def __str__(self) -> str:
        states = ", ".join(f"{count} {state.lower()}" for state, count in sorted(self.states.items()))
        text = f"{self.runs} runs ({states or 'none'}) in {self.uri}: {self.created} new, {self.updated} updated"
        text += f", {self.rebuilt} shown anew" if self.rebuilt else ""
        text += f", {self.points} points sent"
        return text + (f"; {len(self.problems)} not shown: {'; '.join(self.problems)}" if self.problems else "")


def mirror(runs: Path, uri: str | None = None, follow: bool = False, interval_seconds: float = 5.0) -> MirrorSummary:
    """Bring MLflow up to date with `runs`; with `follow`, again and again until all runs are final or Ctrl-C.

    `uri`: the tracking store; else MLFLOW_TRACKING_URI, else mlflow.db (with mlartifacts/) beside `runs`.

    Raises:
        UserError: no such folder, or a store that cannot be opened.
    """
    runs = Path(runs).resolve()
    if not runs.is_dir():
        raise UserError(f"{runs}: no such folder; train something first (dvc repro), or give --runs FOLDER")
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{runs.parent / 'mlflow.db'}"
    _prepare(uri)
    view = _Mirror(runs, uri)
    console = Console(stderr=True)
    live = console.status("mirroring") if follow and console.is_terminal else None
    with live or contextlib.nullcontext(), contextlib.suppress(KeyboardInterrupt):
        while True:
            view.update()
            counts = view.summary.states
            if not follow or (counts and all(state in FINAL for state in counts)):
                break
            if live:
                live.update(f"{view.summary} (every {interval_seconds:g} s; Ctrl-C stops)")
            time.sleep(interval_seconds)
    return view.summary


class _Mirror:
    """One process's view of one folder of runs; `update` may be called any number of times."""

    def __init__(self, runs: Path, uri: str) -> None:
        self.runs = runs
        self.summary = MirrorSummary(re.sub(r"//[^/@]*@", "//", uri), {})  # without a password
        self._experiments: dict[str, str] = {}
        self._shown: dict[str, object] = {}  # record name -> what its files looked like when last shown
        try:
            with self._alone():  # the first client of a new PostgreSQL database makes its tables
                self.client = MlflowClient(tracking_uri=uri)
                self.client.search_experiments(max_results=1)
        except MlflowException as error:
            raise UserError(f"tracking store {self.summary.uri}: {_one_line(error)}") from None

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """Two mirrors at once would both miss a run, and both make it."""
        return _lock(self.runs / ".mirror.lock")

    def update(self) -> None:
        """One pass over all records."""
        problems: list[str] = []
        states: Counter[str] = Counter()
        records: list[RunRecord] = []
        waiting = 0
        with self._alone():
            for path in run_record_paths(self.runs):
                try:
                    record = read_run_record(path)
                    states[run_state(self.runs, record)] += 1
                    records.append(record)
                except UserError as error:
                    problems.append(str(error))
            colors = _colors(records)
            # Looked at before reading: what is written meanwhile is seen the next time.
            looks = {record.name: self._look(record, colors[record.name]) for record in records}
            changed = [record for record in records if self._shown.get(record.name) != looks[record.name]]
            known = {study: self._known(study) for study in sorted({record.study for record in changed})}
            for record in changed:
                try:
                    view = read_run(self.runs, record, colors[record.name])
                    if view.started_ms is None:
                        waiting += 1
                        continue
                    self._show(view, known[record.study].get(record.run_key))
                    self._shown[record.name] = looks[record.name]
                except UserError as error:
                    problems.append(str(error))
                except MlflowException as error:
                    problems.append(f"{record.name}: {_one_line(error)}")
        self.summary = replace(self.summary, states=dict(states), waiting=waiting, problems=tuple(problems))

    def _look(self, record: RunRecord, color: str) -> object:
        """Cheap to compute; different whenever something to show may have changed."""
        folders = [self.runs / record.name, *(self.runs / folder for folder in record.stages.values())]
        reports = self.runs.parent / "reports"
        folders += [reports / "figures", reports / record.study / "figures"]
        state = run_state(self.runs, record)  # changes without a file when a process is lost
        files = [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir()) if path.is_file()]
        try:
            stats = [path.stat() for path in files]
        except FileNotFoundError:  # a temporary file that was renamed meanwhile: look again
            return object()
        return state, color, files, [(stat.st_mtime_ns, stat.st_size) for stat in stats]

    def _experiment(self, study: str) -> str:
        if study not in self._experiments:
            name = f"realm_lab/{study}"
            found = self.client.get_experiment_by_name(name)
            if found and found.lifecycle_stage == "deleted":
                self.client.restore_experiment(found.experiment_id)
            self._experiments[study] = found.experiment_id if found else self._new_experiment(name, study)
        return self._experiments[study]

    def _new_experiment(self, name: str, study: str) -> str:
        # A bare database would put artifacts below the current folder; a server knows its own place.
        local = self.summary.uri.startswith("sqlite:")
        location = (self.runs.parent / "mlartifacts" / study).as_uri() if local else None
        note = (
            f"Runs of the study `{study}`, mirrored from `runs/` by `realm-lab mirror`; edits here are not kept. "
            "Group the runs by the tag `realm.label` to see the mean over seeds."
        )
        # Without its kind the interface asks what sort of experiment this is.
        tags = {"mlflow.note.content": note, "mlflow.experimentKind": "custom_model_development"}
        return self.client.create_experiment(name, artifact_location=location, tags=tags)

    def _known(self, study: str) -> dict[str, Run]:
        """run_key -> the run that shows it."""
        known: dict[str, Run] = {}
        token = None
        while True:
            page = self.client.search_runs(
                [self._experiment(study)], order_by=["attributes.start_time ASC"], max_results=1000, page_token=token
            )
            for run in page:
                if key := run.data.tags.get("realm.run_key"):
                    known.setdefault(key, run)
            token = page.token
            if not token:
                return known

    def _show(self, view: RunView, run: Run | None) -> None:
        """Make MLflow show `view`; `run` is what shows it so far."""
        if run is None:
            self._fill(self._create(view), view)
            self._count(created=1)
        elif run.info.start_time != view.started_ms or _contradicts(run, view):
            self.client.delete_run(run.info.run_id)
            self._fill(self._create(view), view)
            self._count(rebuilt=1)
        elif self._fill(run, view):
            self._count(updated=1)

    def _create(self, view: RunView) -> Run:
        tags = {key: value for key, value in view.tags.items() if key != "realm.state"}
        return self.client.create_run(
            self._experiment(view.record.study), start_time=view.started_ms, tags=tags, run_name=view.name
        )

    def _fill(self, run: Run, view: RunView) -> bool:
        """Add what is missing, the status last. True if anything was."""
        run_id = run.info.run_id
        params = [Param(key, value) for key, value in view.params.items() if key not in run.data.params]
        for start in range(0, len(params), MAX_PARAMS):
            self.client.log_batch(run_id, params=params[start : start + MAX_PARAMS])
        changed = bool(params)
        changed |= self._send_inputs(run, view)
        changed |= self._send_points(run, view)
        changed |= self._send_files(run, view)
        tags = [RunTag(key, value) for key, value in view.tags.items() if run.data.tags.get(key) != value]
        if tags:
            self.client.log_batch(run_id, tags=tags)
        if run.info.run_name != view.name:  # a run is flagged while it is under way
            self.client.update_run(run_id, name=view.name)
            changed = True
        status = STATUS_OF[view.state]
        ended = run.info.end_time if view.ended_ms is None else view.ended_ms
        if run.info.status != status or run.info.end_time != ended:
            if view.ended_ms is None:
                self.client.update_run(run_id, status=status)
            else:
                self.client.set_terminated(run_id, status=status, end_time=view.ended_ms)
            changed = True
        return changed or bool(tags)

    def _send_inputs(self, run: Run, view: RunView) -> bool:
        given_inputs = run.inputs.dataset_inputs if run.inputs else []
        shown = {(given.dataset.name, given.dataset.digest) for given in given_inputs}
        missing = [
            DatasetInput(
                Dataset(name, digest[:MAX_DATASET_DIGEST], "local", json.dumps({"sha256": digest})),
                tags=[InputTag("mlflow.data.context", "training")],
            )
            for name, digest in view.record.inputs.items()
            if (name, digest[:MAX_DATASET_DIGEST]) not in shown
        ]
        if missing:
            self.client.log_inputs(run.info.run_id, missing)
        return bool(missing)

    def _send_points(self, run: Run, view: RunView) -> bool:
        """Send the lines that MLflow has not got.

        The mark says, per stage, [lines surely there, lines possibly there, digest of the latter]. It is written
        before and after, so a mirror that dies in between is known by its mark; sending a point a second time is
        harmless as it is the same in all its fields (they are the key of MLflow's table).
        """
        mark = _mark(run)
        points = []
        for stage, rows in view.rows.items():
            sure = mark.get(stage, [0])[0]
            if sure < len(rows):
                mark[stage] = [sure, len(rows), rows_digest(rows)]
                points += [point for row in rows[sure:] for point in row]
        if all(sure == possible for sure, possible, _ in mark.values()):
            return False
        run_id = run.info.run_id
        self.client.set_tag(run_id, MARK, json.dumps(mark))
        metrics = [Metric(point.name, point.value, point.time_ms, point.step) for point in points]
        for start in range(0, len(metrics), MAX_METRICS):
            self.client.log_batch(run_id, metrics=metrics[start : start + MAX_METRICS])
        done = {stage: [possible, possible, digest] for stage, (_, possible, digest) in mark.items()}
        self.client.set_tag(run_id, MARK, json.dumps(done))
        self._count(points=len(points))
        return True

    def _send_files(self, run: Run, view: RunView) -> bool:
        digest = view.files_digest()
        if run.data.tags.get(FILES_MARK) == digest:
            return False
        with tempfile.TemporaryDirectory() as scratch:
            for name, path in view.files.items():
                target = Path(scratch) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            self.client.log_artifacts(run.info.run_id, scratch)
        self.client.set_tag(run.info.run_id, FILES_MARK, digest)
        return True

    def _count(self, **more: int) -> None:
        self.summary = replace(self.summary, **{key: getattr(self.summary, key) + n for key, n in more.items()})


def _contradicts(run: Run, view: RunView) -> bool:
    """True if `run` shows something that the folder no longer says and MLflow cannot take back."""
    if run.info.end_time is not None and view.ended_ms is None:
        return True
    if any(view.params.get(key) != value for key, value in run.data.params.items()):
        return True
    if FLAGS_TAG in run.data.tags and FLAGS_TAG not in view.tags:
        return True
    shown = ((view.rows.get(stage, []), possible, digest) for stage, (_, possible, digest) in _mark(run).items())
    return any(len(rows) < possible or rows_digest(rows[:possible]) != digest for rows, possible, digest in shown)


def _colors(records: list[RunRecord]) -> dict[str, str]:
    """Record name -> color, by the places of its label and seed in its study."""
    colors = {}
    for record in records:
        study = [other for other in records if other.study == record.study]
        labels = sorted({other.label for other in study}, key=lambda label: (label != "realm", label))
        seeds = sorted({other.seed for other in study})
        colors[record.name] = run_color(labels.index(record.label), seeds.index(record.seed))
    return colors


def _mark(run: Run) -> dict[str, list[Any]]:
    return json.loads(run.data.tags.get(MARK, "{}"))


def _prepare(uri: str) -> None:
    """Make the tables of a new SQLite database, once, even if two mirrors start together."""
    try:
        url = make_url(uri) if not uri.startswith(("http:", "https:")) else None
    except ArgumentError:
        url = None
        if "://" not in uri:
            raise UserError(
                f"tracking store '{uri}': write sqlite:////ABSOLUTE/mlflow.db or http://HOST:PORT"
            ) from None
    if url is None or not url.drivername.startswith("sqlite"):
        return
    if not url.database:
        raise UserError(f"tracking store '{uri}': a database in memory shows nothing; name a file")
    path = Path(url.database).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path.with_name(path.name + ".lock")):
        if not path.exists() or path.stat().st_size == 0:
            _initialise(path)
    _check(path)


def _initialise(path: Path) -> None:
    """A new database under its name only when it is whole: MLflow cannot repair a half-made one."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    scratch.unlink(missing_ok=True)
    try:
        command = [sys.executable, "-m", "mlflow", "db", "upgrade", f"sqlite:///{scratch}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"{path}: MLflow could not make its database ({_last_line(done.stderr)})")
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
    # This process may hold connections to a database of this name that was deleted.
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for engine in SqlAlchemyStore._engine_map.values():
        engine.dispose()


def _check(path: Path) -> None:
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            database.execute("select version_num from alembic_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise UserError(
            f"{path}: not a database of MLflow ({error}); delete it, it is built again from runs/"
        ) from None


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Wait for and hold a lock on this machine; the kernel frees it when the process dies."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")
