"""MLflow's side of the mirror: a view becomes a run of an experiment. This is the only file that imports mlflow.

MLflow can add points, parameters and end times but not take them back: a run that shows what its view no longer says
is shown anew, and the old one goes to MLflow's trash.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from realm_lab.errors import UserError
from realm_lab.tracking.tracking_store import (
    first_client_alone,
    hide_password,
    is_server,
    one_line,
    prepare,
    without_password,
)
from realm_lab.tracking.view import View, rows_digest

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
PREFIX = "realm_lab/"  # of experiments
OURS = ("realm.", "slurm.")  # tags that are taken away when they no longer hold
PARENT_TAG = "mlflow.parentRunId"
# The interface hides tags under "mlflow."; these are for the mirror alone.
MARK = "mlflow.realm_lab.mirrored"
FILES_MARK = "mlflow.realm_lab.files"
KEY_MARK = "mlflow.realm_lab.key"
SOURCE_MARK = "mlflow.realm_lab.source"  # whose view it is: several folders of runs may share a server


class StoreError(Exception):
    """The store refused something or does not answer; one line, without its password."""


class Store:
    """One tracking store, for the views of one `source`.

    Raises:
        UserError: a store that cannot be opened.
    """

    def __init__(self, uri: str, source: str) -> None:
        self.uri = without_password(uri)
        self._uri = uri
        self._source = source
        self._fresh: dict[str, Run] = {}  # by id: what `ids` has just read
        self.points = 0  # sent so far
        if prepare(uri):
            _forget_connections()
        try:
            with first_client_alone(uri):
                self._client = MlflowClient(tracking_uri=uri)
                self._client.search_experiments(max_results=1)
        except MlflowException as error:
            raise UserError(f"tracking store {self.uri}: {self._said(error)}") from None

    @contextlib.contextmanager
    def errors_in_one_line(self) -> Iterator[None]:
        """What MLflow raises becomes a StoreError."""
        try:
            yield
        except MlflowException as error:
            raise StoreError(self._said(error)) from error

    def _said(self, error: Exception) -> str:
        return hide_password(one_line(error), self._uri)

    def experiment(self, name: str, note: str, artifacts: Path) -> str:
        """The id of the experiment realm_lab/`name`, made or taken out of the trash if need be.

        `artifacts`: where a bare database keeps files, which would else be below the current folder.
        """
        found = self._client.get_experiment_by_name(PREFIX + name)
        if found is None:
            location = None if is_server(self._uri) else artifacts.as_uri()
            # Without its kind the interface asks what sort of experiment this is.
            tags = {"mlflow.note.content": note, "mlflow.experimentKind": "custom_model_development"}
            return str(self._client.create_experiment(PREFIX + name, artifact_location=location, tags=tags))
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def experiments(self) -> list[str]:
        """Names of this project's experiments that are not in the trash."""
        found = self._client.search_experiments(filter_string=f"name LIKE '{PREFIX}%'")
        return [experiment.name.removeprefix(PREFIX) for experiment in found]

    def ids(self, experiment: str) -> dict[str, str]:
        """View's key -> id of the run that shows it, for all that this source has in an experiment."""
        ids: dict[str, str] = {}
        token = None
        while True:
            page = self._client.search_runs(
                [experiment],
                filter_string=f"tags.`{SOURCE_MARK}` = '{self._source}'",
                order_by=["attributes.start_time ASC"],
                max_results=1000,
                page_token=token,
            )
            for run in page:
                ids.setdefault(run.data.tags.get(KEY_MARK, ""), run.info.run_id)
                self._fresh[run.info.run_id] = run
            token = page.token
            if not token:
                return ids

    def forget(self) -> None:
        """Read again what `ids` has read."""
        self._fresh.clear()

    def show(self, experiment: str, ids: dict[str, str], view: View, parent: str | None) -> str:
        """Make MLflow show `view`, below the run `parent`; `ids` are those of the experiment, and kept up to date.

        Returns:
            What was done: created, updated, rebuilt or nothing.
        """
        tags = view.tags | {KEY_MARK: view.key, SOURCE_MARK: self._source} | ({PARENT_TAG: parent} if parent else {})
        run = self._find(experiment, ids, view.key)
        if run is None:
            what = "created"
        elif run.info.start_time != view.started_ms or _contradicts(run, view):
            self._client.delete_run(run.info.run_id)
            what = "rebuilt"
        else:
            return "updated" if self._fill(run, view, tags) else "nothing"
        early = {key: value for key, value in tags.items() if key != "realm.state"}
        run = self._client.create_run(experiment, start_time=view.started_ms, tags=early, run_name=view.name)
        ids[view.key] = run.info.run_id
        self._fill(run, view, tags)
        return what

    def trash(self, run_id: str) -> None:
        """Move a run to the trash."""
        self._client.delete_run(run_id)

    def _find(self, experiment: str, ids: dict[str, str], key: str) -> Run | None:
        """The run that shows `key`; another mirror of this source may have made or replaced it since the last look."""
        for _ in range(2):
            if key in ids:
                with contextlib.suppress(MlflowException):
                    run = self._fresh.pop(ids[key], None) or self._client.get_run(ids[key])
                    if run.info.lifecycle_stage == "active":
                        return run
            ids.clear()
            ids.update(self.ids(experiment))
            if key not in ids:
                return None
        return None

    def _fill(self, run: Run, view: View, tags: dict[str, str]) -> bool:
        """Add what is missing, the status last. True if anything was."""
        run_id = run.info.run_id
        params = [Param(key, value) for key, value in view.params.items() if key not in run.data.params]
        for start in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + MAX_PARAMS])
        changed = bool(params)
        changed |= self._send_inputs(run, view)
        changed |= self._send_points(run, view)
        changed |= self._send_files(run, view)
        late = [RunTag(key, value) for key, value in tags.items() if run.data.tags.get(key) != value]
        if late:
            self._client.log_batch(run_id, tags=late)
        for key in [key for key in run.data.tags if key.startswith(OURS) and key not in tags]:
            self._client.delete_tag(run_id, key)
            changed = True
        if run.info.run_name != view.name:  # a run is flagged while it is under way
            self._client.update_run(run_id, name=view.name)
            changed = True
        status = STATUS_OF[view.state]
        ended = run.info.end_time if view.ended_ms is None else view.ended_ms
        if run.info.status != status or run.info.end_time != ended:
            if view.ended_ms is None:
                self._client.update_run(run_id, status=status)
            else:
                self._client.set_terminated(run_id, status=status, end_time=view.ended_ms)
            changed = True
        return changed or bool(late)

    def _send_inputs(self, run: Run, view: View) -> bool:
        given_inputs = run.inputs.dataset_inputs if run.inputs else []
        shown = {(given.dataset.name, given.dataset.digest) for given in given_inputs}
        missing = [
            DatasetInput(
                Dataset(name, digest[:MAX_DATASET_DIGEST], "local", json.dumps({"sha256": digest})),
                tags=[InputTag("mlflow.data.context", "training")],
            )
            for name, digest in view.inputs.items()
            if (name, digest[:MAX_DATASET_DIGEST]) not in shown
        ]
        if missing:
            self._client.log_inputs(run.info.run_id, missing)
        return bool(missing)

    def _send_points(self, run: Run, view: View) -> bool:
        """Send the settled lines that MLflow has not got.

        The mark says, per stage, [lines surely there, lines possibly there, digest of the latter]. It is written
        before and after, so a mirror that dies in between is known by its mark; sending a point a second time is
        harmless as it is the same in all its fields (they are the key of MLflow's table).
        """
        mark = _mark(run)
        points = []
        for stage, all_rows in view.rows.items():
            sure, possible = mark.get(stage, [0, 0])[:2]
            rows = all_rows[: max(view.settled[stage], possible)]
            if sure < len(rows):
                mark[stage] = [sure, len(rows), rows_digest(rows)]
                points += [point for row in rows[sure:] for point in row]
        if all(sure == possible for sure, possible, _ in mark.values()):
            return False
        run_id = run.info.run_id
        self._client.set_tag(run_id, MARK, json.dumps(mark))
        metrics = [Metric(point.name, point.value, point.time_ms, point.step) for point in points]
        for start in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(run_id, metrics=metrics[start : start + MAX_METRICS])
        done = {stage: [possible, possible, digest] for stage, (_, possible, digest) in mark.items()}
        self._client.set_tag(run_id, MARK, json.dumps(done))
        self.points += len(points)
        return True

    def _send_files(self, run: Run, view: View) -> bool:
        digest = view.files_digest()
        if run.data.tags.get(FILES_MARK) == digest:
            return False
        with tempfile.TemporaryDirectory() as scratch:
            for name, content in view.files.items():
                target = Path(scratch) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, Path):
                    shutil.copyfile(content, target)
                else:
                    target.write_text(content, encoding="utf-8")
            _remove_others(run, view)
            self._client.log_artifacts(run.info.run_id, scratch)
        self._client.set_tag(run.info.run_id, FILES_MARK, digest)
        return True


def _contradicts(run: Run, view: View) -> bool:
    """True if `run` shows something that the folder no longer says and MLflow cannot take back."""
    if any(view.params.get(key) != value for key, value in run.data.params.items()):
        return True
    shown = ((view.rows.get(stage, []), possible, digest) for stage, (_, possible, digest) in _mark(run).items())
    return any(len(rows) < possible or rows_digest(rows[:possible]) != digest for rows, possible, digest in shown)


def _mark(run: Run) -> dict[str, list[Any]]:
    return json.loads(run.data.tags.get(MARK, "{}"))


def _remove_others(run: Run, view: View) -> None:
    """Files of earlier times, which only a folder lets us take back."""
    place = urlsplit(run.info.artifact_uri)
    if place.scheme == "file":
        folder = Path(url2pathname(place.path))
        for path in folder.rglob("*"):
            if path.is_file() and path.relative_to(folder).as_posix() not in view.files:
                path.unlink()


def _forget_connections() -> None:
    """This process may hold connections to a database of the same name that was deleted."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for engine in SqlAlchemyStore._engine_map.values():
        engine.dispose()
