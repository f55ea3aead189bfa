"""Metrics that a custom function computes from the predictions of a run, when a report is written or mirrored.

A study names such a function in `metrics`, as `package.module:function` or `{name: ..., OPTION: VALUE}`, or by the name
that `@computes(Metric(...))` registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from realm_lab.errors import UserError
from realm_lab.records.files import read_json_lines
from realm_lab.records.metric_log import finite
from realm_lab.records.metrics import BUILT_IN, Metric
from realm_lab.records.parameters import show
from realm_lab.records.plugins import Choice, Kind, option_suffix
from realm_lab.records.run import StageRun


class Prediction(NamedTuple):
    """A test question with the answer of a system. `passages` are the ids of the passages that were read, best first;
    `row` has everything that predictions.jsonl records."""

    id: str
    question: str
    references: tuple[str, ...]
    answer: str
    passages: tuple[str, ...]
    row: Mapping[str, Any]


Function = Callable[..., float]
COMPUTED: Kind[Function] = Kind("metric", "function", "predictions")


def computes(entry: Metric) -> Callable[[Function], Function]:
    """Return a decorator that registers a function of predictions, list[Prediction] -> float, as the metric `entry`.
    UserError: the name is taken."""

    def add(code: Function) -> Function:
        if entry.name in BUILT_IN:
            raise UserError(f"metric '{entry.name}' is one of realm_lab; choose another name")
        COMPUTED.register(entry.name)(code)
        code.metric = entry  # type: ignore[attr-defined]
        return code

    return add


def definition(parameter: str, choice: Choice) -> Metric:
    """Return the metric of the custom function that `choice` names. The metric's name and title include the options.
    UserError: no such function, it cannot be called, or a wrong option."""
    chosen = COMPUTED.choose(parameter, choice)
    name = choice.name.rpartition(":")[2]
    entry = getattr(chosen.load(), "metric", None) or Metric(name, name.replace("_", " "), better="")
    options = ", ".join(f"{option} = {show(value)}" for option, value in choice.options.items())
    return replace(
        entry,
        name=f"{entry.name}{option_suffix(choice)}",
        title=f"{entry.title} ({options})" if options else entry.title,
        part="answers",
        choice=Choice(chosen.target, choice.options).plain(),  # a registered name would need its module imported first
    )


def computed_values(
    metrics: Iterable[Metric], stages: Mapping[str, StageRun]
) -> tuple[dict[str, float], dict[str, str]]:
    """Compute the custom metrics among `metrics` for a complete run. Returns name -> finite value, and name -> reason
    why there is no value; both are empty for a run without answers."""
    wanted = [metric for metric in metrics if metric.choice is not None]
    path = [*stages.values()][-1].path / "eval" / "predictions.jsonl"
    if not wanted or not path.exists():
        return {}, {}
    predictions = [_prediction(row) for row in read_json_lines(path) if "prediction" in row]
    values: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for metric in wanted if predictions else ():
        try:
            returned = COMPUTED.choose("metrics", Choice.read(metric.choice))(predictions)
            value = finite(returned.item() if hasattr(returned, "item") else returned)
        except (ValueError, RuntimeError) as error:  # UserError is one; the others: an array that is no single number
            reasons[metric.name] = str(error)
            continue
        if value is None:
            reasons[metric.name] = f"it returned {returned!r}, which is no number to compute with"
        else:
            values[metric.name] = value
    return values, reasons


def _prediction(row: Mapping[str, Any]) -> Prediction:
    read = tuple(row.get("retrieved", ()))
    return Prediction(row["id"], row["question"], tuple(row["answers"]), row["prediction"], read, row)
