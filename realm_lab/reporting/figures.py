"""Every drawing of a report as PNG: generic figures by their role, and what a study's own figures are made with.

The only file that imports matplotlib. The same numbers give the same bytes. Colours are those of Okabe and Ito (2008),
safe for colour-blind readers; beyond seven cells they come again with another dash or marker.
"""

from __future__ import annotations

import functools
import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator
from PIL import Image

from realm_lab.metrics import curve
from realm_lab.reporting.comparison import MetricResult

INK, MUTED, GRID, PAPER = "#1f2933", "#5b6771", "#e2e6ea", "#ffffff"
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
COLOURS = (INK, BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
DASHES = ("-", "--", ":", "-.")
MARKERS = "os^D"
WIDTH_INCHES = 7.6
TITLE_CHARACTERS = 72  # of all panels in a row
DOTS_PER_INCH = 150
PALETTE_COLOURS = 96  # of the PNG, which makes it a third as large; lines and letters have few
STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
    "text.parse_math": False,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "legend.frameon": False,
}

Cells = Sequence[tuple[str, str]]  # (name, title), in the order of the legend


Styles = Mapping[
    str, tuple[int, int]
]  # cell -> its colour, and its dash and marker; default: by the order of the cells


class Sketch(NamedTuple):
    """A figure that is not drawn yet. `alt` is read to those who do not see it."""

    name: str
    caption: str
    alt: str
    make: Callable[[], Figure | None]

    @property
    def entry(self) -> dict[str, str]:
        """What summary.json and the templates know of it."""
        return {"name": self.name, "caption": self.caption, "alt": self.alt}


class Drawing(NamedTuple):
    """A drawn figure."""

    name: str
    png: bytes
    pdf: bytes = b""  # only for papers


class Panel(NamedTuple):
    """One set of axes over the steps of training; title and unit are the registry's where they are empty."""

    metric: str
    title: str = ""
    unit: str = ""
    low: float | None = None
    high: float | None = None
    lines: Sequence[tuple[float, str]] = ()  # thin horizontal lines with their names: bounds, references


def draw(sketch: Sketch, *, is_paper: bool = False) -> Drawing | None:
    """The figure as PNG, for a paper as PDF too, in the style of the reports. None: nothing to draw."""
    with rc_context(STYLE):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # written as codes below
            figure = sketch.make()
        if figure is None:
            return None
        for text in figure.findobj(Text):
            if isinstance(text, Text):
                text.set_text(drawable(text.get_text()))
        for axis in (axis for place in figure.axes for axis in (place.xaxis, place.yaxis)):
            if isinstance(axis.get_major_locator(), FixedLocator):  # ticks that were named
                labels = [label.get_text() for label in axis.get_ticklabels()]
                if (shown := [*map(drawable, labels)]) != labels:
                    axis.set_ticklabels(shown)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
        pdf = io.BytesIO()
        if is_paper:  # without a date, so that the same numbers give the same bytes
            figure.savefig(pdf, format="pdf", metadata=dict.fromkeys(("CreationDate", "Creator", "Producer")))
    small = io.BytesIO()
    image = Image.open(file).convert("RGB").quantize(PALETTE_COLOURS, dither=Image.Dither.NONE)
    image.save(small, format="PNG", optimize=True)
    return Drawing(sketch.name, small.getvalue(), pdf.getvalue())


def drawable(text: str) -> str:
    """`text` with a code for each character that the font lacks, for example U+6570."""
    return "".join(one if _is_in_font(one) else f"U+{ord(one):04X}" for one in text)


@functools.cache
def _is_in_font(character: str) -> bool:
    font = get_font(findfont(FontProperties()))  # comes with matplotlib
    return character == "\n" or font.get_char_index(ord(character)) != 0


def canvas(height_inches: float) -> Figure:
    """An empty figure as wide as a report."""
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.035, wspace=0.04, hspace=0.06)  # type: ignore[union-attr,call-arg]
    return figure


