"""Runs as other tools keep them, as rows: CSV and JSON, MLflow, Trackio, TensorBoard folders, Hydra multirun folders.

The last value of a metric over steps counts. A column that a tool nests under `config`, `params`, `summary` or
`metrics` (W&B, MLflow, Trackio) gets its plain name.
"""

from __future__ import annotations

import ast
import csv
import json
import re
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.errors import UserError, needs, suggestion
from realm_lab.other_runs.tensorboard import EVENTS, last_scalars

NESTED = ("config", "params", "parameters", "summary", "metrics")  # their fields keep their own names
NAMES = ("run", "Name", "name", "run_name")  # of a run
STORES = ("sqlite:", "postgresql", "mysql", "mssql", "http://", "https://", "databricks")


class Row(NamedTuple):
    """One run: its columns, and the file and line or the name to find it by."""

    values: Mapping[str, Any]
    where: str


Rows = Sequence[Row]


def read_runs(source: str, pattern: str = "", experiment: str = "") -> list[Row]:
    """The runs of a file, a folder or an MLflow store. UserError: there are none, or they cannot be read.

    pattern: a run's name or folder with columns in braces, `{variant}/seed_{seed}`. experiment: one of an MLflow store.
    """
    path = Path(source)
    if source.startswith(STORES):
        rows = _mlflow(source, experiment)
    elif not path.exists():
        raise UserError(
            "no such file or folder", path=source, remedy="name a CSV, a JSON file, a folder of runs or a store"
        )
    elif path.is_dir():
        rows = _folder(path, experiment)
    elif path.suffix == ".db" or path.open("rb").read(6) == b"SQLite":
        rows = _database(path, experiment)
    elif path.suffix in (".json", ".jsonl", ".ndjson"):
        rows = _json(path)
    else:
        rows = _csv(path)
    if not rows:
        raise UserError("no runs in it", path=source)
    return [_named(row, pattern) for row in rows] if pattern else rows


def _csv(path: Path) -> list[Row]:
    """A row a run, separated by commas, semicolons or tabs."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError("not a text in UTF-8", path=path, remedy="export it as CSV in UTF-8") from None
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    reader = csv.reader(text.splitlines(keepends=True), delimiter=separator)
    names = [name.strip() for name in next(reader, [])]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"two columns are called '{twice}'", path=path, line=1, remedy="rename one")
    rows = []
    for values in reader:
        if not any(values):
            continue
        if len(values) != len(names):
            problem = f"{len(values)} values under {len(names)} columns"
            raise UserError(problem, path=path, line=reader.line_num, remedy="correct the line")
        found = {name: _literal(value) if name in NESTED else value for name, value in zip(names, values, strict=True)}
        rows.append(Row(flat(found), f"{path}, line {reader.line_num}"))
    return rows


def _literal(text: str) -> Any:
    """Parse a value that a CSV file has as the text of a Python literal, as exports of W&B have; other text stays."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _json(path: Path) -> list[Row]:
    """A list of objects, or an object a line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        try:
            found = json.loads(text)
        except ValueError:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise UserError(f"not JSON ({error})", path=path, remedy="export it as a list of runs") from None
    records = found if isinstance(found, list) else [found]
    if not all(isinstance(record, dict) for record in records):
        raise UserError("not a list of runs", path=path, remedy="write an object for each run")
    return [Row(flat(record), f"{path}, run {place}") for place, record in enumerate(records, 1)]


def _folder(path: Path, experiment: str) -> list[Row]:
    """MLflow's files, Hydra's jobs, or folders with TensorBoard events."""
    if any(path.glob("*/meta.yaml")):
        return _mlflow(path.absolute().as_uri(), experiment)
    jobs = sorted(folder.parent for folder in path.rglob(".hydra") if folder.is_dir())
    if jobs:
        return [Row(_hydra(job) | {"run": job.relative_to(path).as_posix()}, str(job)) for job in jobs]
    folders = sorted({file.parent for file in path.rglob(EVENTS)})
    if folders:
        return [Row(_scalars(one) | {"run": one.relative_to(path).as_posix()}, str(one)) for one in folders]
    databases = sorted(path.glob("*.db"))
    if len(databases) == 1:
        return _database(databases[0], experiment)
    remedy = (
        f"name one of {', '.join(file.name for file in databases)}" if databases else "name the folder above the runs"
    )
    raise UserError("no runs of MLflow, Trackio, TensorBoard or Hydra in it", path=path, remedy=remedy)


def _scalars(folder: Path) -> dict[str, float]:
    """The last value of each scalar of the event files of one folder."""
    found: dict[str, float] = {}
    for file in sorted(folder.glob(EVENTS)):
        found |= last_scalars(file)
    return found


def _hydra(job: Path) -> dict[str, Any]:
    """Read the configuration of a job, and its outputs: the numbers of its JSON objects, the last lines of its CSV
    files, its TensorBoard scalars."""
    with needs("reading a Hydra folder", "ruamel.yaml"):
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError
    config = job / ".hydra" / "config.yaml"
    try:
        values = flat(YAML(typ="safe", pure=True).load(config.read_text(encoding="utf-8")) or {})
    except (OSError, YAMLError) as error:
        raise UserError(f"not readable ({' '.join(str(error).split())})", path=config) from None
    for file in sorted(job.glob("*.json")):
        rows = _json(file)
        values |= rows[-1].values if rows else {}
    for file in sorted(job.glob("*.csv")):
        rows = _csv(file)
        values |= rows[-1].values if rows else {}
    return values | _scalars(job)


def _database(path: Path, experiment: str) -> list[Row]:
    """A file of SQLite: Trackio's project, or an MLflow store."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "experiments" in tables:
                return _mlflow(f"sqlite:///{path.absolute()}", experiment)
            if not {"metrics", "configs"} <= tables:
                raise UserError("neither MLflow's nor Trackio's database", path=path)
            runs: dict[str, dict[str, Any]] = {}
            for key, name, config in database.execute("SELECT run_id, run_name, config FROM configs ORDER BY id"):
                runs[key] = {"run": name} | flat({"config": json.loads(config)})
            for key, name, values in database.execute(
                "SELECT run_id, run_name, metrics FROM metrics ORDER BY step, id"
            ):
                numbers = {one: value for one, value in json.loads(values).items() if isinstance(value, int | float)}
                runs.setdefault(key, {"run": name}).update(numbers)
    except sqlite3.Error as error:
        raise UserError(f"not readable ({error})", path=path) from None
    return [Row(values, f"{path}, run {values['run']}") for values in runs.values()]


