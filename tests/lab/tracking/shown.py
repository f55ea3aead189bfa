"""The content of MLflow, read through its client and without its identifiers, so that two views can be compared."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mlflow import MlflowClient

from realm_lab.lab.tracking.mlflow_tracker import MlflowTracker


def opener(runs: Path, uri: str) -> Callable[[], MlflowTracker]:
    """Makes the tracker of a mirror."""
    return lambda: MlflowTracker(runs, uri)


def client_of(runs: Path, uri: str | None = None) -> MlflowClient:
    """Return a client of the database next to `runs`, or of another store."""
    return MlflowClient(tracking_uri=uri or f"sqlite:///{runs.parent / 'mlflow.db'}")


def content(runs: Path, study: str = "default", kind: str = "run", uri: str | None = None) -> dict[str, dict[str, Any]]:
    """The runs of a study (kind "run"), or the study as a whole (kind "study"), by the names shown."""
    client = client_of(runs, uri)
    experiment = client.get_experiment_by_name(f"realm_lab/{study}")
    found = client.search_runs([experiment.experiment_id]) if experiment else []
    names = {run.info.run_id: str(run.info.run_name) for run in found}
    chosen = [run for run in found if run.data.tags["realm.kind"] == kind]
    assert len({run.info.run_name for run in chosen}) == len(chosen), "a run is shown twice"
    return {str(run.info.run_name): _content(client, run, names) for run in chosen}


def _content(client: MlflowClient, run: Any, names: dict[str, str]) -> dict[str, Any]:
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    folder = Path(urlsplit(run.info.artifact_uri).path)
    files = [path for path in folder.rglob("*") if path.is_file()]
    values = folder / "values.json"
    return {
        "inputs": {
            item.dataset.name: (item.dataset.digest, item.tags[0].value, json.loads(item.dataset.profile))
            for item in run.inputs.dataset_inputs
        },
        "values": json.loads(values.read_text())["data"] if values.exists() else [],
        "status": run.info.status,
        "times": (run.info.start_time, run.info.end_time),
        "params": run.data.params,
        "tags": {name: names.get(value, value) for name, value in run.data.tags.items()},
        "points": {
            name: sorted((point.step, point.timestamp, point.value) for point in history)
            for name, history in histories.items()
        },
        "files": {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
    }


def everything(runs: Path, uri: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
    """All that is shown of all studies: "<study> <kind>" -> name -> content."""
    experiments = [e.name.removeprefix("realm_lab/") for e in client_of(runs, uri).search_experiments()]
    return {
        f"{study} {kind}": content(runs, study, kind, uri)
        for study in experiments
        if study != "Default"
        for kind in ("study", "run")
    }


def run_ids(runs: Path, study: str = "default") -> dict[str, str]:
    """Name shown -> MLflow's own id."""
    client = client_of(runs)
    experiment = client.get_experiment_by_name(f"realm_lab/{study}")
    assert experiment is not None
    return {str(run.info.run_name): run.info.run_id for run in client.search_runs([experiment.experiment_id])}


def logged_models(runs: Path, study: str = "default") -> list[Any]:
    """The logged models of a study's runs."""
    client = client_of(runs)
    experiment = client.get_experiment_by_name(f"realm_lab/{study}")
    assert experiment is not None
    return list(client.search_logged_models([experiment.experiment_id]))
