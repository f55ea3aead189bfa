"""Tables of runs as rows: CSV, JSON and frames in memory."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.errors import UserError

SETTINGS, RESULTS = ("config", "params", "parameters"), ("summary", "metrics")
NESTED = (*SETTINGS, *RESULTS)  # columns whose fields keep their names, without a prefix
STEPS = ("step", "global_step", "_step", "iteration", "epoch")  # columns of steps; the first that a log has counts
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+(?:[eE][+-]?\d+)?\s*")


class Logged(NamedTuple):
    """The last value of a metric, and its step; None: the source has no steps."""

    value: Any
    step: float | None = None


class Row(NamedTuple):
    """One run: its columns, and its source `where`: file and line, or name.

    logged: metric -> part -> value, of a run that keeps settings and results separately. A part is a file or folder of
    the run, "" for a run in a database. left_out: the reason why the run is not compared.
    unread: the faults of its result files.
    """

    values: Mapping[str, Any]
    where: str
    logged: Mapping[str, Mapping[str, Logged]] = {}
    has_children: bool = False  # runs below it, as a sweep's run in MLflow
    left_out: str = ""
    unread: tuple[UserError, ...] = ()

    @property
    def names(self) -> list[str]:
        """Every column and metric."""
        return [*self.values, *(name for name in self.logged if name not in self.values)]

    def setting(self, name: str) -> Any:
        """The value of a column that describes the run; None without one."""
        return self.values[name] if name in self.values else self.measured(name).value

    def measured(self, metric: str) -> Logged:
        """The value of a metric, the logged one if there is one."""
        found = self.logged.get(metric) or {"": Logged(self.values.get(metric))}
        return next(iter(found.values()))


Rows = Sequence[Row]


def last_values(records: Sequence[Mapping[str, Any]]) -> dict[str, Logged]:
    """Return each column's value at the largest step of a log; of equal steps the last. A blank cell is no value, since
    a log may have training and validation in separate lines. Without a column of steps, line numbers are the steps."""
    name = next((name for name in STEPS if any(name in record for record in records)), None)
    found: dict[str, Logged] = {}
    step = 0.0
    for line, record in enumerate(records, 1):
        try:
            step = float(record[name]) if name else float(line)
        except (KeyError, TypeError, ValueError):  # a line without a step has the step of the line before
            pass
        for column, value in record.items():
            before = found.get(column)
            if value not in (None, "") and (before is None or before.step is None or step >= before.step):
                found[column] = Logged(value, step)
    return found


def read_csv(path: Path) -> list[Row]:
    """Read a CSV with a row for each run, separated by commas, semicolons or tabs. With semicolons, numbers may have a
    decimal comma."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError("not a text in UTF-8", path=path, remedy="export it as CSV in UTF-8") from None
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a column may hold a whole configuration
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    names = [name.strip() for name in next(reader, [])]
    _refuse_twice(names, path)
    rows = []
    for values in reader:
        values = [value.strip() for value in values]
        if not any(values):
            continue
        if len(values) != len(names):
            problem = f"{len(values)} values under {len(names)} columns"
            raise UserError(problem, path=path, line=reader.line_num, remedy="correct the line")
        found = {name: _literal(value) if name in NESTED else value for name, value in zip(names, values, strict=True)}
        row = _row(found, f"{path}, line {reader.line_num}")
        if separator == ";":
            commas = {name: value for name, value in found.items() if DECIMAL_COMMA.fullmatch(str(value))}
            numbers = {name: {"": Logged(value.replace(",", "."))} for name, value in commas.items()}
            row = row._replace(logged={**row.logged, **numbers})
        rows.append(row)
    return rows


def read_json(path: Path) -> list[Row]:
    """Read a JSON file: a list with an object for each run, or one object on each line."""
    records = json_records(path)
    if not all(isinstance(record, dict) for record in records):
        raise UserError("not a list of runs", path=path, remedy="write an object for each run")
    return [_row(record, f"{path}, run {place}") for place, record in enumerate(records, 1)]


def json_records(path: Path) -> list[Any]:
    """The items of a list, or the values of lines. UserError: the file is not JSON."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        try:
            found = json.loads(text)
        except ValueError:
            found = [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise UserError(f"not JSON ({error})", path=path, remedy="write it again, or move it away") from None
    return found if isinstance(found, list) else [found]


def rows_of(frame: Any) -> list[Row]:
    """A table in memory as rows, or rows as they are. UserError: it is no table."""
    if isinstance(frame, list) and frame and all(isinstance(one, Row) for one in frame):
        return frame
    _refuse_twice([*map(str, getattr(frame, "columns", ()))])
    if hasattr(frame, "to_dicts"):  # polars
        found = frame.to_dicts()
    elif hasattr(frame, "to_dict"):
        found = frame.to_dict("records")
    elif isinstance(frame, Mapping):
        try:
            found = [dict(zip(frame, values, strict=True)) for values in zip(*frame.values(), strict=True)]
        except (TypeError, ValueError):
            raise UserError("no columns of the same length", remedy="give each column a value per run") from None
    else:
        found = frame
    rows = [row for row in found if isinstance(row, Mapping)] if isinstance(found, Collection) else []
    if not isinstance(found, Collection) or len(rows) < len(found):
        raise UserError(f"a {type(frame).__name__} is no table of runs", remedy="give a data frame or a list of dicts")
    return [Row(row, f"row {place}") for place, row in enumerate(rows)]


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a nested record, with names joined by dots. A field of `config` or another of NESTED keeps
    its name, unless the record has a column of this name. W&B's `{"value": ...}` is read as the value."""
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


def _row(record: Mapping[str, Any], where: str) -> Row:
    """Return a run with its results separate from its settings, since both may have a name such as `loss`."""
    results = {name: value for name, value in record.items() if name in RESULTS and isinstance(value, Mapping)}
    logged = {name: {"": Logged(value)} for name, value in flat(results).items()}
    return Row(flat({name: value for name, value in record.items() if name not in results}), where, logged)


def _literal(text: str) -> Any:
    """Parse a text that is a Python literal, as in exports of W&B; other text stays."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _refuse_twice(names: Sequence[str], path: Path | str = "") -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        line = 1 if path else None
        raise UserError(f"two columns are called '{twice}'", path=path, line=line, remedy="rename one")
