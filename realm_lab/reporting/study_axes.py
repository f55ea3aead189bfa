"""A study whose cells are every combination of its axes' points: where each cell lies, and what each axis does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from realm_lab.reporting.statistics import Comparison, compare, holm
from realm_lab.tracking.study_record import StudyCell, StudyRecord

REFRESH = "pretrain.refresh."


class AxisEffect(NamedTuple):
    """One point of an axis against the baseline's, averaged over the points of the other axes that have both."""

    axis: str
    point: str
    comparison: Comparison
    corrected_p: float  # Holm, over the points of the axis
    smallest_p: float


def points_of(study: StudyRecord, cell: StudyCell) -> dict[str, str] | None:
    """Axis -> point of a cell that the axes made; None for any other."""
    parts = cell.name.split(",")
    found = {}
    for axis, points in study.axes.items():
        short = axis.rsplit(".", 1)[-1]
        point = next((p for p in points if {p, f"{short}={p}", f"{axis}={p}"} & set(parts)), None)
        if point is None:
            return None
        found[axis] = point
    return found or None


def refresh_axis(study: StudyRecord) -> str | None:
    """The axis of two that changes nothing but how the index is refreshed; None where there is none."""
    if len(study.axes) != 2:
        return None
    base = points_of(study, study.cell(study.baseline))
    if base is None:
        return None
    for axis in study.axes:
        changes: set[str] = set()
        for cell in study.cells:
            at = points_of(study, cell)
            if at is not None and all(at[other] == base[other] for other in study.axes if other != axis):
                changes |= cell.changes.keys()
        if changes and all(name.startswith(REFRESH) for name in changes):
            return axis
    return None


def axis_effects(study: StudyRecord, values: Mapping[str, Mapping[int, float]]) -> list[AxisEffect]:
    """Every point of every axis but the baseline's; `values`: cell -> seed -> value. Empty without several axes."""
    base = points_of(study, study.cell(study.baseline)) if len(study.axes) > 1 else None
    if base is None:
        return []
    at = {tuple(found.values()): cell.name for cell in study.cells if (found := points_of(study, cell))}
    effects = []
    for number, (axis, points) in enumerate(study.axes.items()):
        compared: list[tuple[str, Comparison]] = []
        for point in points:
            if point == base[axis]:
                continue
            pairs = []
            for place, name in at.items():
                other = at.get((*place[:number], base[axis], *place[number + 1 :]))
                if place[number] == point and other and values.get(name) and values.get(other):
                    pairs.append((values[name], values[other]))
            comparison = compare(*_averaged(pairs)) if pairs else None
            if comparison is not None:
                compared.append((point, comparison))
        corrected = holm([one.p for _, one in compared])
        for (point, one), p in zip(compared, corrected, strict=True):
            effects.append(AxisEffect(axis, point, one, p, min(1.0, one.smallest_p * len(compared))))
    return effects


def _averaged(
    pairs: list[tuple[Mapping[int, float], Mapping[int, float]]],
) -> tuple[dict[int, float], dict[int, float]]:
    """The mean over the pairs of each side, for the seeds that all of them have."""
    seeds = set.intersection(*(set(one) & set(two) for one, two in pairs))
    first, second = ({seed: sum(pair[side][seed] for pair in pairs) / len(pairs) for seed in seeds} for side in (0, 1))
    return first, second
