"""MLflow's side of the mirror: a view becomes a run of an experiment. Only this file writes to MLflow.

MLflow can add points and parameters but not take them back: a run with content that its view no longer has, or that a
mirror did not finish, is deleted (to MLflow's trash) and made again. Tags and notes that people typed are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from realm_lab.errors import UserError
from realm_lab.lab.tracking.views import DataInput, View
from realm_lab.records.files import atomic_write, digest_file, write_text
from realm_lab.records.tracking_store import (
    MAX_RUNS,
    MLFLOW_SETTINGS,
    check_database,
    is_server,
    one_line,
    without_password,
)

os.environ.update(MLFLOW_SETTINGS | os.environ)  # before the import below

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT
from sqlalchemy.exc import SQLAlchemyError

MAX_METRICS, MAX_PARAMS = 900, 100  # of one log_batch call, which takes a thousand of both together
STATUS_OF = {
    "PENDING": "SCHEDULED",
    "QUEUED": "SCHEDULED",
    "RUNNING": "RUNNING",
    "PREEMPTED": "KILLED",
    "CANCELLED": "KILLED",
    "LOST": "FAILED",
    "FAILED": "FAILED",
    "COMPLETE": "FINISHED",
}
PREFIX = "realm_lab/"  # start of the names of experiments
OURS = ("realm.", "mlflow.")  # the mirror writes tags that start with these; people write all others
NOTE = "mlflow.note.content"
KEPT = "\n\n---\n*What you write below this line is kept.*\n"  # in a note, between the generated and the user's part
# The interface hides tags under "mlflow."; these are only for the mirror.
MARK = "mlflow.realm_lab.mirrored"  # `_mark_of` the sent view, as JSON; empty while sending
KEY = "mlflow.realm_lab.key"
SOURCE = "mlflow.realm_lab.source"  # id of the folder of runs, since several may share a server
GIVEN = "mlflow.realm_lab.tags"  # names of further tags that the mirror sets: those of the study

StoreError = MlflowException  # the store refused something or does not answer


class Store:
    """One tracking store of MLflow, for one folder of runs with the id `source`. UserError: it cannot be opened."""

    def __init__(self, uri: str, source: str, page: Callable[[Path], str] | None = None) -> None:
        self._page = page  # a report.md as HTML
        self.uri = without_password(uri)
        self.points = 0  # sent so far
        self._is_server, self._source = is_server(uri), source
        if not self._is_server:
            check_database(uri)
        try:
            _make_database(uri)
            self._client = MlflowClient(tracking_uri=uri)
            self._client.search_experiments(max_results=1)
        except (MlflowException, SQLAlchemyError) as error:
            raise UserError(f"tracking store {self.uri}: {one_line(error)}") from None

    def experiment(self, name: str, note: str, artifacts: Path, tags: Mapping[str, str] | None = None) -> str:
        """Return the id of the experiment realm_lab/`name`, created or restored from the trash if needed.

        `artifacts`: the folder for files of a database without a server. `tags` are kept up to date; `note` is set only
        when the experiment is created.
        """
        tags = tags or {}
        found = self._client.get_experiment_by_name(PREFIX + name)
        if found is None:
            location = None if self._is_server else artifacts.as_uri()
            # Without its kind the interface asks what sort of experiment this is.
            first = {NOTE: note, "mlflow.experimentKind": "custom_model_development", **tags}
            return str(self._client.create_experiment(PREFIX + name, artifact_location=location, tags=first))
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        for tag in (tag for tag in tags if found.tags.get(tag) != tags[tag]):
            self._client.set_experiment_tag(found.experiment_id, tag, tags[tag])
        return str(found.experiment_id)

    def experiments(self) -> list[str]:
        """Return the studies that have an experiment outside the trash."""
        found = self._client.search_experiments(filter_string=f"name LIKE '{PREFIX}%'")
        return [experiment.name.removeprefix(PREFIX) for experiment in found]

    def shown(self, experiment: str) -> dict[str, Run]:
        """Return key of a view -> the run that shows it, for all views of this source in an experiment."""
        ours = f"tags.`{SOURCE}` = '{self._source}'"
        found = self._client.search_runs([experiment], filter_string=ours, max_results=MAX_RUNS)
        return {run.data.tags.get(KEY, ""): run for run in found}

    def show(self, experiment: str, run: Run | None, view: View) -> str:
        """Make MLflow show `view`. `run`: MLflow's run that shows it so far, if there is one. Returns the action:
        created, updated, recreated or nothing."""
        before = dict(run.data.tags) if run else {}
        tags = view.tags | {KEY: view.key, SOURCE: self._source, NOTE: _note(view.note, before.get(NOTE, ""))}
        tags[GIVEN] = json.dumps([name for name in view.tags if not name.startswith(OURS)])
        what = "created"
        if run is not None:
            if not _contradicts(run, view):
                return "updated" if self._fill(run, view, tags) else "nothing"
            self.delete(run)
            what = "recreated"
            tags |= {name: before[name] for name in before if not name.startswith(OURS) and name not in _given(before)}
            tags |= {name: before[name] for name in ("mlflow.runColor",) if name in before}  # people choose it
        run = self._client.create_run(experiment, start_time=view.started_ms, tags=tags, run_name=view.name)
        self._fill(run, view, tags)
        return what

    def delete(self, run: Run) -> None:
        """Move a run to MLflow's trash, and delete its models."""
        for output in self._outputs(run):
            self._client.delete_logged_model(output.model_id)
        self._client.delete_run(run.info.run_id)

    def _fill(self, run: Run, view: View, tags: dict[str, str]) -> bool:
        """Add missing content, delete tags that the view lacks, and set the status last. True if anything changed."""
        run_id, client, shown = run.info.run_id, self._client, run.data.tags
        is_new = _mark(run) != _mark_of(view)
        if is_new:
            self._send(run, view)
        late = [RunTag(name, value) for name, value in tags.items() if shown.get(name) != value]
        if late:
            client.log_batch(run_id, tags=late)
        given = _given(shown)
        stale = [name for name in shown if (name.startswith("realm.") or name in given) and name not in tags]
        for name in stale:
            client.delete_tag(run_id, name)
        status, ended = STATUS_OF[view.state], view.ended_ms or run.info.end_time
        is_moved = (run.info.run_name, run.info.status, run.info.end_time) != (view.name, status, ended)
        if is_moved:
            client.update_run(run_id, status=status, name=view.name)
            if view.ended_ms is not None:
                client.set_terminated(run_id, status=status, end_time=view.ended_ms)
        return bool(is_new or late or stale or is_moved)

    def _send(self, run: Run, view: View) -> None:
        """Send parameters, points and files that the run does not have yet; mark it as half done meanwhile."""
        run_id, client, mark, wanted = run.info.run_id, self._client, _mark(run), _mark_of(view)
        if mark:
            client.set_tag(run_id, MARK, "")
        params = [Param(name, value) for name, value in view.params.items() if name not in run.data.params]
        sent = {stage: count for stage, (count, _) in mark.get("points", {}).items()}
        new = [point for stage, points in view.points.items() for point in points[sent.get(stage, 0) :]]
        metrics = [Metric(point.name, point.value, point.time_ms, point.step) for point in new]
        for number in range(max(-(-len(metrics) // MAX_METRICS), -(-len(params) // MAX_PARAMS))):
            some = metrics[number * MAX_METRICS : (number + 1) * MAX_METRICS]
            client.log_batch(run_id, some, params[number * MAX_PARAMS : (number + 1) * MAX_PARAMS])
        if view.inputs and not mark.get("inputs"):
            client.log_inputs(run_id, [_dataset_input(data) for data in view.inputs])
        self.points += len(metrics)
        known = mark.get("files", {})
        with tempfile.TemporaryDirectory() as scratch:  # one call for all: MLflow takes a folder
            for name in (name for name in view.files if known.get(name) != wanted["files"][name]):
                target = Path(scratch) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if name.endswith(".html") and self._page:
                    write_text(target, self._page(view.files[name]))
                else:
                    shutil.copyfile(view.files[name], target)
            for name in (name for name in view.texts if known.get(name) != wanted["files"][name]):
                write_text(Path(scratch) / name, view.texts[name])
            client.log_artifacts(run_id, scratch)
        if view.model and not mark.get("model"):
            self._send_model(run, view.model)
        client.set_tag(run_id, MARK, json.dumps(wanted))

    def register(self, run: Run, folder: Path, name: str, tags: dict[str, str]) -> str:
        """Register the model of a run, in `folder`, as a version of the model `name` with the alias `best`, unless that
        version exists; returns the version. A model that is too large to be sent with each run is sent now."""
        client, outputs = self._client, self._outputs(run)
        model = client.get_logged_model(outputs[0].model_id if outputs else self._send_model(run, folder))
        if not client.search_registered_models(filter_string=f"name = '{name}'"):
            client.create_registered_model(name)
        versions = client.search_model_versions(f"name = '{name}'")
        found = next((version for version in versions if version.source == model.artifact_location), None)
        found = found or client.create_model_version(name, model.artifact_location, run.info.run_id, tags)
        client.set_registered_model_alias(name, "best", found.version)
        return str(found.version)

    def _outputs(self, run: Run) -> list[LoggedModelOutput]:
        """The models of a run; read again, since the search for runs leaves them out in MLflow 3.0 and 3.1."""
        found = self._client.get_run(run.info.run_id).outputs
        return list(found.model_outputs) if found else []

    def _send_model(self, run: Run, folder: Path) -> str:
        """Log the trained model as a logged model of the run; partial ones of a killed mirror are deleted."""
        experiment, run_id, client = run.info.experiment_id, run.info.run_id, self._client
        for left in client.search_logged_models([experiment], filter_string=f"source_run_id = '{run_id}'"):
            client.delete_logged_model(left.model_id)
        name = re.sub(r"[/:.%'\"]", "-", run.info.run_name)
        model = client.create_logged_model(experiment, name, source_run_id=run_id, model_type="REALM")
        client.log_model_artifacts(model.model_id, str(folder))
        client.finalize_logged_model(model.model_id, "READY")
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
        return str(model.model_id)


def _make_database(uri: str) -> None:
    """Create all tables of a new SQLite file at once: MLflow cannot continue if it was killed while making them."""
    path = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:///") and path.is_file() and not path.stat().st_size:  # `check_database` made it
        with tempfile.TemporaryDirectory() as scratch:
            made = Path(scratch) / path.name
            MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments(max_results=1)
            with atomic_write(path, "wb") as file:
                file.write(made.read_bytes())


def _note(ours: str, shown: str) -> str:
    """Return the generated note `ours` with a person's text below it: the part below the line in the note `shown`, or
    all of `shown` if it has no such line."""
    _, line, theirs = shown.partition(KEPT)
    return ours + KEPT + (theirs if line else shown)


def _mark(run: Run) -> dict[str, Any]:
    """Return the counts and digests of `_mark_of` for the view that a run shows; {} if a mirror did not finish it."""
    return dict(json.loads(run.data.tags.get(MARK) or "{}"))


def _mark_of(view: View) -> dict[str, Any]:
    """Return counts and digests of a view: of the points of each stage, the files and the inputs."""
    points = {stage: [len(points), _digest(points)] for stage, points in view.points.items()}
    files = {name: digest_file(path)[:8] for name, path in view.files.items()}
    files |= {name: hashlib.sha256(text.encode()).hexdigest()[:8] for name, text in view.texts.items()}
    inputs = _digest(view.inputs) if view.inputs else ""
    return {"points": points, "files": files, "inputs": inputs, "model": view.model is not None}


def _digest(rows: Sequence[tuple[Any, ...]]) -> str:
    return hashlib.sha256(repr([tuple(row) for row in rows]).encode()).hexdigest()[:16]


def _dataset_input(data: DataInput) -> DatasetInput:
    """A data set as a run's input, with its counts as the profile."""
    columns = [{"name": name, "type": "string"} for name in data.columns]
    schema, profile = json.dumps({"mlflow_colspec": columns}), json.dumps(data.counts)
    dataset = Dataset(data.name, data.digest, "local", json.dumps({"uri": data.source}), schema, profile)
    return DatasetInput(dataset, [InputTag(MLFLOW_DATASET_CONTEXT, data.use)])


def _given(tags: Mapping[str, str]) -> list[str]:
    """Return the names of the tags that the mirror set on a run in addition to its fixed ones."""
    return list(json.loads(tags.get(GIVEN, "[]")))


def _contradicts(run: Run, view: View) -> bool:
    """True if `run` shows content that its folder no longer has, or was left half done."""
    mark = _mark(run)
    if not mark or run.info.start_time != view.started_ms or not mark["files"].keys() <= {*view.files, *view.texts}:
        return True
    if any(view.params.get(name) != value for name, value in run.data.params.items()):
        return True
    if mark.get("inputs") and view.inputs and mark["inputs"] != _digest(view.inputs):
        return True
    return any(
        _digest(view.points.get(stage, [])[:count]) != digest for stage, (count, digest) in mark["points"].items()
    )
