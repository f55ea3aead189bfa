"""MLflow as a tracker: each study has an experiment, with a run for the study as a whole and below it the runs. MLflow
as a registry: it gets the model of a study's best run by a development measure."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from realm_lab.errors import UserError, needs, suggestion
from realm_lab.lab.tracking.mirror import Tracker, TrackerError
from realm_lab.lab.tracking.saved_view import link, view_tag
from realm_lab.lab.tracking.views import STUDY_KEY, UNPLANNED, View, read_groups, trained_model
from realm_lab.records.files import write_text
from realm_lab.records.lease import exclusive
from realm_lab.records.metrics import chosen_by
from realm_lab.records.run import Run
from realm_lab.records.run_values import last_values, run_values
from realm_lab.records.study import Studies, StudyRecord
from realm_lab.records.tracking_store import default_uri, one_line


class MlflowTracker(Tracker):
    """A tracker that writes to MLflow. `uri`: the tracking store, which can be deleted and built again. `page`:
    makes a page (HTML) of a report.md, to be shown with it."""

    def __init__(self, runs: Path, uri: str, page: Callable[[Path], str] | None = None) -> None:
        with needs("`realm-lab mirror`", "mlflow", "platform"):
            from realm_lab.lab.tracking.mlflow_store import Store

        self._runs, self._has_pages = runs, page is not None
        self._store = Store(uri, _source(runs), page)
        self.where = self._store.uri
        self.links: dict[str, str] = {}
        self.points = 0
        self._opened: dict[str, tuple[str, dict[str, Any]]] = {}  # study -> its experiment, and the runs of it by key

    def studies(self) -> list[str]:
        with _one_line():
            return self._store.experiments()

    def show(self, study: str, view: View) -> str:
        with _one_line():
            experiment, shown = self._open(study, view)
            run = shown.pop(view.key, None)
            if view.key != STUDY_KEY:
                done = self._store.show(experiment, run, view)
                self.points = self._store.points
                return done
            if self._has_pages and "report.md" in view.files:
                view.files["report.html"] = view.files["report.md"]  # the page is made when it is sent
            self._store.show(experiment, run, view)
            return ""

    def keep(self, study: str, keys: Collection[str]) -> int:
        removed = 0
        with _one_line():
            _, shown = self._open(study)
            for run in (run for key, run in shown.items() if key not in keys):
                self._store.delete(run)
                removed += run.data.tags["realm.kind"] == "run"
        return removed

    def register(self, study: str, key: str, folder: Path, model: str, tags: dict[str, str]) -> tuple[str, str]:
        """Register the model in `folder`, of the run with this key, as `model`; returns the name shown for the run, and
        the version. UserError: MLflow does not have the run."""
        with _one_line():
            _, shown = self._open(study)
            if key not in shown:
                raise UserError(f"study {study}: MLflow does not show its best run; run `realm-lab mirror` again")
            version = self._store.register(shown[key], folder, model, {"realm.run_key": key, **tags})
        return str(shown[key].info.run_name), version

    def close(self, study: str) -> None:
        self._opened.pop(study, None)

    def _open(self, study: str, view: View | None = None) -> tuple[str, dict[str, Any]]:
        """Find the experiment of a study, and the runs shown in it."""
        if study not in self._opened:
            tags = view_tag(view.study) if view and view.study else {}
            folder = self._runs.parent / "mlartifacts" / study
            what = f"Runs of the study `{study}`" if study != UNPLANNED else "Runs that no study mentions any more"
            about = f"{what}, mirrored by `realm-lab mirror`. Open the saved view *by variant* to compare its variants."
            experiment = self._store.experiment(study, about, folder, tags)
            self.links[study] = link(experiment)
            self._opened[study] = experiment, self._store.shown(experiment)
        return self._opened[study]


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Turn an error of the store into one line."""
    from realm_lab.lab.tracking.mlflow_store import StoreError

    try:
        yield
    except StoreError as error:
        raise TrackerError(one_line(error)) from None


def _source(runs: Path) -> str:
    """Return an id of this folder of runs, kept in a file there, so that it stays when the folder is moved."""
    path = runs / ".mirror_id"
    if not path.exists():
        write_text(path, uuid.uuid4().hex + "\n")
    return path.read_text(encoding="utf-8").strip()


def register(studies: Studies, name: str, uri: str, by: str) -> str:
    """Register the model of the best run of a study that MLflow shows, in the store `uri` ("": the usual one); returns
    a line. UserError: no such study, or no run to choose."""
    runs = Path(os.path.abspath(studies.runs))
    study = studies.read(name)
    run, value, folder = best_run(study, read_groups(studies, [])[name][1], by)
    model = f"realm_lab-{name}"
    with exclusive(runs / ".mirror.lock"):
        tracker = MlflowTracker(runs, uri or default_uri(runs))
        shown, version = tracker.register(name, run.run_key, folder, model, {f"realm.{by}": f"{value:.6g}"})
    return f"registered {shown} ({by} {value:.3f}): models:/{model}/{version}, also models:/{model}@best"


def best_run(study: StudyRecord, runs: Sequence[Run], metric: str) -> tuple[Run, float, Path]:
    """Return the run with the largest value (the first of equal ones), this value, and the folder of its trained model.
    UserError: `metric` is not measured on development data, or no complete run has both a value and a model."""
    known = chosen_by()
    if metric not in known:
        raise UserError(f"--by {metric}: not measured on development data; {suggestion(metric, known)}")
    found = []
    for run in (run for run in runs if run.state == "COMPLETE"):
        stages = run.begun()
        is_curve = known[metric].source == "curve"
        values = run_values(stages) if not is_curve else last_values(stages["pretrain"]) if "pretrain" in stages else {}
        model = trained_model(stages)
        if metric in values and model:
            found.append((run, values[metric], model))
    if not found:
        raise UserError(f"study {study.name}: no complete run has a model and {metric}; run `{study.command}`")
    return max(found, key=lambda one: one[1])
