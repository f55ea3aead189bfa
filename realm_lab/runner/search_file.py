"""A search as a file: experiments/search-NAME.yaml -> Search, and the space of parameters that it looks through."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from realm_lab.errors import UserError
from realm_lab.metrics import CURVES, METRICS
from realm_lab.params.load import explain, flatten, lay_over, read_source, show
from realm_lab.params.parameters import Params
from realm_lab.runner.plan import PlannedRun
from realm_lab.runner.settings import nearest
from realm_lab.runner.study import DEFAULT_SYSTEM, Part, StudyFile, chosen_by, overrides_of, read_study_file
from realm_lab.systems.identity import plan_run

KEYS = ("low", "high", "log", "step", "choices")


class Pruning(Part):
    """When a trial is stopped before its end."""

    after_steps: Annotated[int, Field(ge=1, strict=True)]
    """Steps of pre-training that every trial may do; after them it is looked at whenever it is evaluated."""
    percentile: Annotated[float, Field(gt=0.0, lt=100.0)] = 50.0
    """It ends when the best it had is worse than this percentile of what complete trials had at the same step."""
    min_trials: Annotated[int, Field(ge=1, strict=True)] = 4
    """So many other trials must be complete, and have been at that step."""
    metric: str = "retrieval_utility"
    """The curve that is looked at, a mean over the seeds: higher is better."""


class Search(StudyFile):
    """The keys of a search file, beside those that it shares with a study: question, preset, set, seeds, launcher."""

    space: Annotated[dict[str, Any], Field(min_length=1)]
    """Parameter -> `{low, high}`, with `log: true` or a `step` if wanted, or `{choices: [...]}`. The parameters as they
    are, the first trial and baseline, must lie in it."""
    metric: str = "retrieval_utility"
    """What is searched for, a mean over the seeds, of development data: a curve of pre-training (its last value), or a
    result such as `exact_match_dev`."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Whether more of the metric is better."""
    trials: Annotated[int, Field(ge=1, strict=True)] = 20
    """How many, the baseline, pruned and failed ones included."""
    parallel: Annotated[int, Field(ge=1, strict=True)] = 1
    """How many at a time."""
    sampler: Literal["tpe", "random"] = "tpe"
    """Who proposes trials. (Every point of a grid: a study with `axes`.)"""
    sampler_seed: Annotated[int, Field(ge=0, strict=True)] = 0
    """Seed of the sampler: the same trials with the same results propose the same."""
    pruning: Pruning | None = None
    """When a trial is stopped before its end; empty: never."""


@dataclass(frozen=True)
class Dimension:
    """One parameter of the space: a range of numbers, or choices."""

    name: str
    kind: Literal["int", "float", "choices"]
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    choices: tuple[Any, ...] = ()

    def __contains__(self, value: Any) -> bool:
        if self.kind == "choices":
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        return self.step is None or _is_whole((value - self.low) / self.step)

    def __str__(self) -> str:
        if self.kind == "choices":
            return ", ".join(show(choice) for choice in self.choices)
        how = ", on a log scale" if self.log else f", in steps of {show(self.step)}" if self.step is not None else ""
        return f"{show(self.low)} to {show(self.high)}{how}"


@dataclass(frozen=True)
class SearchPlan:
    """A search over resolved parameters. `source`: those that every trial starts from, nothing validated."""

    search: Search
    source: dict[str, Any]
    base: Params
    space: tuple[Dimension, ...]

    @property
    def name(self) -> str:
        return self.search.name

    @property
    def baseline(self) -> dict[str, Any]:
        flat = flatten(self.base)
        return {dimension.name: flat[dimension.name] for dimension in self.space}

    @property
    def last_stage(self) -> str:
        """Of a trial: no fine-tuning is paid where the metric is a curve of pre-training."""
        return "pretrain" if self.search.metric in CURVES else "evaluate"

    def runs(self, cell: str, values: Mapping[str, Any]) -> list[PlannedRun]:
        """The runs of a trial, one for every seed. UserError: this combination of values is none."""
        params = _params(lay_over(self.source, values))
        base = flatten(self.base)
        changes = {key: value for key, value in flatten(params).items() if value != base[key]}
        seeds = self.search.seeds
        return [PlannedRun(cell, seed, params, plan_run(params, DEFAULT_SYSTEM, seed), changes) for seed in seeds]


