"""A search as a file: experiments/search-NAME.yaml -> Search, and the space of parameters that it looks through."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from realm_lab.errors import UserError
from realm_lab.metrics import CURVES, METRICS
from realm_lab.params.load import Source, flatten, lay_over, read_source, show
from realm_lab.params.parameters import Params
from realm_lab.params.yaml_file import read_yaml
from realm_lab.runner.study import Part, StudyFile, check_keys, explain_problem, nearest, overrides_of, plain
from realm_lab.systems.identity import Plan, plan_run

RANGE, CHOICES = ("low", "high", "log", "step"), ("choices",)
ON_GRID = 1e-9  # of a step: how far off a value may be that the computer has rounded


class Pruning(Part):
    """When a trial is given up before its end."""

    after_steps: Annotated[int, Field(ge=1, strict=True)]
    """Steps of pre-training that every trial may do; after them it is looked at whenever it is evaluated."""
    percentile: Annotated[float, Field(gt=0.0, lt=100.0)] = 50.0
    """It ends when it is worse than this percentile of what the other trials had at the same step; 50 is the median."""
    min_trials: Annotated[int, Field(ge=1, strict=True)] = 4
    """So many other trials must have been at that step."""
    metric: str = "retrieval_utility"
    """What is looked at: higher is better. The paper finds the utility more predictive than the likelihood."""


class Search(StudyFile):
    """The keys of a search file, beside those that it shares with a study: question, preset, set, seeds, launcher."""

    space: Annotated[dict[str, Any], Field(min_length=1)]
    """Parameter -> `{low, high}`, with `log: true` or a `step` if wanted, or `{choices: [...]}`. The parameters as they
    are, the first trial and baseline, must lie in it."""
    metric: str = "retrieval_utility"
    """What is searched for, a mean over the seeds: a curve of pre-training (its last value), or a final result."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Whether more of the metric is better."""
    until: Literal["pretrain", "evaluate"] | None = None
    """The last stage of a trial; empty: `pretrain` where the metric is a curve of it: no fine-tuning is paid then."""
    trials: Annotated[int, Field(ge=1, strict=True)] = 20
    """How many, the baseline, pruned and failed ones included."""
    parallel: Annotated[int, Field(ge=1, strict=True)] = 1
    """How many at a time."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """Who proposes trials; `grid`: every point of the space, in order."""
    sampler_seed: Annotated[int, Field(ge=0, strict=True)] = 0
    """Seed of the sampler: the same trials with the same results propose the same."""
    pruning: Pruning | None = None
    """When a trial is given up before its end; empty: never."""


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

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values that stand for all others when a parameter's type and bounds are checked."""
        return self.choices if self.kind == "choices" else (self.low, self.high)

    def points(self) -> list[Any] | None:
        """Every value there is; None if there are too many to name."""
        if self.kind == "choices":
            return list(self.choices)
        if self.step is None:
            return None if self.kind == "float" or self.log else list(range(int(self.low), int(self.high) + 1))
        count = round((self.high - self.low) / self.step) + 1
        values = [self.low + number * self.step for number in range(count)]
        return [int(value) for value in values] if self.kind == "int" else values


@dataclass(frozen=True)
class SearchPlan:
    """A search over resolved parameters. `source`: those that every trial starts from, nothing validated."""

    search: Search
    source: dict[str, Any]
    base: Params
    space: tuple[Dimension, ...]

    @property
    def name(self) -> str:
        """Of the search and of its study."""
        return self.search.name

    @property
    def baseline(self) -> dict[str, Any]:
        """The parameters of the space as they are."""
        flat = flatten(self.base)
        return {dimension.name: flat[dimension.name] for dimension in self.space}

    @property
    def last_stage(self) -> str:
        """Of a trial."""
        return self.search.until or ("pretrain" if self.search.metric in CURVES else "evaluate")

    def params(self, values: Mapping[str, Any]) -> Params:
        """The parameters of a trial.

        Raises:
            UserError: this combination of values is none.
        """
        try:
            return Params(**lay_over(self.source, values))
        except ValidationError as error:
            raise UserError(_problem(error)) from None

    def runs(self, values: Mapping[str, Any]) -> tuple[Params, list[Plan]]:
        """The parameters of a trial and its runs, one for every seed."""
        params = self.params(values)
        return params, [plan_run(params, "realm", seed) for seed in self.search.seeds]

    def grid(self) -> list[dict[str, Any]]:
        """Every combination of the space's points; a space without points was refused for a grid."""
        points = [dimension.points() or [] for dimension in self.space]
        names = [dimension.name for dimension in self.space]
        return [dict(zip(names, values, strict=True)) for values in itertools.product(*points)]


