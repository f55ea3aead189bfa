"""Turn a study's file into its cells, baseline first: the named ones, or every combination of the points of its
axes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from realm_lab.core.names import check_name, is_name
from realm_lab.errors import suggestion
from realm_lab.params.load import OPTIONS, laid_over, show
from realm_lab.runner.study import DEFAULT_SYSTEM, Study, overrides_of
from realm_lab.systems.registry import system_of

IN_CELLS = "=,+"  # further characters in names of cells
Place = tuple[str | int, ...]


class Cell(NamedTuple):
    """One cell of a study: the common part of all its runs. `overrides` are its settings over params.yaml, dotted name
    -> value, the study's `set` included. `changes`, known in a plan, are its differences from the baseline in the
    resolved parameters. `places`: the keys in the file that set each parameter."""

    name: str
    title: str
    system: str
    overrides: dict[str, Any]
    changes: dict[str, Any]
    paper: str | None = None
    places: Mapping[str, Place] = MappingProxyType({})


class Point(NamedTuple):
    """One point of an axis; `name` is its name in the file, `part` its part of a cell's name."""

    name: str
    part: str
    title: str
    overrides: dict[str, Any]
    place: Place


def cells_of(study: Study) -> list[Cell]:
    """Return all cells, the baseline first, then in the order of the file. UserError: no such baseline, an invalid
    name, an unknown axis or point."""
    common = overrides_of(study, study.set, "set", launch=True)
    if study.cells and study.axes:
        raise study.problem("a study has 'cells' or 'axes'; write the axes' points as cells", "axes")
    if not study.axes:
        return _named_cells(study, common)
    points = {axis: _points(study, axis) for axis in study.axes}
    baseline = _baseline_points(study, points)
    combinations = [baseline, *(chosen for chosen in itertools.product(*points.values()) if chosen != baseline)]
    return [_combined(study, chosen, common) for chosen in combinations]


def changes_title(changes: Mapping[str, Any]) -> str:
    """`parameter = value, ...`."""
    names = _short(changes)
    return ", ".join(f"{names[name].replace('_', ' ')} = {show(value)}" for name, value in changes.items())


def _short(names: Iterable[str]) -> dict[str, str]:
    """Return dotted name -> its last part, or the whole name if another ends in the same."""
    last = {name: name.rsplit(".", 1)[-1] for name in names}
    return {name: end if list(last.values()).count(end) == 1 else name for name, end in last.items()}


def _named_cells(study: Study, common: dict[str, Any]) -> list[Cell]:
    if not isinstance(study.baseline, str):
        raise study.problem("baseline: points are for axes and there are none; name one of the cells", "baseline")
    if study.baseline not in study.cells:
        remedy = suggestion(study.baseline, study.cells) if study.cells else "add cells or axes"
        raise study.problem(f"baseline: '{study.baseline}' is no cell; {remedy}", "baseline")
    found = []
    for name in sorted(study.cells, key=lambda name: name != study.baseline):
        entry = study.cells[name]
        with study.at("cells", name):
            check_name(name, "cell", IN_CELLS)
        own = overrides_of(study, entry.set, "cells", name, "set")
        places: dict[str, Place] = {key: ("cells", name, "set", key) for key in own}
        for option, value in entry.system.options.items():
            key, place = f"{OPTIONS}.{entry.system.name}.{option}", ("cells", name, "system", option)
            if key in own:
                raise study.problem(f"parameter '{key}' is set twice; keep one", *place)
            own[key], places[key] = value, place
        system = "" if entry.system.name == DEFAULT_SYSTEM else system_of(entry.system.name).title
        title = entry.title or ", ".join(filter(None, (system, changes_title(own)))) or name
        found.append(Cell(name, title, entry.system.name, laid_over(common, own), {}, entry.paper, places))
    return found


def value_in_name(value: str) -> str:
    """Write a value as part of a cell's name: custom code by its name, `{name: span, share: 0.3}` as
    `span+share=0.3`."""
    if is_name(f"_{value}", "=+"):
        return value
    plain = re.sub(r"[\w.]+:(?=\w)", "", value.removeprefix("{name: ")).replace(": ", "=").replace(", ", "+")
    return re.sub(r"[^\w.=+-]", "", plain)


def _baseline_points(study: Study, points: Mapping[str, Sequence[Point]]) -> tuple[Point, ...]:
    if isinstance(study.baseline, str):
        remedy = f"with axes, name a point of each: {{{', '.join(f'{axis}: ...' for axis in points)}}}"
        raise study.problem(f"baseline: '{study.baseline}' is no cell; {remedy}", "baseline")
    for axis in study.baseline:
        study.choose(axis, points, f"baseline: '{axis}' is no axis", "baseline", axis)
    chosen = []
    for axis, there in points.items():
        if axis not in study.baseline:
            raise study.problem(f"baseline: no point of axis '{axis}'; add one", "baseline")
        named, wanted = {point.name: point for point in there}, show(study.baseline[axis])
        study.choose(wanted, named, f"baseline: '{wanted}' is no point of axis '{axis}'", "baseline", axis)
        chosen.append(named[wanted])
    return tuple(chosen)


def _points(study: Study, axis: str) -> list[Point]:
    """Return the points of an axis: values of a parameter, or names with their settings."""
    given = study.axes[axis]
    if not given:
        raise study.problem(f"axis '{axis}' has no points; list some, or delete it", "axes", axis)
    found: list[Point] = []
    for key, value in enumerate(given) if isinstance(given, list) else given.items():
        place: Place = ("axes", axis, key)
        is_named = isinstance(key, str)
        if is_named != isinstance(value, dict) and not (isinstance(value, dict) and "name" in value):
            raise study.problem(f"axis '{axis}': list values, or name points that set some, NAME: {{...}}", *place)
        overrides = overrides_of(study, value if is_named else {axis: value}, *place)
        if is_named:
            point = Point(str(key), str(key), str(key).replace("_", " "), overrides, place)
        else:
            part = f"{_short(study.axes)[axis]}={value_in_name(show(value))}"
            point = Point(show(value), part, changes_title(overrides), overrides, place)
        if any(point.name == other.name or point.overrides == other.overrides for other in found):
            raise study.problem(f"axis '{axis}': point '{point.name}' is listed twice; keep one", *place)
        if any(point.part == other.part for other in found):
            remedy = "name the points: NAME: {PARAMETER: VALUE}"
            raise study.problem(f"axis '{axis}': two points would be called '{point.part}'; {remedy}", *place)
        found.append(point)
    return found


def _combined(study: Study, chosen: Sequence[Point], common: dict[str, Any]) -> Cell:
    """Return the cell of a point of each axis."""
    places: dict[str, Place] = {}
    overrides: dict[str, Any] = {}
    for point in chosen:
        for key in point.overrides.keys() & overrides.keys():
            raise study.problem(f"two axes both set '{key}'; merge them into one axis", *point.place)
        overrides |= point.overrides
        places |= dict.fromkeys(point.overrides, point.place)
    name = ",".join(point.part for point in chosen)
    if not is_name(name, IN_CELLS):
        remedy = "name its points with letters, digits and . _ = , + - only: NAME: {PARAMETER: VALUE}"
        raise study.problem(f"axes: '{name}' cannot name a cell; {remedy}", "axes")
    title = ", ".join(point.title for point in chosen)
    return Cell(name, title, DEFAULT_SYSTEM, laid_over(common, overrides), {}, None, places)
