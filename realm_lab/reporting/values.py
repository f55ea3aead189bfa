"""The numbers of one run, read from the folders of its stages, under the names of `results.csv`.

Light on purpose (no pandas): `status` and the search read single numbers with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from realm_lab.core.files import read_json
from realm_lab.metrics import METRICS
from realm_lab.tracking.run_dir import StageRun

RENAMED = {"edition_swap": "corpus_update"}
"""Groups of results that older runs and committed tables know under another name."""


def finite(value: Any) -> float | None:
    """`value` as a float, or None when it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def current_name(name: str) -> str:
    """The present name of a metric, such as `corpus_update.follows` for `edition_swap.follows`."""
    group, dot, rest = name.partition(".")
    return f"{RENAMED.get(group, group)}{dot}{rest}"


def result_values(results: Mapping[str, Any]) -> dict[str, float]:
    """Every number in the results of a stage, nested names joined by dots, then those that a metric calls otherwise."""
    values = {current_name(name): value for name, value in _numbers(results, "")}
    return values | {m.name: values[m.key] for m in METRICS.values() if m.source == "results" and m.key in values}


def run_values(stages: Mapping[str, StageRun]) -> dict[str, float]:
    """Everything that is known of a complete run.

    The results of its last stage; where that is not the evaluation, the last value of each of its curves as well; the
    mean age of the index over pre-training; and what the run took.
    """
    last = [*stages.values()][-1]
    values = result_values(last.results())
    if last.stage != "evaluate":
        values = last_values(last) | values
    if "pretrain" in stages and (age := last_values(stages["pretrain"]).get("index_staleness_steps_mean")) is not None:
        values["index_staleness_steps"] = age  # the mean over all steps so far, so its last value
    seconds = {name: stage.status().wall_seconds for name, stage in stages.items()}
    values["wall_seconds"] = sum(seconds.values())
    values["device_hours"] = sum(seconds[name] * _processes(stage) for name, stage in stages.items()) / 3600
    return values


def value_of(stages: Mapping[str, StageRun], name: str) -> float | None:
    """One number of a complete run, by its name in `results.csv`; None where it was not measured."""
    return run_values(stages).get(name)


def last_values(stage: StageRun) -> dict[str, float]:
    """The last finite value of each curve of a stage."""
    found: dict[str, float] = {}
    for row in stage.metrics.rows():
        found |= {name: value for name, value in _numbers(row, "") if name not in ("step", "time")}
    return found


def _processes(stage: StageRun) -> int:
    """How many processes shared the stage, each with a device of its own."""
    path = stage.path / "env.json"
    found = read_json(path) if path.exists() else {}
    return int(found.get("processes") or 1) if isinstance(found, dict) else 1


def _numbers(value: Any, prefix: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _numbers(item, f"{prefix}.{name}" if prefix else name)
    elif (number := finite(value)) is not None:
        yield prefix, number