def _mlflow(uri: str, experiment: str) -> list[Row]:
    """The runs of one experiment."""
    with needs("reading an MLflow store", "mlflow", "platform"):
        from realm_lab.tracking.mlflow_store import foreign_runs
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
    return [Row(flat(run), f"run {run['run']}") for run in found[name]]


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a nested record: names joined by dots; fields of `config` or `summary` keep their own name. W&B's
    `{"value": ...}` is its value."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping) and {"value"} <= value.keys() <= {"value", "desc"}:
            found[name] = value["value"]
        elif isinstance(value, Mapping):
            for inner, one in flat(value).items():
                found[inner if name in NESTED and inner not in record else f"{name}.{inner}"] = one
        else:
            found[name] = value
    return found


def _named(row: Row, pattern: str) -> Row:
    """Add the columns that the name of the run contains."""
    name = next((str(row.values[key]) for key in NAMES if row.values.get(key) is not None), None)
    parts = re.split(r"\{(\w+)\}", pattern)
    if len(parts) == 1:
        raise UserError(f"--name {pattern}: no column in braces", remedy="for example --name '{variant}/seed_{seed}'")
    if name is None:
        raise UserError(f"{row.where}: the run has no name", remedy="leave out --name")
    expression = "".join(f"(?P<{part}>.+?)" if place % 2 else re.escape(part) for place, part in enumerate(parts))
    if not (found := re.fullmatch(expression, name)):
        raise UserError(
            f"--name {pattern}: does not fit the run '{name}'", remedy="describe every run, or move it away"
        )
    return Row({**row.values, **found.groupdict()}, row.where)


def rows_of(frame: Any) -> list[Row]:
    """A table in memory as rows. UserError: it is no table."""
    if hasattr(frame, "to_dicts"):  # polars
        found = frame.to_dicts()
    elif hasattr(frame, "to_dict"):
        found = frame.to_dict("records")
    elif isinstance(frame, Mapping):
        found = [dict(zip(frame, values, strict=True)) for values in zip(*frame.values(), strict=True)]
    else:
        found = frame
    rows = [row for row in found if isinstance(row, Mapping)] if isinstance(found, Collection) else []
    if not isinstance(found, Collection) or len(rows) < len(found):
        raise UserError(f"a {type(frame).__name__} is no table of runs", remedy="give a data frame or a list of dicts")
    return [Row(row, f"row {place}") for place, row in enumerate(rows)]