def load_search(path: Path | str) -> Search:
    """Read and check a search file; the space is checked by `plan_search`.

    Raises:
        UserError: one line with the file, the line, what is wrong there, and the remedy.
    """
    path = Path(path)
    if not path.is_file():
        near = nearest(path.stem, sorted(other.stem for other in path.parent.glob("search-*.yaml")))
        remedy = (
            f"did you mean {path.with_name(f'{near}.yaml')}?" if near else "name a file, experiments/search-NAME.yaml"
        )
        raise UserError(f"{path}: no such search; {remedy}")
    document = read_yaml(path)
    check_keys(document, Search, path, document, ())
    if isinstance(document.get("pruning"), dict):
        check_keys(document["pruning"], Pruning, path, document, ("pruning",))
    given = {key: value for key, value in plain(document).items() if value is not None}
    try:
        search = Search(**given)
    except ValidationError as error:
        raise UserError(explain_problem(error.errors()[0], path, document)) from None
    search.read_from(path, document)
    _check_metric(search)
    return search


def plan_search(path: Path, root: Path, *, params_path: Path | None = None) -> SearchPlan:
    """A search with its space checked against the parameters; nothing is written.

    Raises:
        UserError: the file is wrong, a value is none that its parameter can have, or the baseline is not in the space.
    """
    search = load_search(path)
    preset = {} if search.preset is None else {"preset": search.preset}
    source = read_source(params_path or Path(root) / "params.yaml", preset)
    common = overrides_of(search, search.set, "set", launch=True)
    base = _base(search, source, common)
    values = lay_over(source.values, common)
    flat = flatten(base)
    names = overrides_of(search, dict.fromkeys(search.space), "space")
    for name in names.keys() & common.keys():
        raise search.problem(f"'{name}' is both in 'set' and in 'space'; keep one", "space", name)
    space = tuple(_dimension(search, name, values, flat.get(name)) for name in names)
    if search.sampler == "grid":
        for dimension in space:
            if dimension.points() is None:
                message = f"space: '{dimension.name}' has too many values for a grid; give a 'step' or 'choices'"
                raise search.problem(message, "space", dimension.name)
    pruning = search.pruning
    if pruning is not None and pruning.after_steps >= base.pretrain.steps:
        message = f"pruning.after_steps: a trial has {base.pretrain.steps} steps; give fewer"
        raise search.problem(message, "pruning", "after_steps")
    plan = SearchPlan(search, values, base, space)
    _check_effects(plan)
    return plan


def _check_effects(plan: SearchPlan) -> None:
    """Each parameter of the space changes what a trial does."""
    own = plan_run(plan.base, "realm", plan.search.seeds[0]).key(plan.last_stage)
    for dimension in plan.space:
        for value in dimension.ends:
            params = plan.params({dimension.name: value})
            if params == plan.base:
                continue
            if plan_run(params, "realm", plan.search.seeds[0]).key(plan.last_stage) == own:
                message = f"space: '{dimension.name}' changes nothing up to '{plan.last_stage}', where a trial ends"
                raise plan.search.problem(
                    f"{message}; leave it away, or change 'until' or 'metric'", "space", dimension.name
                )


def _check_metric(search: Search) -> None:
    known = [*CURVES, *METRICS]
    if search.metric not in known:
        near = nearest(search.metric, known)
        raise search.problem(f"metric: unknown metric '{search.metric}'; the nearest valid one is '{near}'", "metric")
    if search.until == "pretrain" and search.metric not in CURVES:
        raise search.problem(f"until: '{search.metric}' is known after 'evaluate' only; leave 'until' away", "until")
    if search.until == "evaluate" and search.metric not in METRICS:
        raise search.problem(f"until: '{search.metric}' is known after 'pretrain'; leave 'until' away", "until")
    if search.pruning is not None and search.pruning.metric not in CURVES:
        near = nearest(search.pruning.metric, CURVES)
        message = f"pruning.metric: '{search.pruning.metric}' is no curve of pre-training; the nearest one is '{near}'"
        raise search.problem(message, "pruning", "metric")


def _base(search: Search, source: Source, common: Mapping[str, Any]) -> Params:
    try:
        return Params(**lay_over(source.values, common))
    except ValidationError as error:
        location = ".".join(str(part) for part in error.errors()[0]["loc"])
        named = [name for name in common if name == location or location.startswith(f"{name}.")]
        raise search.problem(f"set: {_problem(error)}", "set", *named[:1]) from None