def deltas_figure(results: Sequence[MetricResult]) -> Figure | None:
    """For each metric a panel, for each cell a row: a tick a seed, the mean, and its interval; zero is the baseline."""
    drawn = [(result.metric.title, [cell for cell in result.cells if cell.finding]) for result in results]
    drawn = [(title, cells) for title, cells in drawn if cells]
    if not drawn:
        return None
    titles = {cell.cell.name: cell.cell.title for _, cells in drawn for cell in cells}
    rows = [*titles]
    label = textwrap.fill(f"difference from {results[0].baseline.cell.title}", TITLE_CHARACTERS // len(drawn))
    figure = canvas(0.9 + 0.34 * len(titles))
    places = figure.subplots(1, len(drawn), squeeze=False, sharey=True)[0]
    for place, (title, cells) in zip(places, drawn, strict=True):
        place.axvline(0.0, color=MUTED, zorder=1)
        found = [(rows.index(cell.cell.name), cell.finding) for cell in cells if cell.finding]
        reach = 3 * max(abs(delta) for _, finding in found for delta in finding.comparison.deltas)
        for y, finding in found:
            comparison = finding.comparison
            if finding.interval is not None:
                low, high = finding.interval
                place.plot([max(low, -reach), min(high, reach)], [y, y], color=BLUE)
                beyond = [(end, mark) for end, mark in ((-reach, "<"), (reach, ">")) if low < end < high]
                for end, mark in beyond:
                    place.plot([end], [y], mark, color=BLUE, markersize=5)
            place.plot(comparison.deltas, [y + 0.22] * len(comparison.deltas), "|", color=MUTED)
            place.plot([comparison.mean], [y], "o", color=BLUE)
        place.set(title=textwrap.fill(title, TITLE_CHARACTERS // len(drawn)), xlabel=label)
        place.set_ylim(len(titles) - 0.5, -0.5)
        place.grid(visible=True, axis="x")
        place.grid(visible=False, axis="y")
        place.locator_params(axis="x", nbins=4)  # labels such as "−0.125" stand apart
    places[0].set_yticks(range(len(titles)), [wrapped(title) for title in titles.values()])
    return figure


def curves_figure(
    points: pd.DataFrame, panels: Sequence[Panel], cells: Cells, *, columns: int = 2, step: str = "pre-training step"
) -> Figure | None:
    """Curves over steps: for each cell the mean over its seeds, and a band from the lowest to the highest seed.

    `points` is `StudyFrames.curves_once`; panels and cells without a point are left out.
    """
    return bands_figure(bands(points), panels, cells, columns=columns, step=step)


def bands(points: pd.DataFrame) -> pd.DataFrame:
    """Mean and range over the seeds of a cell at each step that all of them have: cell, metric, step, seeds, mean, low,
    high."""
    seeds = points.groupby(["cell", "metric"])["seed"].nunique().rename("all")
    found = points.groupby(["cell", "metric", "step"])["value"].agg(["count", "mean", "min", "max"]).reset_index()
    found = found.merge(seeds.reset_index(), on=["cell", "metric"])
    found = found[found["count"] == found["all"]].drop(columns="all").reset_index(drop=True)
    return found.rename(columns={"count": "seeds", "min": "low", "max": "high"})


def bands_figure(
    found: pd.DataFrame,
    panels: Sequence[Panel],
    cells: Cells,
    *,
    columns: int = 2,
    step: str = "pre-training step",
    styles: Styles | None = None,
) -> Figure | None:
    """`curves_figure` of what `bands` returns."""
    drawn = [panel for panel in panels if (found["metric"] == panel.metric).any()]
    present = _present(cells, found)
    if not drawn or not present:
        return None
    columns = min(columns, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    figure = canvas(2.1 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for place, panel in zip(grid.flat, drawn, strict=False):
        chosen = found[found["metric"] == panel.metric]
        for number, name, title in present:
            colour, dash = _style(number, name, styles)
            line = chosen[chosen["cell"] == name]
            if line.empty:
                continue
            place.fill_between(line["step"], line["low"], line["high"], color=COLOURS[colour], alpha=0.14, linewidth=0)
            how: dict[str, Any] = {"color": COLOURS[colour], "linestyle": DASHES[dash], "linewidth": 1.8}
            place.plot(line["step"], line["mean"], label=wrapped(title), **how)
        _finish(place, panel, TITLE_CHARACTERS // columns)
    for place in list(grid.flat)[len(drawn) :]:
        place.set_axis_off()
    for number in range(len(drawn) - columns, len(drawn)):  # named once, under the lowest panel of each column
        grid.flat[number].set_xlabel(step)
    names_inches = legend(figure, loc="outside upper left", columns=3)
    figure.set_figheight(2.1 * rows + names_inches)
    return figure


def plane_figure(
    spots: pd.DataFrame, cells: Cells, axes: tuple[str, str], *, is_log: bool = False, styles: Styles | None = None
) -> Figure | None:
    """A trade-off: a light dot a run and a heavy one for each cell's mean; `spots` has the columns cell, x and y."""
    spots = spots.dropna(subset=["x", "y"])
    present = _present(cells, spots)
    if len(present) < 2:
        return None
    figure = canvas(max(2.8, 0.6 + 0.19 * len(present)))
    place = figure.subplots()
    for number, name, title in reversed(present):  # the baseline on top
        mine = spots[spots["cell"] == name]
        colour, marker = _style(number, name, styles)
        how: dict[str, Any] = {"color": COLOURS[colour], "marker": MARKERS[marker], "linestyle": ""}
        place.plot(mine["x"], mine["y"], markersize=3.5, alpha=0.45, **how)
        place.plot([mine["x"].mean()], [mine["y"].mean()], markersize=7.5, label=wrapped(title), **how)
    place.set(xlabel=axes[0], ylabel=axes[1])
    if is_log:
        place.set_xscale("symlog")
        place.xaxis.set_major_formatter("{x:g}")  # the scale's own writes powers as formulas
    place.grid(visible=True)
    legend(figure, reverse=True, loc="outside right upper")
    return figure


def axes_figure(
    values: Mapping[tuple[str, str], Sequence[float]],
    points: Sequence[str],
    others: Sequence[str],
    names: Sequence[str],
) -> Figure | None:
    """The interaction of two axes: a line for each of `others` over `points`, with a light dot for each run.

    `values`: (point, other) -> values over the seeds; `names`: of the first axis, the second, and the values.
    """
    if len(values) < 4:
        return None
    figure = canvas(2.8)
    place = figure.subplots()
    for number, other in enumerate(others):
        shift = 0.06 * (number - (len(others) - 1) / 2)  # so that dots of two lines do not hide each other
        known = [(x + shift, values[point, other]) for x, point in enumerate(points) if values.get((point, other))]
        how: dict[str, Any] = {"color": COLOURS[number % 7], "marker": MARKERS[number // 7 % 4]}
        for x, runs in known:
            place.plot([x] * len(runs), runs, markersize=3.5, alpha=0.35, linestyle="", **how)
        means = [sum(runs) / len(runs) for _, runs in known]
        place.plot([x for x, _ in known], means, markersize=7.0, label=f"{names[1]} {other}", **how)
    place.set_xticks(range(len(points)), [wrapped(point) for point in points])
    place.set(xlabel=names[0], ylabel=names[2])
    legend(figure, loc="outside right upper")
    return figure


def shares_figure(rows: Sequence[tuple[str, Sequence[float]]], parts: Sequence[str], label: str) -> Figure | None:
    """One stacked bar a row; `parts` names its shares, which add up to one."""
    if not rows:
        return None
    figure = canvas(0.95 + 0.36 * len(rows))
    place = figure.subplots()
    lefts = [0.0] * len(rows)
    for number, (part, colour) in enumerate(zip(parts, (SKY, ORANGE, GRID), strict=True)):
        widths = [shares[number] for _, shares in rows]
        bars = place.barh(range(len(rows)), widths, left=lefts, height=0.62, color=colour, label=part)
        place.bar_label(bars, [f"{share:.3f}" if share >= 0.07 else "" for share in widths], label_type="center")
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    place.set_yticks(range(len(rows)), [title for title, _ in rows])
    place.set(xlim=(0, 1), ylim=(len(rows) - 0.5, -0.5), xlabel=label)
    place.grid(visible=False)
    figure.legend(loc="outside upper left", ncols=len(parts))
    return figure


def history_figure(trials: pd.DataFrame, baseline: float | None, metric: str) -> Figure | None:
    """The complete trials of a search in their order, with the best so far; columns number and value."""
    if len(trials) < 2:
        return None
    figure = canvas(2.8)
    place = figure.subplots()
    place.plot(trials["number"], trials["value"], "o", color=BLUE, label="complete")
    best = trials["value"].cummax()
    place.step(trials["number"], best, where="post", color=GREEN, linewidth=1.5, label="best so far")
    if baseline is not None:
        place.axhline(baseline, color=VERMILION, linestyle=":", label="baseline")
    place.set(xlabel="trial", ylabel=metric)
    figure.legend(loc="outside upper left", ncols=3)
    return figure


def legend(figure: Figure, columns: int = 1, *, reverse: bool = False, **how: Any) -> float:
    """The names of the cells, each once, outside the drawing, row by row in as many of `columns` as fit into its width.

    Names that differ in numbers only are sorted by these; `reverse` the others. Returns its height in inches.
    """
    named: dict[str, Any] = {}
    for place in figure.axes:
        handles, names = place.get_legend_handles_labels()
        named |= dict(zip(names, handles, strict=True))
    ordered = by_value([*reversed(named)] if reverse else [*named])
    while True:
        names = [name for column in range(columns) for name in ordered[column::columns]]  # matplotlib fills columns
        placed = figure.legend([named[name] for name in names], names, ncols=columns, **how)
        size = placed.get_window_extent()
        if columns == 1 or size.width <= figure.bbox.width:
            return size.height / figure.dpi
        placed.remove()
        columns -= 1


def by_value(names: list[str]) -> list[str]:
    """Names that differ in their numbers only, sorted by these; others as they are."""
    if len({re.sub(r"\d[\d.]*", "#", name) for name in names}) > 1:
        return names
    return sorted(names, key=lambda name: [float(number.rstrip(".")) for number in re.findall(r"\d[\d.]*", name)])


def wrapped(title: str) -> str:
    """A cell's title as figures have it, whole, in as many lines as it needs."""
    return textwrap.fill(title, 36)


def _present(cells: Cells, frame: pd.DataFrame) -> list[tuple[int, str, str]]:
    """The cells with a row in `frame`, as (number, name, title): by its number a cell has one colour in all figures."""
    return [(number, *cell) for number, cell in enumerate(cells) if (frame["cell"] == cell[0]).any()]


def _style(number: int, name: str, styles: Styles | None) -> tuple[int, int]:
    """The colour of a cell, and its dash or marker."""
    return (styles or {}).get(name, (number % len(COLOURS), number // len(COLOURS) % len(DASHES)))


def _finish(place: Axes, panel: Panel, width: int) -> None:
    known = curve(panel.metric)
    for height, name in panel.lines:
        place.axhline(height, color=VERMILION, linewidth=0.9, linestyle=":")
        place.annotate(
            name, (1.0, height), xycoords=("axes fraction", "data"), textcoords="offset points", xytext=(-1, 3),
            ha="right", fontsize=7.0, color=VERMILION,
        )  # fmt: skip
    place.set_title(textwrap.fill(panel.title or known.title, width))
    place.set_ylabel(panel.unit or known.unit)
    if panel.low is not None or panel.high is not None:
        place.set_ylim(panel.low, panel.high)
    place.margins(x=0.02)
