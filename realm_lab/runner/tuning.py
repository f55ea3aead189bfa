"""The grid of a study, `tune`: every cell that pre-trains at every other value of one parameter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from realm_lab.metrics import CURVES
from realm_lab.params.load import show
from realm_lab.runner.design import CELL_NAME, Cell, Place, changes_title
from realm_lab.runner.study import Study, Tune, nearest, overrides_of

# Curves on development data of which more is better: by one of them a value can be better than another.
CHOSEN_BY = [name for name, curve in CURVES.items() if curve.split == "dev" and curve.better == "up"]


class TunedCell(NamedTuple):
    """A cell at another value of the tuned parameter than its own; `of` is the cell's name as it is."""

    cell: Cell
    of: str
    value: Any


def check_tune(study: Study, cells: Sequence[Cell]) -> Tune | None:
    """The study's grid, checked as far as that needs no value of the parameter in the cells.

    Raises:
        UserError: a parameter that is unknown, none of pre-training, or changed by a cell; a value or seed twice, or a
            seed that is none of the study's; an unknown metric.
    """
    tune = study.tune
    if tune is None:
        return None
    overrides_of(study, {tune.parameter: None}, "tune", "parameter")
    if not tune.parameter.startswith("pretrain."):
        raise study.problem(
            f"tune: '{tune.parameter}' is no parameter of pre-training, by whose end a value is chosen; name one, such "
            "as pretrain.retriever.learning_rate",
            "tune",
            "parameter",
        )
    for cell in cells:
        if tune.parameter in cell.places:
            raise study.problem(
                f"cell '{cell.name}' changes '{tune.parameter}', which 'tune' varies in every cell; leave one of the "
                "two away",
                *cell.places[tune.parameter],
            )
    for place, value in enumerate(tune.values):
        if value in tune.values[:place]:
            raise study.problem(f"tune.values: {show(value)} is there twice; keep one", "tune", "values", place)
    for place, seed in enumerate(tune.seeds):
        if seed in tune.seeds[:place]:
            raise study.problem(f"tune.seeds: {seed} is named twice; name each seed once", "tune", "seeds", place)
        if seed not in study.seeds:
            known = ", ".join(map(str, study.seeds))
            raise study.problem(
                f"tune.seeds: {seed} is no seed of the study; choose among {known}", "tune", "seeds", place
            )
    if tune.by not in CHOSEN_BY:
        raise study.problem(
            f"tune.by: '{tune.by}' is no curve of pre-training of which more is better; the nearest one is "
            f"'{nearest(tune.by, CHOSEN_BY)}'",
            "tune",
            "by",
        )
    return tune


def own_value(study: Study, tune: Tune, found: Any) -> Any:
    """The value of the grid that is the cells' own; `found` is what the baseline's parameters say.

    Raises:
        UserError: the grid does not have it.
    """
    for value in tune.values:
        if value == found and isinstance(value, bool) == isinstance(found, bool):
            return value
    listed = ", ".join(show(value) for value in [found, *tune.values])
    raise study.problem(
        f"tune.values: {show(found)}, which the cells have otherwise, is not among them; all values must be compared "
        f"with it: [{listed}]",
        "tune",
        "values",
    )


def tuned_cells(study: Study, tune: Tune, own: Any, cells: Sequence[Cell]) -> list[TunedCell]:
    """Every cell that pre-trains at every value but its own, in the order of the cells."""
    short = tune.parameter.rsplit(".", 1)[-1]
    found = []
    names = {cell.name for cell in cells}
    for cell in cells:
        if cell.system == "warm_start":
            continue
        for number, value in enumerate(tune.values):
            if value == own:
                continue
            place: Place = ("tune", "values", number)
            name = f"{cell.name},{short}={show(value)}"
            if not _fits(name) or name in names:
                raise study.problem(
                    f"tune.values: {show(value)} cannot name a cell ('{name}'); use plain numbers or words", *place
                )
            names.add(name)
            title = f"{cell.title}, {changes_title({tune.parameter: value})}"
            places = {**cell.places, tune.parameter: place}
            overrides = {**cell.overrides, tune.parameter: value}
            found.append(
                TunedCell(cell._replace(name=name, title=title, overrides=overrides, places=places), cell.name, value)
            )
    return found


def _fits(name: str) -> bool:

    return re.fullmatch(CELL_NAME, name) is not None
