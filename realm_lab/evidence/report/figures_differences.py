"""Differences from the baseline, with a tick for each seed: of one metric with its numbers, or of several."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from realm_lab.evidence.report.comparison import MetricResult
from realm_lab.evidence.report.figures import BLUE, INK, MUTED, TITLE_CHARACTERS, canvas, wrapped
from realm_lab.evidence.statistics.family import Finding
from realm_lab.evidence.statistics.wording import difference, number

FEWEST_FOR_MEAN = 5  # seeds; of fewer only ticks are drawn


def differences_figure(result: MetricResult) -> Any:
    """A row for each cell, the baseline first: its differences from the baseline, drawn and in numbers."""
    cells = [cell for cell in result.cells if cell.finding]
    if not cells:
        return None
    digits, rows = result.metric.digits, [result.baseline, *cells]
    figure = canvas(0.95 + 0.3 * len(rows))
    place = figure.subplots()
    _forest(place, [(row + 1, cell.finding) for row, cell in enumerate(cells) if cell.finding])
    place.plot([0], [0], "D", color=INK, markersize=4.5)
    has_intervals = any(cell.finding.interval for cell in cells if cell.finding)
    points = (45, 178, 212) if has_intervals else (45, 105, 139)  # right ends of the columns, from that of the axes
    columns = [("mean", "difference" + " [95 % interval]" * has_intervals, "p")]
    columns += [(number(result.baseline.mean, digits), "baseline", "")]
    for found in (cell.finding for cell in cells if cell.finding):
        columns.append(("", difference(found), number(found.corrected_p)))
    means = [number(cell.mean, digits) for cell in cells]
    for row, texts in enumerate(columns, start=-1):
        texts = (means[row - 1], *texts[1:]) if row > 0 else texts
        for right, text in zip(points, texts, strict=True):
            how: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
            how |= {"ha": "right", "annotation_clip": False, "weight": "bold" if row < 0 else "normal"}
            place.annotate(text, (1.0, row), (right, 0), **how)
    place.set_ylim(len(rows) - 0.5, -0.6)
    place.set_yticks(range(len(rows)), [wrapped(cell.cell.title) for cell in rows])
    place.set_title(textwrap.fill(result.metric.title, 40), pad=16)
    place.set_xlabel(wrapped(f"difference from {result.baseline.cell.title}", 50))
    return figure


def other_differences_figure(results: Sequence[MetricResult]) -> Any:
    """The differences of several metrics next to each other."""
    drawn = [
        (
            ", ".join(filter(None, (result.metric.title, result.metric.unit))),
            [cell for cell in result.cells if cell.finding],
        )
        for result in results
    ]
    drawn = [(title, cells) for title, cells in drawn if cells]
    if not drawn:
        return None
    titles = {cell.cell.name: cell.cell.title for _, cells in drawn for cell in cells}
    rows = [*titles]
    width = TITLE_CHARACTERS // len(drawn)
    label = wrapped(f"difference from {results[0].baseline.cell.title}", width)
    figure = canvas(0.9 + 0.28 * len(titles) + 0.16 * max(0, label.count("\n") - 2))
    places = figure.subplots(1, len(drawn), squeeze=False, sharey=True)[0]
    for place, (title, cells) in zip(places, drawn, strict=True):
        _forest(place, [(rows.index(cell.cell.name), cell.finding) for cell in cells if cell.finding])
        place.set_title(textwrap.fill(title, width))
        place.set_xlabel(label)
        place.set_ylim(len(titles) - 0.5, -0.5)
    places[0].set_yticks(range(len(titles)), [wrapped(title) for title in titles.values()])
    return figure


def _forest(place: Any, rows: Sequence[tuple[int, Finding]]) -> None:
    """A tick for each seed; from five seeds on the mean and its interval, with an arrow if it is cut off."""
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
