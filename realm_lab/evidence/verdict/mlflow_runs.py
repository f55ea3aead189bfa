"""Runs that any program logged to an MLflow store."""

from __future__ import annotations

import os
from typing import Any

from realm_lab.errors import UserError
from realm_lab.records.tracking_store import (
    MAX_RUNS,
    MLFLOW_SETTINGS,
    check_database,
    is_server,
    one_line,
    without_password,
)

os.environ.update(MLFLOW_SETTINGS | os.environ)  # before the import below
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # folders are read, not written

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
from sqlalchemy.exc import SQLAlchemyError


def foreign_runs(uri: str) -> dict[str, list[dict[str, Any]]]:
    """Read any store: experiment -> its runs, each with name, status, parameters, the last values of its metrics and
    `has_children`. UserError: the store cannot be read."""
    if not is_server(uri) and not uri.startswith("file:"):
        check_database(uri)
    try:
        client, found = MlflowClient(tracking_uri=uri), {}
        for experiment in client.search_experiments():
            runs = client.search_runs([experiment.experiment_id], max_results=MAX_RUNS, order_by=["start_time"])
            parents = {run.data.tags.get(MLFLOW_PARENT_RUN_ID) for run in runs}
            found[experiment.name] = [
                {"run": run.info.run_name, "status": run.info.status, "params": run.data.params}
                | {"metrics": run.data.metrics, "has_children": run.info.run_id in parents}
                for run in runs
            ]
    except (MlflowException, SQLAlchemyError) as error:
        raise UserError(f"tracking store {without_password(uri)}: {one_line(error)}") from None
    return {name: runs for name, runs in found.items() if runs}
