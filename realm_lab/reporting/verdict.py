"""The answer of a study in a few sentences, no bolder than the seeds allow. The words are in templates/verdict.j2."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from realm_lab.reporting.comparison import (
    NOT_DISTINGUISHABLE,
    AxisEffect,
    MetricResult,
    axis_effects,
    finding,
    points_of,
)
from realm_lab.reporting.rendering import number, render, signed
from realm_lab.tracking.study_record import StudyRecord

Groups = list[tuple[str, list[tuple[str, str]]]]  # (finding, [(title, signed difference)])


def verdict(study: StudyRecord, results: list[MetricResult], *, question: bool = True) -> str:
    """By the first metric; `question` puts the study's question before it."""
    asked = study.question if question else ""
    if not results or not results[0].baseline.values:
        return sentence("verdict.j2", question=asked, answered=False)
    first = results[0]
    effects = axis_effects(study, {cell.cell.name: cell.values for cell in first.cells})
    groups = _grouped((c.finding, c.cell.title, c.comparison.mean if c.comparison else None) for c in first.cells[1:])
    return sentence(
        "verdict.j2",
        question=asked,
        answered=True,
        metric=first.metric.title,
        baseline=first.baseline.cell.title,
        mean=number(first.baseline.mean),
        seeds=len(first.baseline.values),
        groups=groups,
        axes=[_axis(study, axis, effects, first) for axis in study.axes] if effects else [],
        elsewhere=[] if effects else _elsewhere(results),
    )


def sentence(template: str, **values: Any) -> str:
    """A template of running text, on one line."""
    return " ".join(render(template, **values).split())


def _grouped(found: Iterable[tuple[str, str, float | None]]) -> Groups:
    """What was found by its words: directions first, then what cannot be told apart, then what has no data."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for words, title, mean in found:
        groups.setdefault(words, []).append((title, "" if mean is None else signed(mean, 3)))
    return sorted(groups.items(), key=lambda item: (item[0] == "no data", item[0] == NOT_DISTINGUISHABLE, item[0]))


def _elsewhere(results: list[MetricResult]) -> Groups:
    """For cells that the first metric cannot tell from the baseline: where the other measures of quality can."""
    alike = {cell.cell.name for cell in results[0].cells[1:] if cell.finding == NOT_DISTINGUISHABLE}
    found: Groups = []
    for result in (result for result in results[1:] if not result.is_cost):
        for words in ("lower", "higher"):
            cells = [c for c in result.cells[1:] if c.cell.name in alike and c.finding == words and c.comparison]
            if cells:
                shown = [(c.cell.title, signed(c.comparison.mean, 3)) for c in cells if c.comparison]
                found.append((f"{words} {result.metric.title}", shown))
    return found


def _axis(study: StudyRecord, axis: str, effects: list[AxisEffect], metric: MetricResult) -> dict[str, Any]:
    """What one axis does, averaged over the others; for the first of two, also at each point of the other one."""
    others = [other for other in study.axes if other != axis]
    mine = [effect for effect in effects if effect.axis == axis]
    groups = _grouped((finding(e.comparison, e.corrected_p, e.smallest_p), e.point, e.comparison.mean) for e in mine)
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
