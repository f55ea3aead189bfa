"""The answer of a study in a few sentences, no bolder than the seeds allow. The words are in templates/verdict.j2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from realm_lab.reporting.comparison import NO_DATA, AxisEffect, CellResult, MetricResult, axis_effects
from realm_lab.reporting.family import Judged, Outcome
from realm_lab.reporting.interactions import Interaction, interactions
from realm_lab.reporting.rendering import number, render, signed, words
from realm_lab.reporting.statistics import FEWEST_SEEDS
from realm_lab.reporting.tables import bound
from realm_lab.tracking.study_record import StudyRecord

DIFFERENT = (Outcome.LOWER, Outcome.HIGHER)


class Verdict(NamedTuple):
    """`lead`: one sentence that answers the question; `rest`: what else there is to know."""

    lead: str
    rest: str = ""

    def __str__(self) -> str:
        return f"{self.lead} {self.rest}".rstrip()


class Side(NamedTuple):
    """Cells, points or interactions of one outcome, and of one direction if there are too few seeds."""

    outcome: str
    direction: str | None  # that all seeds agree on
    members: list[dict[str, str]]  # title and value, the strongest first
    seeds: int
    bound: str  # the difference that does not matter
    detectable: str  # range of the minimum detectable differences; "" where no possible one can be detected


def verdict(study: StudyRecord, results: list[MetricResult]) -> Verdict:
    """By the first metric, then what other metrics show."""
    first = results[0] if results else None
    if first is None or not first.baseline.values:
        found = {"gap": first.baseline.gap, "why": first.baseline.reason} if first else {"gap": NO_DATA, "why": ""}
        return _sentences(answered=False, metric=first.metric.title if first else "", **found)
    digits, base = first.metric.digits, study.cell(study.baseline)
    effects = axis_effects(study, first.metric, {cell.cell.name: cell.values for cell in first.cells})
    others = [cell for cell in first.cells if cell is not first.baseline]
    compared = [
        (cell.judged, cell.cell.title, number(cell.mean, digits), cell.outcome) for cell in others if cell.judged
    ]
    mine = [one for one in interactions(study, results) if one.metric == first.metric]
    return _sentences(
        answered=True,
        metric=first.metric.title,
        better={"up": Outcome.HIGHER, "down": Outcome.LOWER}.get(first.metric.better),
        are_systems=all(cell.cell.system != base.system for cell in others),
        baseline=base.title,
        mean=number(first.baseline.mean, digits),
        sides=_sides(compared),
        cells=len(others),
        gaps=[{"title": cell.cell.title, "gap": cell.gap, "why": cell.reason} for cell in others if not cell.judged],
        needed=FEWEST_SEEDS,
        axes=[_axis(study, axis, effects) for axis in study.axes] if effects else [],
        interactions=_sides([(one.judged, *_effect(study, one), one.judged.outcome) for one in mine]),
        elsewhere=[] if effects else _elsewhere(results),
    )


def _sentences(**values: Any) -> Verdict:
    """templates/verdict.j2, which has a sentence a line."""
    lines = [" ".join(line.split()) for line in render("verdict.j2", **values).splitlines()]
    lead, *rest = [line[0].upper() + line[1:] for line in lines if line]
    return Verdict(lead, " ".join(rest))


def _sides(found: Sequence[tuple[Judged, str, str, Outcome | None]]) -> list[Side]:
    """(comparison, title, value, outcome) by outcome, in the order of Outcome."""
    groups: dict[tuple[str, str | None], list[tuple[Judged, dict[str, str]]]] = {}
    for judged, title, value, outcome in sorted(found, key=lambda one: -abs(one[0].comparison.mean)):
        way = judged.direction if outcome in (Outcome.TOO_FEW_SEEDS, Outcome.ONE_PAIR) else None
        groups.setdefault((str(outcome), way), []).append((judged, {"title": title, "value": value}))
    order = [str(outcome) for outcome in Outcome]
    return [
        Side(
            outcome,
            way,
            [member for _, member in members],
            max(judged.seeds for judged, _ in members),
            bound(members[0][0]) if members[0][0].largest is not None else "",
            _detectable([judged for judged, _ in members]),
        )
        for (outcome, way), members in sorted(
            groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1] or "~")
        )
    ]


def _detectable(found: Sequence[Judged]) -> str:
    """The range of the minimum detectable differences; "" if no possible one can be detected."""
    known = [one for judged in found if (one := judged.detectable_difference) is not None]
    if not known:
        return ""
    digits, unit = found[0].metric.digits, found[0].metric.unit
    ends = dict.fromkeys(number(end(known), digits) for end in (min, max))
    shown = " to ".join(ends) if len(known) == len(found) else f"{number(min(known), digits)} or more"
    return f"{shown} {unit}".strip()


def _effect(study: StudyRecord, one: Interaction) -> tuple[str, str]:
    """Name and value of an interaction."""
    digits = one.metric.digits
    where = f"{one.first} at {words([*study.axes][1])} {one.second}"
    return where, f"{signed(one.here, digits)} instead of {signed(one.at_base, digits)}"


def _elsewhere(results: list[MetricResult]) -> list[dict[str, Any]]:
    """For cells that the first metric cannot tell from the baseline: where the other measures of quality can."""
    alike = {cell.cell.name for cell in results[0].cells if cell.judged and cell.outcome not in DIFFERENT}
    found = []
    for result in (result for result in results[1:] if not result.is_cost):
        for way in DIFFERENT:
            cells = [cell for cell in result.cells if cell.cell.name in alike and _is_shown(cell, way)]
            if cells:
                members = [
                    {
                        "title": cell.cell.title,
                        "value": signed(cell.comparison and cell.comparison.mean, result.metric.digits),
                    }
                    for cell in cells
                ]
                found.append({"metric": result.metric.title, "way": way, "members": members})
    return found


def _is_shown(cell: CellResult, way: Outcome) -> bool:
    return cell.judged is not None and not cell.judged.is_exploratory and cell.judged.outcome is way


def _axis(study: StudyRecord, axis: str, effects: list[AxisEffect]) -> dict[str, Any]:
    """What one axis does, averaged over the others."""
    mine = [effect for effect in effects if effect.axis == axis]
    digits = mine[0].judged.metric.digits if mine else 3
    compared = [(e.judged, e.point, signed(e.judged.comparison.mean, digits), e.judged.outcome) for e in mine]
    others = [words(other) for other in study.axes if other != axis]
    return {"name": words(axis), "others": others, "sides": _sides(compared)}
