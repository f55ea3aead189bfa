"""Differences from the baseline, with a tick for each seed, next to the values of the first metric."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from realm_lab.evidence.report.comparison import CellResult, MetricResult
from realm_lab.evidence.report.figures import BLUE, INK, MUTED, TITLE_CHARACTERS, canvas, wrapped
from realm_lab.evidence.statistics.family import Finding

FEWEST_FOR_MEAN = 5  # seeds; with fewer, only ticks are drawn


def differences_figure(results: Sequence[MetricResult], *, has_values: bool = False) -> Any:
    """A panel of differences for each metric, with a row for each cell. `has_values`: an additional first panel has the
    values of the first metric, with a row for the baseline too."""
    drawn = [one for one in results if any(cell.finding for cell in one.cells)]
    if not drawn:
        return None
    base = drawn[0].baseline
    titles = {base.cell.name: base.cell.title} if has_values else {}
    titles |= {cell.cell.name: cell.cell.title for one in drawn for cell in one.cells if cell.finding}
    rows, width = [*titles], TITLE_CHARACTERS // (len(drawn) + has_values)
    label = wrapped(f"difference from {base.cell.title}", width)
    figure = canvas(0.9 + 0.3 * len(titles) + 0.16 * max(0, label.count("\n") - 2))
    places = figure.subplots(1, len(drawn) + has_values, squeeze=False, sharey=True)[0]
    if has_values:
        _values(places[0], drawn[0], [cell for cell in drawn[0].cells if cell.cell.name in titles])
        places[1].plot([0], [0], "D", color=INK, markersize=4.5)
    for place, result in zip(places[has_values:], drawn, strict=True):
        _forest(place, [(rows.index(cell.cell.name), cell.finding) for cell in result.cells if cell.finding])
        title = "" if has_values else ", ".join(filter(None, (result.metric.title, result.metric.unit)))
        place.set_title(textwrap.fill(title, width))
        place.set_xlabel(label)
    for place in places[1:]:
        place.tick_params(left=False)
    places[0].set_ylim(len(titles) - 0.5, -0.5)
    places[0].set_yticks(range(len(titles)), [wrapped(title) for title in titles.values()])
    return figure


def _values(place: Any, result: MetricResult, cells: Sequence[CellResult]) -> None:
    """A dot for each seed and a line at the mean, on the whole scale of the metric if it has two bounds."""
    for row, cell in enumerate(cells):
        values = [*cell.values.values()]
        place.plot(values, [row] * len(values), "o", color=BLUE, alpha=0.45, markersize=4, markeredgewidth=0)
        place.plot([cell.mean], [row], "|", color=INK, markersize=11, markeredgewidth=1.8)
    metric = result.metric
    if metric.low is not None and metric.high is not None:
        place.set_xlim(metric.low - 0.02 * metric.span, metric.high + 0.02 * metric.span)
    place.set_title(textwrap.fill(metric.title, TITLE_CHARACTERS // 2))
    place.set_xlabel(metric.unit or "value of each seed, and mean")
    place.grid(visible=True, axis="x")
    place.grid(visible=False, axis="y")


def _forest(place: Any, rows: Sequence[tuple[int, Finding]]) -> None:
    """A tick for each seed; from five seeds on also the mean and its interval, with an arrow at an end that is cut."""
    place.axvline(0.0, color=MUTED, zorder=1)
    reach = 3 * max(abs(delta) for _, finding in rows for delta in finding.comparison.deltas)
    for y, finding in rows:
        deltas = finding.comparison.deltas
        if len(deltas) < FEWEST_FOR_MEAN:
            place.plot(deltas, [y] * len(deltas), "|", color=BLUE, markersize=9, markeredgewidth=1.6)
            continue
        if finding.interval is not None:
            low, high = finding.interval
            place.plot([max(low, -reach), min(high, reach)], [y, y], color=BLUE)
            for end, mark in ((-reach, "<"), (reach, ">")):
                if low < end < high:
                    place.plot([end], [y], mark, color=BLUE, markersize=5)
        place.plot(deltas, [y + 0.24] * len(deltas), "|", color=MUTED, markersize=5)
        place.plot([finding.size], [y], "o", color=BLUE, markersize=5)
    place.grid(visible=True, axis="x")
    place.grid(visible=False, axis="y")
    place.locator_params(axis="x", nbins=4)  # keeps labels such as "−0.125" separate
