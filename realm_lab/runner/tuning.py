"""The grid of a study, `tune`: every cell that has the tuned stage, at every other value of one parameter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from realm_lab.params.load import flatten, show
from realm_lab.params.parameters import Params
from realm_lab.runner.cells import CELL_NAME, Cell, Place, changes_title
from realm_lab.runner.study import Study, Tune, check_choice, overrides_of
from realm_lab.systems.registry import system_of

STAGE = "pretrain"  # which a grid varies


class TunedCell(NamedTuple):
    """A cell at another value of the tuned parameter than its own; `of` is the cell's name as it is."""

    cell: Cell
    of: str
    value: Any


class Grid(NamedTuple):
    """The grid of a plan: `own` is the value of the cells as they are, `seeds` those that every value is run with."""

    tune: Tune
    own: Any
    seeds: tuple[int, ...]
    cells: tuple[TunedCell, ...]


def grid_of(study: Study, tune: Tune, cells: Sequence[Cell], base: Params, seeds: Sequence[int]) -> Grid:
    """Every cell with the tuned stage at every value but its own, which is that of the `base` parameters. UserError: a
    parameter that is unknown, none of pre-training, or changed by a cell; a value or seed twice, or a seed that is none
    of the study's; a measure that may choose nothing."""
    overrides_of(study, {tune.parameter: None}, "tune", "parameter")
    if not tune.parameter.startswith(f"{STAGE}."):
        message = f"tune: '{tune.parameter}' is no parameter of pre-training, which a grid varies"
        raise study.problem(f"{message}; name one, such as pretrain.retriever.learning_rate", "tune", "parameter")
    for cell in cells:
        if tune.parameter in cell.places:
            message = f"cell '{cell.name}' changes '{tune.parameter}', which 'tune' varies in every cell"
            raise study.problem(f"{message}; leave one of the two away", *cell.places[tune.parameter])
    study.refuse_twice(tune.values, "tune", "values")
    study.refuse_twice(tune.seeds, "tune", "seeds")
    for number, seed in enumerate(tune.seeds):
        if seed not in study.seeds:
            message = f"tune.seeds: {seed} is no seed of the study; choose among {', '.join(map(str, study.seeds))}"
            raise study.problem(message, "tune", "seeds", number)
    check_choice(study, tune.by, base.corpus, "tune", "by")
    own = flatten(base)[tune.parameter]
    if own not in tune.values:
        listed = ", ".join(show(value) for value in [own, *tune.values])
        message = f"tune.values: {show(own)}, which the cells have otherwise, is not among them"
        raise study.problem(f"{message}; all values must be compared with it: [{listed}]", "tune", "values")
    short = tune.parameter.rsplit(".", 1)[-1]
    tuned = []
    for cell in cells:
        if STAGE not in [stage.name for stage in system_of(cell.system).stages]:
            continue  # the same at every value
        for number, value in enumerate(tune.values):
            if value == own:
                continue
            place: Place = ("tune", "values", number)
            name = f"{cell.name},{short}={show(value)}"
            if not re.fullmatch(CELL_NAME, name):
                message = f"tune.values: {show(value)} cannot name a cell ('{name}'); use plain numbers or words"
                raise study.problem(message, *place)
            at = cell._replace(
                name=name,
                title=f"{cell.title}, {changes_title({tune.parameter: value})}",
                overrides={**cell.overrides, tune.parameter: value},
                places={**cell.places, tune.parameter: place},
            )
            tuned.append(TunedCell(at, cell.name, value))
    return Grid(tune, own, tuple(seed for seed in tune.seeds if seed in seeds), tuple(tuned))
