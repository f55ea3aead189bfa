"""The answer of a study in a few sentences, no bolder than the seeds allow. The words are in templates/verdict.j2."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from realm_lab.reporting.comparison import (
    NO_DATA,
    AxisEffect,
    CellResult,
    MetricResult,
    axis_effects,
    points_of,
)
from realm_lab.reporting.family import EQUIVALENT, NO_DIFFERENCE, NOT_ENOUGH, Judged
from realm_lab.reporting.rendering import interval, number, render, signed
from realm_lab.reporting.statistics import FEWEST_SEEDS
from realm_lab.tracking.study_record import StudyRecord

Groups = list[tuple[str, list[tuple[str, str]]]]  # (finding, [(title, signed difference)])


class Verdict(NamedTuple):
    """`lead`: one sentence that answers the question; `rest`: what else there is to know."""

    lead: str
    rest: str = ""

    def __str__(self) -> str:
        return f"{self.lead} {self.rest}".rstrip()


def verdict(study: StudyRecord, results: list[MetricResult]) -> Verdict:
    """By the first metric, then what other metrics show."""
    if not results or not results[0].baseline.values:
        found = results[0] if results else None
        gap, metric = (found.baseline.gap, found.metric.title) if found else (NO_DATA, "")
        return sentences("verdict.j2", answered=False, gap=gap, metric=metric)
    first = results[0]
    effects = axis_effects(study, first.metric, {cell.cell.name: cell.values for cell in first.cells})
    groups: dict[str, list[dict[str, str]]] = {}
    for cell in sorted(first.cells[1:], key=_rank):
        groups.setdefault(cell.finding, []).append(_cell(cell, first.metric.digits))
    return sentences(
        "verdict.j2",
        answered=True,
        metric=first.metric.title,
        baseline=first.baseline.cell.title,
        mean=number(first.baseline.mean, first.metric.digits),
        seeds=len(first.baseline.values),
        groups=[*groups.items()],
        needed=FEWEST_SEEDS,
        axes=[_axis(study, axis, effects, first) for axis in study.axes] if effects else [],
        elsewhere=[] if effects else _elsewhere(results),
    )


def sentences(template: str, **values: Any) -> Verdict:
    """A template of running text, a sentence a line."""
    lines = [" ".join(line.split()) for line in render(template, **values).splitlines()]
    lead, *rest = [line for line in lines if line]
    return Verdict(lead[0].upper() + lead[1:], " ".join(line[0].upper() + line[1:] for line in rest))


def _rank(cell: CellResult) -> int:
    """Differences first, then what has none, then what has too few seeds or no data."""
    words = cell.finding
    if not cell.judged:
        return 4
    if words.startswith(("lower", "higher")):
        return len(words) > len("higher")
    return 2 if words.startswith((NO_DIFFERENCE, NOT_ENOUGH, EQUIVALENT)) else 3


def _cell(cell: CellResult, digits: int) -> dict[str, str]:
    found, judged = cell.comparison, cell.judged
    return {
        "title": cell.cell.title,
        "mean": number(cell.mean, digits),
        "delta": signed(found and found.mean, digits),
        "interval": interval(found and found.interval, digits),
        "detail": judged.detail if judged else "",
        "observed": f"the observed difference needs {judged.needed}"
        if judged and len(judged.comparison.seeds) > 1
        else "",
        "bound": judged.bound if judged and judged.largest is not None else "",
        "gap": "" if judged else cell.gap,
    }


def _grouped(found: Iterable[tuple[Judged, str]]) -> Groups:
    """(test, title) by the finding: directions first."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for judged, title in found:
        delta = signed(judged.comparison.mean, 3)
        groups.setdefault(judged.finding, []).append((title, f"{delta}; {judged.detail}" if judged.detail else delta))
    return sorted(groups.items(), key=lambda item: (not item[0].startswith(("lower", "higher")), item[0]))


def _elsewhere(results: list[MetricResult]) -> Groups:
    """For cells that the first metric cannot tell from the baseline: where the other measures of quality can."""
    alike = {cell.cell.name for cell in results[0].cells[1:] if _rank(cell) > 1}
    found: Groups = []
    for result in (result for result in results[1:] if not result.is_cost):
        for words in ("lower", "higher"):
            cells = [c for c in result.cells[1:] if c.cell.name in alike and c.finding == words and c.comparison]
            if cells:
                shown = [(c.cell.title, signed(c.comparison.mean, 3)) for c in cells if c.comparison]
                found.append((f"{result.metric.title} is {words}", shown))
    return found


def _axis(study: StudyRecord, axis: str, effects: list[AxisEffect], metric: MetricResult) -> dict[str, Any]:
    """What one axis does, averaged over the others; for the first of two, also at each point of the other one."""
    others = [other for other in study.axes if other != axis]
    mine = [effect for effect in effects if effect.axis == axis]
    groups = _grouped((effect.judged, effect.point) for effect in mine)
    within = _within(study, axis, others[0], metric) if len(others) == 1 and axis == next(iter(study.axes)) else []
    return {"name": words(axis), "others": [words(other) for other in others], "groups": groups, "within": within}


def _within(study: StudyRecord, axis: str, other: str, metric: MetricResult) -> list[tuple[str, str, str]]:
    """(difference, point, point of `other`): the largest effect of an axis at each point of the other."""
    base = points_of(study, study.cell(study.baseline)) or {}
    means = {
        (at[axis], at[other]): cell.mean for cell in metric.cells if (at := points_of(study, cell.cell)) and cell.values
    }
    found = []
    for where in study.axes[other]:
        at_rest = means.get((base[axis], where))
        deltas = {p: v - at_rest for (p, w), v in means.items() if at_rest is not None and v is not None and w == where}
        if deltas:
            largest = max(deltas, key=lambda point: abs(deltas[point]))
            found.append((signed(deltas[largest], 3), largest, f"{words(other)} {where}"))
    return found if len(found) > 1 else []


def words(name: str) -> str:
    """A dotted parameter or an axis for people: `pretrain.retriever.learning_rate` -> "learning rate"."""
    return name.rsplit(".", 1)[-1].replace("_", " ")
