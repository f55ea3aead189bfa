"""A search as a file: experiments/search-NAME.yaml -> Search, and its space of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from realm_lab.errors import UserError
from realm_lab.params.load import flatten, laid_over, placed, resolve
from realm_lab.params.parameters import Params
from realm_lab.records.metrics import CURVES
from realm_lab.runner.launchers import Part
from realm_lab.runner.plan import PlannedRun, check_parts
from realm_lab.runner.space import Space, check_dimension, check_metric, last_stage_for
from realm_lab.runner.study import DEFAULT_SYSTEM, StudyFile, overrides_of, read_study_file
from realm_lab.systems.identity import plan_run
from realm_lab.systems.registry import with_options


class Pruning(Part):
    """Rule for stopping a trial early: by the metric, or by the retrieval utility if the metric is not a curve."""

    after_steps: Annotated[int, Field(ge=1)]
    """Steps of pre-training that every trial may do; after them, every evaluation decides."""
    percentile: Annotated[float, Field(gt=0.0, lt=100.0)] = 50.0
    """A trial ends if its best value so far is worse than this percentile of complete trials at the same step."""
    min_trials: Annotated[int, Field(ge=1)] = 4
    """At least this many other trials must be complete, and have reached that step."""


class Search(StudyFile):
    """The keys of a search file, besides those that it shares with a study: question, preset, set, seeds, launcher."""

    PARTS: ClassVar[dict[str, type[BaseModel]]] = {**StudyFile.PARTS, "pruning": Pruning}

    space: Annotated[Space, Field(min_length=1)]
    """Parameter -> `{low, high}`, with `log: true` or a `step` if wanted, or `{choices: [...]}`. The parameters as they
    are, the first trial and baseline, must lie in it."""
    metric: str = "retrieval_utility"
    """The quantity to maximise, a mean over the seeds, measured on development data: a curve of
    pre-training (its last value), or a result such as `exact_match_dev`."""
    trials: Annotated[int, Field(ge=1)] = 20
    """Number of trials, including the baseline, pruned and failed ones."""
    parallel: Annotated[int, Field(ge=1)] = 1
    """Number of trials at a time."""
    sampler: Literal["tpe", "random"] = "tpe"
    """Optuna sampler that proposes trials. (For a full grid, use a study with `axes`.)"""
    pruning: Pruning | None = None
    """Rule for stopping a trial early; empty: never."""


@dataclass(frozen=True)
class SearchPlan:
    """A search over resolved parameters. `source`: the initial parameters of every trial, not validated."""

    search: Search
    source: dict[str, Any]
    base: Params
    baseline: dict[str, Any]  # parameter of the space -> its value as it is

    @property
    def name(self) -> str:
        return self.search.name

    @property
    def curve(self) -> str:
        """The curve of pre-training used for pruning."""
        return self.search.metric if self.search.metric in CURVES else "retrieval_utility"

    @property
    def last_stage(self) -> str:
        """The last stage of a trial."""
        return last_stage_for(self.search.metric)

    def as_data(self) -> dict[str, Any]:
        """Return the search in plain data."""
        search = self.search
        return {
            "name": self.name,
            "question": search.question,
            "metric": search.metric,
            "seeds": list(search.seeds),
            "source": search.path.name,
            "space": {name: dimension.model_dump(exclude_defaults=True) for name, dimension in search.space.items()},
            "baseline": self.baseline,
        }

    def runs(self, cell: str, values: Mapping[str, Any]) -> list[PlannedRun]:
        """Return the runs of a trial, one for every seed. UserError: this combination of values is invalid."""
        space = self.search.reach("space")
        tried = laid_over(self.source, {name: values[name] for name in space if name in values})
        with placed(space, tried):
            params = resolve(tried)
            check_parts(params)
        base = with_options(flatten(self.base), values)
        changes = {key: value for key, value in flatten(params).items() if value != base[key]}
        seeds = self.search.seeds
        return [PlannedRun(cell, seed, params, plan_run(params, DEFAULT_SYSTEM, seed), changes) for seed in seeds]


def plan_search(
    path: Path, root: Path, *, params_path: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> SearchPlan:
    """Read a search and check its space against the parameters; nothing is written. `overrides` (dotted name -> value;
    `preset` too) hold for every trial and override the file. UserError: one line with the file, the line, the fault
    and the remedy: an unknown key or metric, a value that its parameter cannot have, or a baseline that is not in the
    space."""
    search = read_study_file(Path(path), Search)
    below, given = search.below(params_path or Path(root) / "params.yaml", overrides or {})
    values = laid_over(laid_over(below, search.common), given)
    with placed(values["preset"], values):
        base = resolve(values)
        check_parts(base)
    with placed(search.reach("metric")):
        check_metric(search.metric, base.corpus)
    if search.pruning is not None and search.pruning.after_steps >= base.pretrain.steps:
        message = f"pruning.after_steps: a trial has {base.pretrain.steps} steps; give fewer"
        raise UserError(message, value=search.reach("pruning", "after_steps"))
    overrides_of(dict.fromkeys(search.reach("space")))  # they are parameters of a cell
    baseline = {name: with_options(flatten(base), search.space)[name] for name in search.space}
    plan = SearchPlan(search, values, base, baseline)

    def key(values: dict[str, Any]) -> str:
        return plan.runs("", values)[0].plan.key(plan.last_stage)

    with placed(values["preset"], values):
        key({})
    for name, dimension in search.space.items():
        with placed(search.reach("space", name)):
            if name in search.common or name in given:
                place = "'set'" if name in search.common else "--set"
                raise UserError(f"'{name}' is both in {place} and in 'space'; keep one")
            check_dimension(name, dimension, baseline[name], key, plan.last_stage)
    return plan
