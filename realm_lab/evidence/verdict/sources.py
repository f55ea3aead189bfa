"""Reads the runs of other tools as rows: CSV and JSON, MLflow, Trackio, TensorBoard folders, Hydra multirun folders.

The last value of a metric over steps counts. A column that a tool nests under `config`, `params`, `summary` or
`metrics` (W&B, MLflow, Trackio) gets its plain name.
"""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from realm_lab.errors import UserError, needs, suggestion
from realm_lab.evidence.verdict.folders import hydra_runs, tensorboard_runs
from realm_lab.evidence.verdict.tables import Logged, Row, flat, read_csv, read_json

NAMES = ("run", "Name", "name", "run_name")  # columns with the name of a run
STORES = ("sqlite:", "postgresql", "mysql", "mssql", "http://", "https://", "databricks")
NO_NUMBERS = ("NaN", "Infinity", "-Infinity")  # as Trackio writes them, as text


def read_runs(source: str, pattern: str = "", experiment: str = "", part: str = "") -> list[Row]:
    """The runs of a file, a folder or an MLflow store. UserError: there are none, or they cannot be read.

    pattern: a run's name or folder with columns in braces, `{variant}/seed_{seed}`. experiment: its name in an MLflow
    store. part: the file or folder in each run whose metrics are read.
    """
    path = Path(source)
    if source.startswith(STORES) and not path.exists():
        rows = _mlflow(source, experiment)
    elif not path.exists():
        raise UserError(
            "no such file or folder", path=source, remedy="name a CSV, a JSON file, a folder of runs or a store"
        )
    elif path.is_dir():
        rows = _folder(path, experiment, pattern)
    elif path.suffix == ".db" or path.open("rb").read(6) == b"SQLite":
        rows = _database(path, experiment)
    elif path.suffix in (".json", ".jsonl", ".ndjson"):
        rows = read_json(path)
    else:
        rows = read_csv(path)
    if not rows:
        raise UserError("no runs in it", path=source)
    rows = _named(rows, pattern, path) if pattern else rows
    return _of_part(rows, part) if part else rows


def _folder(path: Path, experiment: str, pattern: str) -> list[Row]:
    """Read a folder: MLflow's files, Hydra's jobs, folders with TensorBoard events, or one database."""
    if any(path.glob("*/meta.yaml")):
        return _mlflow(path.absolute().as_uri(), experiment)
    jobs = sorted(folder.parent for folder in path.rglob(".hydra") if folder.is_dir())
    if jobs:
        return hydra_runs(path, jobs)
    if runs := tensorboard_runs(path, pattern.count("/") + 1 if pattern else None):
        return runs
    databases = sorted(path.glob("*.db"))
    if len(databases) == 1:
        return _database(databases[0], experiment)
    remedy = (
        f"name one of {', '.join(file.name for file in databases)}" if databases else "name the folder above the runs"
    )
    raise UserError("no runs of MLflow, Trackio, TensorBoard or Hydra in it", path=path, remedy=remedy)


def _database(path: Path, experiment: str) -> list[Row]:
    """Read a SQLite file: a project of Trackio, or an MLflow store."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "experiments" in tables:
                return _mlflow(f"sqlite:///{path.absolute()}", experiment)
            if not {"metrics", "configs"} <= tables:
                raise UserError("neither MLflow's nor Trackio's database", path=path)
            settings: dict[str, dict[str, Any]] = {}
            logged: dict[str, dict[str, dict[str, Logged]]] = {}
            for key, name, config in database.execute("SELECT run_id, run_name, config FROM configs ORDER BY id"):
                settings[key] = {"run": name} | flat({"config": json.loads(config)})
            lines = database.execute("SELECT run_id, run_name, step, metrics FROM metrics ORDER BY step, id")
            for key, name, step, metrics in lines:
                settings.setdefault(key, {"run": name})
                for metric, value in json.loads(metrics).items():
                    if isinstance(value, int | float) or value in NO_NUMBERS:
                        logged.setdefault(key, {})[metric] = {"": Logged(float(value), step)}
    except sqlite3.Error as error:
        raise UserError(f"not readable ({error})", path=path) from None
    return [Row(values, f"{path}, run {values['run']}", logged.get(key, {})) for key, values in settings.items()]


def _mlflow(uri: str, experiment: str) -> list[Row]:
    """The runs of one experiment."""
    with needs("reading an MLflow store", "mlflow", "platform"):
        from realm_lab.evidence.verdict.mlflow_runs import foreign_runs
    file = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:") and not file.is_file():
        raise UserError("no such file", path=file, remedy="correct the path; nothing was written")
    found = foreign_runs(uri)
    if not found:
        raise UserError("no experiment has a run", path=uri)
    if not experiment and len(found) > 1:
        raise UserError(
            "several experiments have runs", path=uri, remedy=f"name one with --experiment: {', '.join(found)}"
        )
    name = experiment or next(iter(found))
    if name not in found:
        raise UserError(f"--experiment: no experiment '{name}' with runs", path=uri, remedy=suggestion(name, found))
    return [
        Row(
            flat({key: run[key] for key in ("run", "status", "params")}),
            f"run {run['run']}",
            {metric: {"": Logged(value if is_done else None)} for metric, value in run["metrics"].items()},
            has_children=run["has_children"],
        )
        for run in found[name]
        for is_done in (run["status"] == "FINISHED",)  # MLflow's state, whatever --state names
    ]


def _named(rows: list[Row], pattern: str, path: Path) -> list[Row]:
    """Add the columns that `pattern` finds in the names of runs, and mark runs that it does not fit as left out. If a
    run is a folder below `path`, no value of a column contains a `/`."""
    parts = re.split(r"\{(\w+)\}", pattern)
    names = parts[1::2]
    if not names or len({*names}) < len(names) or not all(map(str.isidentifier, names)):
        problem = f"--name {pattern}: it needs columns in braces, each once"
        raise UserError(problem, remedy="for example --name '{variant}/seed_{seed}'")
    found, name = [], None
    for row in rows:
        name = next((str(row.values[key]) for key in NAMES if row.values.get(key) is not None), None)
        if name is None:
            raise UserError(f"{row.where}: the run has no name", remedy="leave out --name")
        text = "[^/]+?" if (path / name).is_dir() else ".+?"
        expression = "".join(f"(?P<{part}>{text})" if n % 2 else re.escape(part) for n, part in enumerate(parts))
        match = re.fullmatch(expression, name)
        columns = match.groupdict() if match else {}
        left_out = "" if match else f"--name {pattern} does not describe it"
        found.append(row._replace(values={**row.values, **columns}, left_out=left_out))
    if all(row.left_out for row in found):
        raise UserError(f"--name {pattern}: does not fit the run '{name}' or any other", remedy="describe the runs")
    return found


def _of_part(rows: list[Row], part: str) -> list[Row]:
    """Keep only the metrics of one part of each run. UserError: no run has this part."""
    known = dict.fromkeys(one for row in rows for parts in row.logged.values() for one in parts)
    if part not in known:
        raise UserError(f"--part: no run has '{part}'", remedy=suggestion(part, known))
    return [row._replace(logged={m: {part: of[part]} for m, of in row.logged.items() if part in of}) for row in rows]
