"""From a study's cells and axes to its cells, baseline first."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from realm_lab.params.load import show
from realm_lab.runner.study import Study, nearest, overrides_of

CELL_NAME = r"\w[\w.=,+-]*"  # as study.json and folders take it
Place = tuple[str | int, ...]


class Cell(NamedTuple):
    """One cell of a study: what every one of its runs has in common.

    `overrides` is what it sets over params.yaml, dotted name -> value, the study's own `set` included. `changes` is
    what differs from the baseline: here of the overrides, in a plan of the resolved parameters. A cell `from_axes` that
    turns out to be the baseline is left out, any other that does is an error. `places`: where in the file it sets what.
    """

    name: str
    title: str
    system: str
    overrides: dict[str, Any]
    changes: dict[str, Any]
    paper: str | None = None
    from_axes: bool = False
    places: Mapping[str, Place] = MappingProxyType({})


class PointOf(NamedTuple):
    """One point of an axis."""

    axis: str
    name: str  # what it is called in the file, and in a cell's name
    title: str
    overrides: dict[str, Any]
    place: Place


def cells_of(study: Study) -> list[Cell]:
    """All cells, the baseline first, then in the order of the file: `cells` before those that the axes make.

    Raises:
        UserError: no such baseline, a name that is there twice or unfit, an unknown axis or point, an exclusion that
            matches nothing or the baseline.
    """
    points = {axis: _points(study, axis) for axis in study.axes}
    _check_exclusions(study, points)
    common = overrides_of(study, study.set, "set", launch=True)
    base, chosen = _baseline(study, points, common)
    cells = [base]
    for name in study.cells:
        if name != base.name or not isinstance(study.baseline, str):
            cells.append(_named(study, name, base.overrides if points else common, base.places if points else {}))
    matched: set[int] = set()
    for combination in _combinations(study, points, chosen):
        excluded = {number for number, rule in enumerate(study.exclude) if _matches(rule, combination)}
        matched |= excluded
        if excluded and chosen and combination == tuple(chosen[axis] for axis in points):
            raise study.problem(
                "exclude: this leaves out the baseline; choose another baseline", "exclude", min(excluded)
            )
        if not excluded and combination != tuple(chosen.get(axis) for axis in points):
            cells.append(_combined(study, combination, chosen, base, points))
    for number, rule in enumerate(study.exclude):
        if number not in matched:
            raise study.problem(f"exclude: {_shown(rule)} matches no cell; correct or delete it", "exclude", number)
    _check_names(study, cells)
    return [cell._replace(changes=_differences(cell, base)) for cell in cells]


def changes_title(changes: Mapping[str, Any]) -> str:
    """`parameter = value, ...`, each parameter by the last part of its name."""
    short = [name.rsplit(".", 1)[-1] for name in changes]
    names = [name if short.count(name.rsplit(".", 1)[-1]) > 1 else name.rsplit(".", 1)[-1] for name in changes]
    shown = zip(names, changes.values(), strict=True)
    return ", ".join(f"{name.replace('_', ' ')} = {show(value)}" for name, value in shown)


def _baseline(
    study: Study, points: dict[str, list[PointOf]], common: dict[str, Any]
) -> tuple[Cell, dict[str, PointOf]]:
    """The baseline cell, and its point on each axis where the file says so by points."""
    if isinstance(study.baseline, str):
        if study.baseline not in study.cells:
            if not study.cells:
                remedy = f"with axes, name a point of each: {{{', '.join(f'{axis}: ...' for axis in points)}}}"
                remedy = remedy if points else "add cells or axes"
            else:
                remedy = f"the nearest one is '{nearest(study.baseline, study.cells)}'"
            raise study.problem(f"baseline: '{study.baseline}' is no cell; {remedy}", "baseline")
        return _named(study, study.baseline, common, {}), {}
    if not points:
        raise study.problem("baseline: points are for axes and there are none; name one of the cells", "baseline")
    for axis in study.baseline:
        if axis not in points:
            near = nearest(axis, points)
            raise study.problem(f"baseline: '{axis}' is no axis; the nearest one is '{near}'", "baseline", axis)
    chosen = {}
    for axis in points:
        if axis not in study.baseline:
            raise study.problem(f"baseline: no point of axis '{axis}'; add one", "baseline")
        chosen[axis] = _find(study, points[axis], study.baseline[axis], "baseline", axis)
    base = Cell("", "", "realm", dict(common), {}, None, True, {})
    own: tuple[PointOf, ...] = ()
    for point in chosen.values():
        base = _with_point(study, base, point, own)
        own = (*own, point)
    return base._replace(
        name=_combined_name(study, tuple(chosen.values()), points, {}), title=_title(chosen.values())
    ), chosen


def _named(study: Study, name: str, below: Mapping[str, Any], places: Mapping[str, Place]) -> Cell:
    entry = study.cells[name]
    own = overrides_of(study, entry.set, "cells", name, "set")
    title = entry.title or changes_title(own) or ("warm start only" if entry.system == "warm_start" else name)
    where: dict[str, Place] = dict(places) | {key: ("cells", name, "set", key) for key in own}
    return Cell(name, title, entry.system, {**below, **own}, {}, entry.paper, False, where)


def _points(study: Study, axis: str) -> list[PointOf]:
    given = study.axes[axis]
    if not given:
        raise study.problem(f"axis '{axis}' has no points; list some, or delete it", "axes", axis)
    if isinstance(given, list):
        found = []
        for number, value in enumerate(given):
            place: Place = ("axes", axis, number)
            if isinstance(value, dict):
                raise study.problem(f"axis '{axis}': a point that sets parameters needs a name: NAME: {{...}}", *place)
            overrides = overrides_of(study, {axis: value}, *place)
            found.append(PointOf(axis, show(value), changes_title(overrides), overrides, place))
    else:
        found = [_named_point(study, axis, name, value) for name, value in given.items()]
    for number, point in enumerate(found):
        if any(point.name == other.name or point.overrides == other.overrides for other in found[:number]):
            raise study.problem(f"axis '{axis}': point '{point.name}' is there twice; keep one", *point.place)
    return found


def _named_point(study: Study, axis: str, name: str, value: Any) -> PointOf:
    place: Place = ("axes", axis, name)
    title = name.replace("_", " ")
    if isinstance(value, dict):
        if "title" in value or "set" in value:
            for key in value:
                if key not in ("title", "set"):
                    raise study.problem(f"unknown key '{key}' of a point; valid: 'title', 'set'", *place, key)
            title, value, inner = str(value.get("title", title)), value.get("set") or {}, (*place, "set")
        else:
            inner = place
        return PointOf(axis, name, title, overrides_of(study, value, *inner), place)
    if value is None:
        return PointOf(axis, name, title, {}, place)
    return PointOf(axis, name, title, overrides_of(study, {axis: value}, *place), place)


def _find(study: Study, points: list[PointOf], wanted: Any, *keys: str | int) -> PointOf:
    for point in points:
        if point.name == show(wanted) or (point.name == str(wanted)):
            return point
    near = nearest(show(wanted), [point.name for point in points])
    axis = points[0].axis
    raise study.problem(f"{keys[0]}: '{show(wanted)}' is no point of axis '{axis}'; the nearest is '{near}'", *keys)


def _combinations(
    study: Study, points: dict[str, list[PointOf]], chosen: dict[str, PointOf]
) -> list[tuple[PointOf | None, ...]]:
    """Points on the axes, None where the baseline cell says nothing about an axis."""
    if study.mode == "product":
        return [tuple(combination) for combination in itertools.product(*points.values())] if points else []
    at_rest = tuple(chosen.get(axis) for axis in points)
    found: list[tuple[PointOf | None, ...]] = [at_rest] if chosen else []
    for number, axis in enumerate(points):
        others = [point for point in points[axis] if point != chosen.get(axis)]
        found += [(*at_rest[:number], point, *at_rest[number + 1 :]) for point in others]
    return found


def _combined(
    study: Study,
    combination: tuple[PointOf | None, ...],
    chosen: dict[str, PointOf],
    base: Cell,
    points: dict[str, list[PointOf]],
) -> Cell:
    """The cell of a combination: what it changes goes over the baseline, whose own points are replaced."""
    moved = [point for point in combination if point is not None and point != chosen.get(point.axis)]
    dropped = {key for point in moved if point.axis in chosen for key in chosen[point.axis].overrides}
    common = overrides_of(study, study.set, "set", launch=True)
    below = {key: value for key, value in base.overrides.items() if key not in dropped or key in common}
    below |= {key: common[key] for key in dropped if key in common}
    places = {key: place for key, place in base.places.items() if key not in dropped}
    cell = Cell("", "", base.system, below, {}, None, True, places)
    own: tuple[PointOf, ...] = ()
    for point in combination:
        if point is not None:
            cell = _with_point(study, cell, point, own)
            own = (*own, point)
    shown = own if study.mode == "product" else tuple(moved)
    return cell._replace(name=_combined_name(study, shown, points, chosen), title=_title(shown))


def _with_point(study: Study, cell: Cell, point: PointOf, before: tuple[PointOf, ...]) -> Cell:
    for other in before:
        for key in point.overrides.keys() & other.overrides.keys():
            raise study.problem(
                f"axes '{other.axis}' and '{point.axis}' both set '{key}'; merge them into one axis", *point.place
            )
    places = {**cell.places, **dict.fromkeys(point.overrides, point.place)}
    return cell._replace(overrides={**cell.overrides, **point.overrides}, places=places)


def _combined_name(
    study: Study, shown: tuple[PointOf, ...], points: dict[str, list[PointOf]], chosen: dict[str, PointOf]
) -> str:
    if not chosen and isinstance(study.baseline, dict) and len(points) > 1 and study.mode == "one_at_a_time":
        return "baseline"
    short = [axis.rsplit(".", 1)[-1] for axis in points]
    names = []
    for point in shown:
        own = point.axis.rsplit(".", 1)[-1]
        axis = own if short.count(own) == 1 else point.axis
        listed = isinstance(study.axes[point.axis], list)
        clash = sum(point.name == other.name for others in points.values() for other in others) > 1
        names.append(f"{axis}={point.name}" if listed or clash else point.name)
    name = ",".join(names)
    if not re.fullmatch(CELL_NAME, name):
        place = next((p.place for p in shown if not re.fullmatch(r"[\w.=,+-]+", p.name)), ("axes",))
        raise study.problem(
            f"axes: '{name}' cannot name a cell; give the point a name of letters, digits and . _ = , + -: NAME: VALUE",
            *place,
        )
    return name


def _title(points: Any) -> str:
    return ", ".join(point.title for point in points)


def _matches(rule: Mapping[str, Any], combination: tuple[PointOf | None, ...]) -> bool:
    at = {point.axis: point.name for point in combination if point is not None}
    return all(
        axis in at and any(at[axis] in (show(one), str(one)) for one in (value if isinstance(value, list) else [value]))
        for axis, value in rule.items()
    )


def _check_exclusions(study: Study, points: dict[str, list[PointOf]]) -> None:
    for number, rule in enumerate(study.exclude):
        if not rule:
            raise study.problem("exclude: an empty rule would leave out every cell; delete it", "exclude", number)
        for axis, value in rule.items():
            if axis not in points:
                near = nearest(axis, points)
                remedy = f"the nearest one is '{near}'" if near else "the study has no axes"
                raise study.problem(f"exclude: '{axis}' is no axis; {remedy}", "exclude", number, axis)
            for wanted in value if isinstance(value, list) else [value]:
                _find(study, points[axis], wanted, "exclude", number, axis)


def _check_names(study: Study, cells: list[Cell]) -> None:
    names = [cell.name for cell in cells]
    for cell in cells:
        place: Place = ("axes",) if cell.from_axes else ("cells", cell.name)
        if not re.fullmatch(CELL_NAME, cell.name):
            raise study.problem(
                f"cell '{cell.name}': use letters, digits and . _ = , + - only (it names files); change it", *place
            )
        if names.count(cell.name) > 1:
            raise study.problem(f"two cells are named '{cell.name}'; rename a cell or a point", *place)


def _differences(cell: Cell, base: Cell) -> dict[str, Any]:
    return {key: value for key, value in cell.overrides.items() if base.overrides.get(key, _MISSING) != value}


_MISSING = object()


def _shown(rule: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{axis}: {show(value)}" for axis, value in rule.items()) + "}"
