"""Drawings of a study with many cells: paired deltas, curves with bands, quality against cost.

Colours follow Okabe and Ito (2008); beyond seven cells they come again with another dash.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from realm_lab.reporting.document import Figure
from realm_lab.reporting.figures import DASHES, DOTTED, Panel, render
from realm_lab.reporting.palette import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, VERMILION

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
            heading = textwrap.fill(title, 66 // len(drawn))
            place.set(title=heading, xlabel="difference from the baseline")
            place.set_ylim(len(titles) - 0.5, -0.5)
            place.grid(visible=True, axis="x")
            place.grid(visible=False, axis="y")
        places[0].set_yticks(range(len(titles)), titles)
        for place in places:
            place.locator_params(axis="x", nbins=4)  # labels such as "−0.125" stand apart
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
            above = 4.0 - 0.01 * number  # the baseline on top
            place.plot(xs, ys, marker, color=colour, markersize=3.5, alpha=0.45, zorder=above - 1)
            place.plot([sum(xs) / len(xs)], [sum(ys) / len(ys)], marker, color=colour, markersize=7.5, zorder=above)
        place.set(xlabel=axes[0], ylabel=axes[1])
        if is_log:
            place.set_xscale("symlog")
            place.xaxis.set_major_formatter("{x:g}")  # the scale's own writes powers as formulas
        place.grid(visible=True)
        handles = _handles(place, cells, spots=True)
        figure.legend(handles=handles, loc="outside right upper", borderaxespad=0.3)

    details = "; ".join(
        f"{title}: " + ", ".join(f"({s.x:.4g}, {s.y:.3f})" for s in spots if s.label == label) for label, title in cells
    )
    return render(name, caption, f"{caption} {details}.", draw, max(2.8, 0.6 + 0.19 * len(cells)))


class DriftSpot(NamedTuple):
    """One run: which line and mark it belongs to, its measured drift and its quality."""

    line: str
    mark: str
    drift: float
    value: float


def drift_figure(
    name: str,
    caption: str,
    panels: Sequence[tuple[str, str, Sequence[DriftSpot]]],
    lines: Sequence[tuple[str, str]],
    marks: Sequence[tuple[str, str]],
) -> Figure | None:
    """Quality against drift: colours are `lines`, shapes are `marks`, each with (key, title) in the legend's order.

    A panel has a title, a unit and its spots.
    """
    panels = [panel for panel in panels if panel[2]]
    if not panels:
        return None
    colours = dict(zip((key for key, _ in lines), (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INK) * 9, strict=False))
    dashes = dict(zip((key for key, _ in lines), DASHES * 16, strict=False))
    shapes = dict(zip((key for key, _ in marks), "os^Dv" * 9, strict=False))

    def draw(figure: Any) -> None:
        places = figure.subplots(1, len(panels), squeeze=False)[0]
        for place, (title, unit, spots) in zip(places, panels, strict=True):
            for line, _ in lines:
                means = []
                for mark, _ in marks:
                    mine = [spot for spot in spots if (spot.line, spot.mark) == (line, mark)]
                    if not mine:
                        continue
                    xs, ys = [spot.drift for spot in mine], [spot.value for spot in mine]
                    place.plot(xs, ys, shapes[mark], color=colours[line], markersize=3.5, alpha=0.45, linestyle="")
                    means.append((sum(xs) / len(xs), sum(ys) / len(ys), mark))
                if means:
                    xs, ys = [mean[0] for mean in means], [mean[1] for mean in means]
                    place.plot(xs, ys, color=colours[line], linestyle=dashes[line], linewidth=1.4)
                for x, y, mark in means:
                    place.plot([x], [y], shapes[mark], color=colours[line], markersize=7.5)
            place.set(title=title, ylabel=unit, xlabel="drift: share of the fresh top k missed")
            place.grid(visible=True)
            place.set_xlim(0.0, 1.0)
        handles = [
            place.plot([], [], color=colours[key], linestyle=dashes[key], linewidth=1.7, label=title)[0]
            for key, title in lines
        ]
        handles += [
            place.plot([], [], shapes[key], color=MUTED, markersize=6.0, linestyle="", label=title)[0]
            for key, title in marks
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=4, borderaxespad=0.3)

    details = "; ".join(
        f"{title}: " + ", ".join(f"{s.line} {s.mark} ({s.drift:.2f}, {s.value:.3f})" for s in spots)
        for title, _, spots in panels
    )
    return render(name, caption, f"{caption} {details}.", draw, 3.1)


def xy_bands_figure(
    name: str,
    caption: str,
    curves: pd.DataFrame,
    metric: str,
    axes: Sequence[tuple[str, str]],
    unit: str,
    cells: Sequence[tuple[str, str]],
    *,
    mark: float,
) -> Figure | None:
    """One metric over several x: a panel for each (column, title) of `axes`, `mark` drawn in the last one.

    `curves` has label, seed, step, the columns of the axes, and the metric. At each step x is the mean over seeds.
    """
    curves = curves.dropna(subset=[metric])
    cells = [(label, title) for label, title in cells if (curves["label"] == label).any()]
    if not cells:
        return None

    def draw(figure: Any) -> None:
        places = figure.subplots(1, len(axes), squeeze=False, sharey=True)[0]
        for place, (key, title) in zip(places, axes, strict=True):
            for number, (label, _) in enumerate(cells):
                mine = curves[curves["label"] == label]
                steps = mine.groupby("step")
                whole = steps["seed"].nunique() == mine["seed"].nunique()
                x, y, low, high = (
                    part[whole]
                    for part in (
                        steps["step"].first() if key == "step" else steps[key].mean(),
                        steps[metric].mean(),
                        steps[metric].min(),
                        steps[metric].max(),
                    )
                )
                colour, dash = _style(number)
                place.fill_between(x, low, high, color=colour, alpha=BAND, linewidth=0)
                place.plot(x, y, color=colour, linestyle=dash, linewidth=1.7)
            place.set(xlabel=title)
            place.set_xlim(0.0, None)
        places[0].set_ylabel(unit)
        places[-1].axvline(mark, color=MUTED, linewidth=1.0, linestyle=DOTTED)
        figure.legend(handles=_handles(places[-1], cells), loc="outside upper left", ncols=3, borderaxespad=0.3)

    titles = ", ".join(title for _, title in cells)
    return render(name, caption, f"{caption} Cells: {titles}.", draw, 2.6 + 0.2 * math.ceil(len(cells) / 3))


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
