"""Runs that are folders: Hydra's jobs, and folders with TensorBoard's event files.

A run may have several parts with results: result files, and folders below the run with event files, such as Keras'
`train` and `validation`. If several parts have the same metric, `--part` chooses one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from realm_lab.errors import UserError, needs
from realm_lab.evidence.verdict.tables import Logged, Row, flat, json_records, last_values, read_csv, read_json
from realm_lab.evidence.verdict.tensorboard import EVENTS, last_scalars

INTERPOLATION = re.compile(r"\$\{(\.*)([\w-]+(?:\.[\w-]+)*)\}")


def tensorboard_runs(path: Path, depth: int | None) -> list[Row]:
    """Read runs from folders with event files. depth: number of folders in the name of a run; folders below are its
    parts. None: each folder with event files is a run."""
    runs: dict[str, dict[str, dict[str, Logged]]] = {}
    for folder in _event_folders(path):
        names = folder.relative_to(path).parts
        parts = runs.setdefault("/".join(names[:depth]) or ".", {})
        parts["/".join(names[depth:] if depth else ()) or "."] = _scalars(folder)
    return [Row({"run": name}, str(path / name), _by_metric(parts)) for name, parts in runs.items()]


def hydra_runs(path: Path, jobs: list[Path]) -> list[Row]:
    """Read Hydra's jobs as rows: the configuration, and metrics from JSON objects, CSV files and TensorBoard."""
    rows = []
    for job in jobs:
        unread: list[UserError] = []
        parts = dict(_parts(job, unread))
        values = _configuration(job) | {"run": job.relative_to(path).as_posix()}
        rows.append(Row(values, str(job), _by_metric(parts), unread=(*unread,)))
    return rows


def _parts(job: Path, unread: list[UserError]) -> Iterator[tuple[str, dict[str, Logged]]]:
    """Yield (name, last values) of each part of a job. A JSON file with other values than objects is no
    part. The error of a file that cannot be read is added to `unread`, since another file may have the metric."""
    for file in sorted([*job.glob("*.json"), *job.glob("*.csv")]):
        try:
            is_json = file.suffix == ".json"
            if is_json and not all(isinstance(record, dict) for record in json_records(file)):
                continue
            rows = read_json(file) if is_json else read_csv(file)
        except UserError as error:
            unread.append(error)
        else:
            yield file.name, last_values([{name: row.measured(name).value for name in row.names} for row in rows])
    for folder in _event_folders(job):
        yield folder.relative_to(job).as_posix(), _scalars(folder)


def _by_metric(parts: Mapping[str, Mapping[str, Logged]]) -> dict[str, dict[str, Logged]]:
    found: dict[str, dict[str, Logged]] = {}
    for part, metrics in parts.items():
        for name, logged in metrics.items():
            found.setdefault(name, {})[part] = logged
    return found


def _event_folders(path: Path) -> list[Path]:
    return sorted({file.parent for file in path.rglob(EVENTS)})


def _scalars(folder: Path) -> dict[str, Logged]:
    """Return the value at the largest step of each scalar in the event files of a folder; the last of equal steps."""
    found: dict[str, Logged] = {}
    for file in sorted(folder.glob(EVENTS)):
        for tag, (step, value) in last_scalars(file).items():
            if tag not in found or step >= (found[tag].step or 0):
                found[tag] = Logged(value, step)
    return found


def _configuration(job: Path) -> dict[str, Any]:
    with needs("reading a Hydra folder", "ruamel.yaml"):
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError
    config = job / ".hydra" / "config.yaml"
    try:
        found = YAML(typ="safe", pure=True).load(config.read_text(encoding="utf-8")) or {}
        return flat(_filled(found, found, ()))
    except (OSError, YAMLError) as error:
        raise UserError(f"not readable ({' '.join(str(error).split())})", path=config) from None


def _filled(value: Any, config: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Fill in interpolations with values of the configuration: `${model.name}`, and `${.name}` from the mapping that
    has the value. Interpolations that name no single value, such as `${now:%H}`, stay."""
    if isinstance(value, Mapping):
        return {name: _filled(one, config, (*path, str(name))) for name, one in value.items()}
    for _ in range(10 if isinstance(value, str) else 0):  # a value may have interpolations, even of itself
        found = INTERPOLATION.search(value)
        if found is None:
            break
        dots, name = found.groups()
        answer: Any = config
        for key in (*(path[: len(path) - len(dots)] if dots else ()), *name.split(".")):
            answer = answer.get(key) if isinstance(answer, Mapping) else None
        if answer is None or isinstance(answer, Mapping | list):
            break
        if found[0] == value and not isinstance(answer, str):
            return answer
        value = value.replace(found[0], str(answer))
    return value