def plan_search(path: Path, root: Path, *, params_path: Path | None = None) -> SearchPlan:
    """A search with its space checked against the parameters; nothing is written. UserError: one line with the file,
    the line, what is wrong there, and the remedy: an unknown key or metric, a value that its parameter cannot have, or
    a baseline that is not in the space."""
    search = read_study_file(Path(path), Search, {"pruning": Pruning})
    _check_metric(search)
    preset = {} if search.preset is None else {"preset": search.preset}
    source = read_source(params_path or Path(root) / "params.yaml", preset)
    common = overrides_of(search, search.set, "set", launch=True)
    values = lay_over(source.values, common)
    base = _resolved(search, values, "set")
    names = overrides_of(search, dict.fromkeys(search.space), "space")
    for name in names.keys() & common.keys():
        raise search.problem(f"'{name}' is both in 'set' and in 'space'; keep one", "space", name)
    space = tuple(_dimension(search, name, values, flatten(base)[name]) for name in names)
    pruning = search.pruning
    if pruning is not None and pruning.after_steps >= base.pretrain.steps:
        message = f"pruning.after_steps: a trial has {base.pretrain.steps} steps; give fewer"
        raise search.problem(message, "pruning", "after_steps")
    plan = SearchPlan(search, values, base, space)
    own = plan.runs("", {})[0].plan.key(plan.last_stage)
    for dimension in space:  # each changes what a trial does
        ends = dimension.choices or (dimension.low, dimension.high)
        params = [_resolved(search, lay_over(values, {dimension.name: end}), "space", dimension.name) for end in ends]
        keys = {plan_run(one, DEFAULT_SYSTEM, search.seeds[0]).key(plan.last_stage) for one in params}
        if keys == {own}:
            message = f"space: '{dimension.name}' changes nothing up to '{plan.last_stage}', where a trial ends"
            raise search.problem(f"{message}; leave it out, or search for another metric", "space", dimension.name)
    return plan


def _check_metric(search: Search) -> None:
    known = [*chosen_by(), *(name for name, metric in METRICS.items() if metric.split == "dev")]
    problem = f"metric: '{search.metric}' is none that is measured on development data"
    search.choose(search.metric, known, problem, "metric")
    if search.pruning is not None:
        by = search.pruning.metric
        problem = f"pruning.metric: '{by}' is no curve of pre-training"
        search.choose(by, chosen_by(), problem, "pruning", "metric")


def _params(values: Mapping[str, Any]) -> Params:
    try:
        return Params(**values)
    except ValidationError as error:
        raise UserError(explain(error, Path(), None).partition(": ")[2]) from None


def _resolved(search: Search, values: Mapping[str, Any], *keys: str) -> Params:
    try:
        return _params(values)
    except UserError as error:
        raise search.problem(f"{keys[0]}: {error}", *keys) from None


def _dimension(search: Search, name: str, source: dict[str, Any], own: Any) -> Dimension:
    """One entry of `space`, checked by what the parameter takes; `own` is its value as it is."""
    given = search.space[name]

    def wrong(message: str, *key: str) -> UserError:
        return search.problem(f"space: '{name}': {message}", "space", name, *key)

    if not isinstance(given, dict) or not (given.keys() >= {"low", "high"} or "choices" in given):
        raise wrong("write {low: ..., high: ...} or {choices: [...]}")
    for key in given:
        if key not in KEYS or ("choices" in given) != (key == "choices"):
            raise wrong(f"unknown key '{key}'; the nearest valid one is '{nearest(key, KEYS)}'", key)
    if "choices" in given:
        choices = given["choices"]
        if not isinstance(choices, list) or len(choices) < 2 or any(choices.count(one) > 1 for one in choices):
            raise wrong("choices are a list of two or more different values", "choices")
        taken = [_taken(search, name, source, choice) for choice in choices]
        found = Dimension(name, "choices", choices=tuple(taken))
    else:
        low, high, log, step = given["low"], given["high"], given.get("log", False), given.get("step")
        for key, value in (("low", low), ("high", high), ("step", 1 if step is None else step)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise wrong(f"{show(value)} is no number", key)
        if low >= high:
            raise wrong(f"low {show(low)} is not below high {show(high)}", "low")
        if log and (low <= 0 or step is not None):
            raise wrong("a log scale begins above 0 and has no step", "log")
        if step is not None and (step <= 0 or not _is_whole((high - low) / step)):
            raise wrong(f"from {show(low)}, steps of {show(step)} do not lead to {show(high)}; change one", "step")
        taken = [_taken(search, name, source, end) for end in (low, high)]
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in taken):
            raise wrong("is no number; list its values as 'choices'")
        whole = all(isinstance(value, int) for value in taken)
        if whole and step is not None and not _is_whole(step):
            raise wrong("takes whole numbers; so must its step be", "step")
        found = Dimension(name, "int" if whole else "float", low, high, bool(log), step)
    if own not in found:
        raise wrong(f"the baseline's own value, {show(own)}, is not in it ({found}); widen it, or change 'set'")
    return found


def _taken(search: Search, name: str, source: dict[str, Any], value: Any) -> Any:
    """The value as the parameter takes it; only what is wrong with this parameter itself is an error here."""
    if isinstance(value, list | dict):
        message = f"space: '{name}': a choice is one value, not {show(value)}; use a study with named points"
        raise search.problem(message, "space", name, "choices")
    try:
        return flatten(Params(**lay_over(source, {name: value})))[name]
    except ValidationError as error:
        for problem in error.errors():
            if ".".join(str(part) for part in problem["loc"]).startswith(name):
                raise search.problem(f"space: '{name}': {problem['msg']}, not {show(value)}", "space", name) from None
    return value


def _is_whole(number: float) -> bool:
    return abs(number - round(number)) < 1e-9 * max(1.0, abs(number))