def _dimension(search: Search, name: str, source: dict[str, Any], own: Any) -> Dimension:
    """One entry of `space`, checked by what the parameter takes."""
    given = search.space[name]
    if not isinstance(given, dict) or not (given.keys() & {"low", "high", "choices"}):
        message = f"space: '{name}' needs {{low: ..., high: ...}} or {{choices: [...]}}"
        raise search.problem(message, "space", name)
    known = CHOICES if "choices" in given else RANGE
    for key in given:
        if key not in known:
            near = nearest(key, known)
            raise search.problem(
                f"space: unknown key '{key}' of '{name}'; the nearest valid one is '{near}'", "space", name, key
            )
    found = _choices(search, name, given) if "choices" in given else _range(search, name, given)
    resolved = [_resolved(search, name, source, value) for value in found.ends]
    if found.kind != "choices":
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in resolved):
            raise search.problem(f"space: '{name}' is no number; list its values as 'choices'", "space", name)
        if all(isinstance(value, int) for value in resolved):
            found = _whole(search, found)
    else:
        found = Dimension(name, "choices", choices=tuple(resolved))
    if own not in found:
        raise search.problem(
            f"space: the baseline's own value of '{name}', {show(own)}, is not in it ({found}); "
            "widen it, or change the baseline under 'set'",
            *("space", name),
        )
    return found


def _choices(search: Search, name: str, given: Mapping[str, Any]) -> Dimension:
    values = given["choices"]
    if not isinstance(values, list) or len(values) < 2:
        raise search.problem(
            f"space: the choices of '{name}' are a list of two or more values", "space", name, "choices"
        )
    for number, value in enumerate(values):
        if isinstance(value, list | dict):
            message = f"space: a choice of '{name}' is one value, not {show(value)}; use a study with named points"
            raise search.problem(message, "space", name, "choices", number)
        if value in values[:number]:
            raise search.problem(
                f"space: {show(value)} is twice in '{name}'; keep one", "space", name, "choices", number
            )
    return Dimension(name, "choices", choices=tuple(values))


def _range(search: Search, name: str, given: Mapping[str, Any]) -> Dimension:
    for key in ("low", "high", "step"):
        value = given.get(key, 0 if key == "step" else None)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise search.problem(f"space: '{key}' of '{name}' is a number, not {show(value)}", "space", name, key)
    low, high, log, step = given["low"], given["high"], given.get("log", False), given.get("step")
    if low >= high:
        raise search.problem(f"space: '{name}': low {show(low)} is not below high {show(high)}", "space", name, "low")
    if not isinstance(log, bool):
        raise search.problem(f"space: 'log' of '{name}' is true or false, not {show(log)}", "space", name, "log")
    if log and low <= 0:
        raise search.problem(f"space: '{name}': a log scale begins above 0; raise low", "space", name, "low")
    if step is not None:
        if log:
            raise search.problem(f"space: '{name}' has a log scale and a step; keep one", "space", name, "step")
        if step <= 0 or not _is_whole((high - low) / step):
            message = (
                f"space: '{name}': from {show(low)}, steps of {show(step)} do not lead to {show(high)}; change one"
            )
            raise search.problem(message, "space", name, "step")
    return Dimension(name, "float", low, high, log, step)


def _whole(search: Search, found: Dimension) -> Dimension:
    """The range of a parameter that takes whole numbers."""
    if found.step is not None and not _is_whole(found.step):
        raise search.problem(
            f"space: '{found.name}' takes whole numbers; so must its step be", "space", found.name, "step"
        )
    step = None if found.step is None else int(found.step)
    return Dimension(found.name, "int", int(found.low), int(found.high), found.log, step)


def _resolved(search: Search, name: str, source: dict[str, Any], value: Any) -> Any:
    """The value as the parameter takes it; only what is wrong with this parameter itself is an error here."""
    try:
        return flatten(Params(**lay_over(source, {name: value})))[name]
    except ValidationError as error:
        raise search.problem(f"space: {name} = {show(value)}: {_problem(error)}", "space", name) from None
    except KeyError:
        message = f"space: '{name}' = {show(value)} takes another parameter away; choose one value"
        raise search.problem(message, "space", name) from None


def _problem(error: ValidationError) -> str:
    """What pydantic found, in a few words: the parameter, and what is wrong with it."""
    problem = error.errors()[0]
    location = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    given = problem.get("input")
    shown = f" (given: {show(given)})" if not isinstance(given, dict | BaseModel) else ""
    return f"{f'parameter {location!r}: ' if location else ''}{message[0].lower()}{message[1:]}{shown}"


def _is_whole(number: float) -> bool:
    return abs(number - round(number)) <= ON_GRID * max(1.0, abs(number))
