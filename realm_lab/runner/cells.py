"""From a study's file to its cells, baseline first: those it names, or every combination of the points of its axes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from realm_lab.params.load import show
from realm_lab.runner.settings import nearest
from realm_lab.runner.study import DEFAULT_SYSTEM, Study, overrides_of
from realm_lab.systems.registry import system_of

CELL_NAME = r"\w[\w.=,+-]*"  # as study.json and folders take it
Place = tuple[str | int, ...]


class Cell(NamedTuple):
    """One cell of a study: what all its runs have in common. `overrides` is what it sets over params.yaml, dotted name
    -> value, the study's own `set` included. `changes`, known in a plan, is what differs from the baseline in the
    resolved parameters. `places`: where in the file it sets what."""

    name: str
    title: str
    system: str
    overrides: dict[str, Any]
    changes: dict[str, Any]
    paper: str | None = None
    places: Mapping[str, Place] = MappingProxyType({})


class Point(NamedTuple):
    """One point of an axis; `name` is what it is called in the file, and in a cell's name."""

    axis: str
    name: str
    title: str
    overrides: dict[str, Any]
    place: Place


def cells_of(study: Study) -> list[Cell]:
    """All cells, the baseline first, then in the order of the file. UserError: no such baseline, a name that is unfit,
    an unknown axis or point."""
    common = overrides_of(study, study.set, "set", launch=True)
    if study.cells and study.axes:
        raise study.problem("a study has 'cells' or 'axes'; write the axes' points as cells", "axes")
    if not study.axes:
        return _named_cells(study, common)
    points = {axis: _points(study, axis) for axis in study.axes}
    baseline = _baseline_points(study, points)
    combinations = [baseline, *(chosen for chosen in itertools.product(*points.values()) if chosen != baseline)]
    return [_combined(study, chosen, points, common) for chosen in combinations]


def changes_title(changes: Mapping[str, Any]) -> str:
    """`parameter = value, ...`, each parameter by the last part of its name."""
    short = [name.rsplit(".", 1)[-1] for name in changes]
    names = [name if short.count(name.rsplit(".", 1)[-1]) > 1 else name.rsplit(".", 1)[-1] for name in changes]
    shown = zip(names, changes.values(), strict=True)
    return ", ".join(f"{name.replace('_', ' ')} = {show(value)}" for name, value in shown)


def _named_cells(study: Study, common: dict[str, Any]) -> list[Cell]:
    if not isinstance(study.baseline, str):
        raise study.problem("baseline: points are for axes and there are none; name one of the cells", "baseline")
    if study.baseline not in study.cells:
        near = nearest(study.baseline, study.cells)
        remedy = f"the nearest one is '{near}'" if near else "add cells or axes"
        raise study.problem(f"baseline: '{study.baseline}' is no cell; {remedy}", "baseline")
    found = []
    for name in sorted(study.cells, key=lambda name: name != study.baseline):
        entry = study.cells[name]
        if not re.fullmatch(CELL_NAME, name):
            raise study.problem(
                f"cell '{name}': use letters, digits and . _ = , + - only (it names files); change it", "cells", name
            )
        own = overrides_of(study, entry.set, "cells", name, "set")
        # a cell that sets nothing is known by its system, where that is not the usual one
        title = name if entry.system == DEFAULT_SYSTEM else system_of(entry.system).title
        title = entry.title or changes_title(own) or title
        places: dict[str, Place] = {key: ("cells", name, "set", key) for key in own}
        found.append(Cell(name, title, entry.system, {**common, **own}, {}, entry.paper, places))
    return found


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
        named = {point.name: point for point in there}
        spelled = (show(study.baseline[axis]), str(study.baseline[axis]))
        wanted = next((name for name in spelled if name in named), spelled[0])
        study.choose(wanted, named, f"baseline: '{wanted}' is no point of axis '{axis}'", "baseline", axis)
        chosen.append(named[wanted])
    return tuple(chosen)


def _points(study: Study, axis: str) -> list[Point]:
    given = study.axes[axis]
    if not given:
        raise study.problem(f"axis '{axis}' has no points; list some, or delete it", "axes", axis)
    found: list[Point] = []
    for key, value in enumerate(given) if isinstance(given, list) else given.items():
        place: Place = ("axes", axis, key)
        if not isinstance(key, str):  # a value of the parameter that the axis is
            if isinstance(value, dict):
                raise study.problem(f"axis '{axis}': a point that sets parameters needs a name: NAME: {{...}}", *place)
            overrides = overrides_of(study, {axis: value}, *place)
            point = Point(axis, show(value), changes_title(overrides), overrides, place)
        else:
            point = _named_point(study, axis, key, value)
        if any(point.name == other.name or point.overrides == other.overrides for other in found):
            raise study.problem(f"axis '{axis}': point '{point.name}' is there twice; keep one", *place)
        found.append(point)
    return found


def _named_point(study: Study, axis: str, name: str, value: Any) -> Point:
    """`name: {parameter: value}`, or with a title, `name: {title: ..., set: {...}}`, or a value of the axis."""
    place: Place = ("axes", axis, name)
    title, inner = name.replace("_", " "), place
    if not isinstance(value, dict):
        value = {} if value is None else {axis: value}
    elif "title" in value or "set" in value:
        for key in value:
            if key not in ("title", "set"):
                raise study.problem(f"unknown key '{key}' of a point; valid: 'title', 'set'", *place, key)
        title, value, inner = str(value.get("title", title)), value.get("set") or {}, (*place, "set")
    return Point(axis, name, title, overrides_of(study, value, *inner), place)


def _combined(
    study: Study, chosen: Sequence[Point], points: Mapping[str, Sequence[Point]], common: dict[str, Any]
) -> Cell:
    overrides = dict(common)
    places: dict[str, Place] = {}
    for number, point in enumerate(chosen):
        for other in chosen[:number]:
            for key in point.overrides.keys() & other.overrides.keys():
                message = f"axes '{other.axis}' and '{point.axis}' both set '{key}'; merge them into one axis"
                raise study.problem(message, *point.place)
        overrides |= point.overrides
        places |= dict.fromkeys(point.overrides, point.place)
    short = [axis.rsplit(".", 1)[-1] for axis in points]
    names = []
    for point in chosen:
        own = point.axis.rsplit(".", 1)[-1]
        listed = isinstance(study.axes[point.axis], list)
        clash = sum(point.name == other.name for others in points.values() for other in others) > 1
        axis = own if short.count(own) == 1 else point.axis
        names.append(f"{axis}={point.name}" if listed or clash else point.name)
    name = ",".join(names)
    if not re.fullmatch(CELL_NAME, name):
        place = next((point.place for point in chosen if not re.fullmatch(r"[\w.=,+-]+", point.name)), ("axes",))
        remedy = "give the point a name of letters, digits and . _ = , + -: NAME: VALUE"
        raise study.problem(f"axes: '{name}' cannot name a cell; {remedy}", *place)
    return Cell(name, ", ".join(point.title for point in chosen), DEFAULT_SYSTEM, overrides, {}, None, places)
