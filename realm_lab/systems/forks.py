"""Forks: a run that continues the pre-training of another one, its parent, with other parameters from a step on.

`Params.fork` has the step, and the parent's values of the parameters that differ. The state after N steps of a training
is a separate stage, `pretrain@N`, keyed by the key of that training and N: it is computed once, whether the
parent or a fork is run first, and its folder keeps a checkpoint (systems/stages/states.py).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from realm_lab.core.files import digest
from realm_lab.errors import UserError
from realm_lab.params.load import (
    OPTIONS,
    is_same_or_inside,
    is_system_option,
    laid_over,
    own_parameters,
    part_of,
    resolve,
)
from realm_lab.params.parameters import Fork, Params
from realm_lab.systems.registry import SYSTEM, Stage, options_of, system_of, with_options

AT = "@"  # between a stage and the step of its state
BEGINNING = ("corpus", "tokenizer", "model", "warm_start", "streams")
# Parameters of pre-training without which the state of another run cannot be continued.
OF_THE_STATE = {
    "pretrain.initial_reader": "the initial models are those of the state",
    "pretrain.initial_retriever": "the initial models are those of the state",
    "pretrain.train_query_tower": "it decides if the towers are one or two",
    "pretrain.train_document_tower": "it decides if the towers are one or two",
    "pretrain.search_query": "it decides if the index keeps the query tower of its weights",
    "pretrain.causal_checkpoint": "the reader is that of the state",
    "pretrain.containment": "the reader is that of the state",
}


class Continued(NamedTuple):
    """The state that a fork continues: of a training stage with this key, after `step` steps."""

    stage: str
    key: str
    step: int

    @property
    def name(self) -> str:
        """Name of the stage that computes it."""
        return f"{self.stage}{AT}{self.step}"


def state_key(key: str, step: int) -> str:
    """Return the key of the state of a training stage after some steps."""
    return digest({"training": key, "steps": step})


def base_stage(stage: str) -> tuple[str, int | None]:
    """Return the stage that `pretrain@150` is a part of, and its steps; None for a whole stage."""
    name, _, step = stage.partition(AT)
    return name, int(step) if step else None


def fork_of(params: Params, parent: Params, step: int) -> Params:
    """Return parameters of a run that continues the one with parameters `parent` after `step` steps."""
    mine, theirs = own_parameters(params), own_parameters(parent)
    theirs = with_options(theirs, [name for name in mine if is_system_option(name)])
    differs = [name for name in theirs.keys() | mine.keys() if mine.get(name, ...) != theirs.get(name, ...)]
    parts = {part_of(name) or name for name in differs}  # a plug-in is changed with all of its options
    before = {name: value for name, value in sorted(theirs.items()) if name in parts or part_of(name) in parts}
    return params.model_copy(update={"fork": Fork(step=step, before=before)})


def parent_of(params: Params) -> Params:
    """Return the parameters of the run that a fork continues."""
    assert params.fork is not None
    return resolve(laid_over(own_parameters(params), params.fork.before))


def steps_of(params: Params, system: str) -> int:
    """Return the number of steps of a system's pre-training; 0 if no run can continue it."""
    stage = system_of(system).pretraining()
    if stage is None:
        return 0
    *sections, name = stage.steps.split(".")
    section: Any = options_of(params, system) if sections[0] == OPTIONS else None
    return int(getattr(section or functools.reduce(getattr, sections, params), name))


def check_fork(params: Params, system: str) -> Stage:
    """Return the stage that a fork continues in the middle. UserError: its system has none, the step is not before
    its end, or a changed parameter does not fit the state of the parent."""
    fork, declared = params.fork, system_of(system)
    assert fork is not None
    stage = declared.pretraining()
    if stage is None:
        problem = f"system '{declared.name}' has no pre-training that a fork can continue; leave 'fork' out"
        raise UserError(problem, parameter="fork")
    for whose, steps in (("its parent", steps_of(parent_of(params), system)), ("the fork", steps_of(params, system))):
        if fork.step >= steps:
            problem = f"fork: step {fork.step} is not before the end of {whose}, which has {steps} steps; lower it"
            raise UserError(problem, parameter="fork")
    names = list(declared.stages)
    earlier = {name for one in names[: names.index(stage)] for name in _depends_on(one, system)}
    for name in fork.before:
        if why := _why_fixed(name, _depends_on(stage, system), earlier):
            raise UserError(f"a fork cannot change '{name}': {why}; give both the same value", parameter=name)
    return stage


def _why_fixed(name: str, here: Mapping[str, None], earlier: set[str]) -> str:
    """Return why a fork cannot change a parameter; "" if it can."""
    if any(is_same_or_inside(name, above) for above in (*BEGINNING, *earlier)):
        return "what comes before its pre-training is the parent's"
    if name in OF_THE_STATE:
        return OF_THE_STATE[name]
    if name.endswith("batch_size") and any(is_same_or_inside(name, one) for one in here):
        return "the position in the data is counted in batches"
    return ""


def _depends_on(stage: Stage, system: str) -> dict[str, None]:
    """Return the parameters that a stage depends on, those of the system by their full names."""
    own = f"{OPTIONS}.{system}"
    names = (OPTIONS if name == SYSTEM else name for name in stage.depends_on if not name.startswith("-"))
    return dict.fromkeys(own + name.removeprefix(OPTIONS) if name.startswith(OPTIONS) else name for name in names)
