"""Drawings of a study with many cells: paired deltas, curves with bands, quality against cost.

Colours follow Okabe and Ito (2008); beyond seven cells they come again with another dash.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from realm_lab.reporting.document import Figure
from realm_lab.reporting.figures import (
    BLUE,
    DASHES,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    VERMILION,
    Panel,
    render,
)

SKY = "#56b4e9"
CELLS = (INK, BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
BAND = 0.14  # opacity


class Delta(NamedTuple):
    """One row of a panel of deltas."""

    title: str
    deltas: tuple[float, ...]
    mean: float
    low: float  # of the interval; infinite where there is none
    high: float


def deltas_figure(name: str, caption: str, panels: Sequence[tuple[str, Sequence[Delta]]]) -> Figure | None:
    """For each metric a panel, for each cell a row: a dot a seed, the mean, and its interval; zero is the baseline."""
    drawn = [(title, rows) for title, rows in panels if rows]
    if not drawn:
        return None
    titles = list(dict.fromkeys(row.title for _, rows in drawn for row in rows))

    def draw(figure: Any) -> None:
        places = figure.subplots(1, len(drawn), squeeze=False, sharey=True)[0]
        for place, (title, rows) in zip(places, drawn, strict=True):
            place.axvline(0.0, color=MUTED, linewidth=0.9, zorder=1)
            reach = max((abs(delta) for row in rows for delta in row.deltas), default=0.0)
            for row in rows:
                y = titles.index(row.title)
                low, high = max(row.low, -3 * reach), min(row.high, 3 * reach)
                if math.isfinite(row.low):
                    place.plot([low, high], [y, y], color=BLUE, linewidth=1.6, zorder=2)
                place.plot(row.deltas, [y + 0.22] * len(row.deltas), "|", color=MUTED, markersize=5.5, zorder=3)
                place.plot([row.mean], [y], "o", color=BLUE, markersize=5.0, zorder=4)
            place.set(title=title, xlabel="difference from the baseline")
            place.set_ylim(len(titles) - 0.5, -0.5)
            place.grid(visible=True, axis="x")
            place.grid(visible=False, axis="y")
        places[0].set_yticks(range(len(titles)), titles)
        for place in places:
            place.tick_params(axis="y", length=0, labelcolor=INK, labelsize=8.0)

    details = "; ".join(f"{title}: " + ", ".join(f"{r.title} {r.mean:+.3f}" for r in rows) for title, rows in drawn)
    return render(name, caption, f"{caption} {details}.", draw, 0.9 + 0.34 * len(titles))


def bands_figure(
    name: str, caption: str, points: pd.DataFrame, panels: Sequence[Panel], cells: Sequence[tuple[str, str]]
) -> Figure | None:
    """Curves over steps: the mean over seeds, and a band from the lowest to the highest seed.

    `points` is the long table of `table.curves_table`, `cells` are (label, title) in the order of the legend.
    """
    drawn = [panel for panel in panels if points["metric"].isin(panel.metrics).any()]
    cells = [(label, title) for label, title in cells if (points["label"] == label).any()]
    if not drawn or not cells:
        return None
    seeds = sorted({int(seed) for seed in points["seed"].unique()})
    columns = min(2, len(drawn))
    rows = math.ceil(len(drawn) / columns)

    def draw(figure: Any) -> None:
        grid = figure.subplots(rows, columns, squeeze=False)
        for place, panel in zip(grid.flat, drawn, strict=False):
            chosen = points[points["metric"] == panel.metric]
            for number, (label, _) in enumerate(cells):
                mine = chosen[chosen["label"] == label]
                values = mine.groupby("step")["value"]
                whole = mine.groupby("step")["seed"].nunique() == mine["seed"].nunique()
                mean, low, high = (part[whole] for part in (values.mean(), values.min(), values.max()))
                colour, dash = _style(number)
                place.fill_between(mean.index, low, high, color=colour, alpha=BAND, linewidth=0)
                place.plot(mean.index, mean, color=colour, linestyle=dash, linewidth=1.7)
            place.set(title=panel.title, ylabel=panel.unit, xlabel="pre-training step")
            if panel.low is not None or panel.high is not None:
                place.set_ylim(panel.low, panel.high)
        for place in list(grid.flat)[len(drawn) :]:
            place.set_axis_off()
        figure.legend(handles=_handles(place, cells), loc="outside upper left", ncols=3, borderaxespad=0.3)

    height = 2.1 * rows + 0.2 * math.ceil(len(cells) / 3) + 0.25
    names = ", ".join(panel.title for panel in drawn)
    alt = f"{caption} Panels: {names}. Cells: {', '.join(t for _, t in cells)}. Seeds: {', '.join(map(str, seeds))}."
    return render(name, caption, alt, draw, height)


class Spot(NamedTuple):
    """One run in a plane."""

    label: str
    x: float
    y: float


def plane_figure(
    name: str,
    caption: str,
    spots: Sequence[Spot],
    cells: Sequence[tuple[str, str]],
    axes: tuple[str, str],
    *,
    is_log: bool = False,
) -> Figure | None:
    """A light dot a run and a heavy one for each cell's mean, such as quality against cost."""
    cells = [(label, title) for label, title in cells if any(spot.label == label for spot in spots)]
    if len(cells) < 2:
        return None

    def draw(figure: Any) -> None:
        place = figure.subplots()
        for number, (label, _) in enumerate(cells):
            mine = [spot for spot in spots if spot.label == label]
            colour, _ = _style(number)
            marker = "os^Dv"[number // len(CELLS) % 5]
            xs, ys = [spot.x for spot in mine], [spot.y for spot in mine]
            place.plot(xs, ys, marker, color=colour, markersize=3.5, alpha=0.45)
            place.plot([sum(xs) / len(xs)], [sum(ys) / len(ys)], marker, color=colour, markersize=7.5)
        place.set(xlabel=axes[0], ylabel=axes[1])
        if is_log:
            place.set_xscale("symlog")
        place.grid(visible=True)
        handles = _handles(place, cells, spots=True)
        figure.legend(handles=handles, loc="outside right upper", borderaxespad=0.3)

    details = "; ".join(
        f"{title}: " + ", ".join(f"({s.x:.4g}, {s.y:.3f})" for s in spots if s.label == label) for label, title in cells
    )
    return render(name, caption, f"{caption} {details}.", draw, max(2.8, 0.6 + 0.19 * len(cells)))


def _style(number: int) -> tuple[str, Any]:
    return CELLS[number % len(CELLS)], DASHES[number // len(CELLS) % len(DASHES)]


def _handles(place: Any, cells: Sequence[tuple[str, str]], *, spots: bool = False) -> list[Any]:
    """Legend entries of the cells, drawn outside of the data."""
    handles = []
    for number, (_, title) in enumerate(cells):
        colour, dash = _style(number)
        marker = "os^Dv"[number // len(CELLS) % 5] if spots else ""
        line = "" if spots else dash
        handles += place.plot([], [], color=colour, linestyle=line, marker=marker, linewidth=1.7, label=title)
    return handles
