"""Draws the figures of a report: curves, trade-offs, axes, shares and trials, and tools for custom figures.

A report has PNG files, a paper also PDF and SVG, one or two columns wide, with text that is not paths. Only this file
imports matplotlib. The same numbers give the same bytes. Colours are taken from Okabe and Ito (2008), safe for
colour-blind readers; beyond seven cells they are repeated with another dash.
"""

from __future__ import annotations

import functools
import io
import itertools
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, LogLocator
from PIL import Image

from realm_lab.records.metrics import Metric, curve

if TYPE_CHECKING:
    import pandas as pd

INK, MUTED, GRID, PAPER = "#1f2933", "#5b6771", "#e2e6ea", "#ffffff"
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
COLOURS = (INK, BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
DASHES = ("-", "--", ":", "-.")
WIDTH_INCHES = 7.6
PAPER_INCHES = (3.25, 6.75)  # widths of one and of two columns in the usual two-column styles
BEHIND = {"facecolor": PAPER, "alpha": 0.75, "pad": 0.4, "edgecolor": "none"}  # box behind a name over dots
MOST_TOGETHER, MOST_IN_ROW = 6, 4  # cells that share a panel; metrics of a row of small multiples
TITLE_CHARACTERS = 64  # of the titles of all panels in a row together
DOTS_PER_INCH = 150
PALETTE_COLOURS = 96  # of a PNG: enough for lines and letters, and the file is a third as large
STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "figure.figsize": (WIDTH_INCHES, 3.0),
    "figure.dpi": DOTS_PER_INCH,  # so that text is measured at the size in which it is drawn
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
    "svg.fonttype": "none",  # text, not paths
    "svg.hashsalt": "realm_lab",
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


Styles = Mapping[str, tuple[int, int]]
"""Cell -> the numbers of its colour and its dash; by default they follow the order of the cells."""


class Sketch(NamedTuple):
    """A figure that is not drawn yet. `alt` describes it to readers who cannot see it."""

    name: str
    caption: str
    alt: str
    make: Callable[[], Figure | None]
    columns: int = 2  # of a paper that the figure spans

    @classmethod
    def of(cls, name: str, caption: str, alt: str, make: Callable[[], Figure | None], columns: int = 2) -> Sketch:
        """Return a sketch whose texts start with a capital."""
        return cls(name, caption[0].upper() + caption[1:], alt[0].upper() + alt[1:], make, columns)

    @property
    def entry(self) -> dict[str, str]:
        """The fields of the figure in summary.json and in templates."""
        return {"name": self.name, "caption": self.caption, "alt": self.alt}


class Drawing(NamedTuple):
    """A drawn figure; `files`: suffix -> bytes."""

    name: str
    files: dict[str, bytes]


class Panel(NamedTuple):
    """One set of axes over the steps of training; an empty title or unit is taken from the registry of metrics."""

    metric: str
    title: str = ""
    unit: str = ""
    low: float | None = None
    high: float | None = None
    lines: Sequence[tuple[float, str]] = ()  # thin horizontal lines with their names: bounds, references


def draw(sketch: Sketch, *, is_paper: bool = False) -> Drawing | None:
    """Draw a figure as PNG, and for a paper also as PDF and SVG, in the style of the reports. None: nothing to draw."""
    with rc_context(STYLE):
        if (figure := _made(sketch)) is None:
            return None
        file, small = io.BytesIO(), io.BytesIO()
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
        image = Image.open(file).convert("RGB")
        # The usual method, median cut, merges the colours of thin lines on a crowded figure.
        image = image.quantize(PALETTE_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        image.save(small, format="PNG", optimize=True)
        files = {"png": small.getvalue()}
        if is_paper:
            size = PAPER_INCHES[sketch.columns - 1]
            with rc_context({"figure.figsize": (size, 3.0), "font.size": 8.0, "axes.titlesize": 8.0}):
                figure = _made(sketch)
                assert figure is not None
                # without a date, so that the same numbers give the same bytes
                for suffix, names in (("pdf", ("CreationDate", "Creator", "Producer")), ("svg", ("Date", "Creator"))):
                    paper = io.BytesIO()
                    figure.savefig(paper, format=suffix, metadata=dict.fromkeys(names))
                    files[suffix] = paper.getvalue()
    return Drawing(sketch.name, files)


def _made(sketch: Sketch) -> Figure | None:
    """Make the figure, with codes for characters that the font lacks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure = sketch.make()
    for text in figure.findobj(Text) if figure else ():
        if isinstance(text, Text):
            text.set_text(drawable(text.get_text()))
    for axis in (axis for place in (figure.axes if figure else ()) for axis in (place.xaxis, place.yaxis)):
        if isinstance(axis.get_major_locator(), FixedLocator):  # ticks with given names
            labels = [label.get_text() for label in axis.get_ticklabels()]
            if (shown := [*map(drawable, labels)]) != labels:
                axis.set_ticklabels(shown)
    return figure


def drawable(text: str) -> str:
    """`text` with a code for each character that the font lacks, for example U+6570."""
    return "".join(one if _is_in_font(one) else f"U+{ord(one):04X}" for one in text)


@functools.cache
def _is_in_font(character: str) -> bool:
    font = get_font(findfont(FontProperties()))  # the default font, which comes with matplotlib
    return character == "\n" or font.get_char_index(ord(character)) != 0


def canvas(height_inches: float) -> Figure:
    """An empty figure as wide as a report, or as a paper's column."""
    figure = Figure(figsize=(rcParams["figure.figsize"][0], height_inches), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.035, wspace=0.04, hspace=0.06)  # type: ignore[union-attr,call-arg]
    return figure


def bands(points: pd.DataFrame) -> pd.DataFrame:
    """Return the mean and range over the seeds of a cell at each step that all its seeds have. Columns: cell, metric,
    step, seeds, mean, low, high."""
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
    """Curves over steps: for each cell the mean over its seeds, and a band from the lowest to the highest seed.

    `found` is a table of `bands`; panels and cells without a point are left out. Many cells and few panels are small
    multiples.
    """
    drawn = [panel for panel in panels if (found["metric"] == panel.metric).any()]
    present = _present(cells, found)
    if not drawn or not present:
        return None
    if len(present) > MOST_TOGETHER and len(drawn) <= MOST_IN_ROW:
        return _multiples(found, drawn, present, step)
    columns = min(columns, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    figure = canvas(2.1 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for place, panel in zip(grid.flat, drawn, strict=False):
        chosen = found[found["metric"] == panel.metric]
        for order, name, title in present:
            usual = order % len(COLOURS), order // len(COLOURS) % len(DASHES)
            colour, dash = (styles or {}).get(name, usual)
            line = chosen[chosen["cell"] == name]
            if line.empty:
                continue
            place.fill_between(line["step"], line["low"], line["high"], color=COLOURS[colour], alpha=0.14, linewidth=0)
            how: dict[str, Any] = {"color": COLOURS[colour], "linestyle": DASHES[dash], "linewidth": 1.8}
            place.plot(line["step"], line["mean"], label=wrapped(title), **how)
        _finish(place, panel, TITLE_CHARACTERS // columns)
    for place in list(grid.flat)[len(drawn) :]:
        place.set_axis_off()
    for place in grid.flat[len(drawn) - columns : len(drawn)]:  # named once, under the lowest panel of each column
        place.set_xlabel(step)
    names_inches = legend(figure, columns=3)
    figure.set_figheight(2.1 * rows + names_inches)
    return figure


def _multiples(
    found: pd.DataFrame, panels: Sequence[Panel], present: Sequence[tuple[int, str, str]], step: str
) -> Figure:
    """A row of small panels for each cell, with the baseline in grey, if it has curves."""
    base = present[:1] if present[0][0] == 0 else []
    rows = present[len(base) :]
    figure = canvas(0.8 * len(rows) + 0.7)
    grid = figure.subplots(len(rows), len(panels), squeeze=False, sharex=True, sharey="col")
    for places, (_, name, title) in zip(grid, rows, strict=True):
        for place, panel in zip(places, panels, strict=True):
            for cell, colour, label in [
                *((cell, MUTED, wrapped(title)) for _, cell, title in base),
                (name, BLUE, None),
            ]:
                line = found[(found["metric"] == panel.metric) & (found["cell"] == cell)]
                place.fill_between(line["step"], line["low"], line["high"], color=colour, alpha=0.16, linewidth=0)
                place.plot(line["step"], line["mean"], color=colour, linewidth=1.4, label=label)
            place.margins(x=0.02)
        places[0].set_title(title, fontweight="normal", fontsize=7.5, pad=2)
    for place, panel in zip(grid[0], panels, strict=True):
        place.set_ylim(panel.low, panel.high)  # for the whole column, once everything in it is drawn
        known = curve(panel.metric)
        heading = f"{panel.title or known.title}{', ' * bool(known.unit)}{panel.unit or known.unit}"
        heading = textwrap.fill(heading, TITLE_CHARACTERS // len(panels))
        at = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom", "fontweight": "bold"}
        place.annotate(heading, (0, 1), xytext=(0, 15), **at)
    for place in grid[-1]:
        place.set_xlabel(step)
    if base:
        figure.set_figheight(0.8 * len(rows) + 0.7 + legend(figure))
    return figure


def plane_figure(
    spots: pd.DataFrame,
    cells: Cells,
    axes: tuple[str, str],
    *,
    is_log: bool = False,
    lines: Mapping[str, Mapping[str, str]] | None = None,
    metric: Metric | None = None,
) -> Figure | None:
    """A trade-off: a light dot for each run and a heavy one for each cell's mean, with its title.

    `spots` has the columns cell, x and y. `lines`: title of a line -> {cell: its name}; these cells have one colour,
    and are joined if x rises from each to the next. `metric`: the metric of y, whose bounds limit the axis.
    """
    spots = spots.dropna(subset=["x", "y"])
    present = _present(cells, spots)
    if len(present) < 2:
        return None
    means = {name: (float(x), float(y)) for name, x, y in spots.groupby("cell")[["x", "y"]].mean().itertuples()}
    figure = canvas(max(2.9, min(4.4, 2.2 + 0.16 * len(present))))
    place = figure.subplots()
    if is_log and spots["x"].max() > 5 * spots["x"].min():  # a log scale of a small range has few numbers
        place.set_xscale("log" if spots["x"].min() > 0 else "symlog")
        place.xaxis.set_major_formatter("{x:g}")  # the default formatter writes powers as formulas
        place.xaxis.set_minor_formatter("")
        if place.get_xscale() == "log":
            place.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    colours, names, ends = {present[0][1]: INK}, {name: title for _, name, title in present}, {}
    for order, (title, joined) in enumerate((lines or {}).items()):
        path = [means[name] for name in joined if name in means]
        ends[title] = max(path, default=None)
        if not path:
            continue
        how: dict[str, Any] = {"color": COLOURS[order % 7], "linestyle": DASHES[order % len(DASHES)]}
        if path == sorted(path):  # else the line would go back and forth
            place.plot(*zip(*path, strict=True), linewidth=1.4, **how)
        colours |= dict.fromkeys(joined, COLOURS[order % 7])
        names |= dict.fromkeys(joined, "") if is_log else joined  # a log axis has no names of points: x is enough
    for _, name, _ in reversed(present):  # the baseline on top
        mine, colour = spots[spots["cell"] == name], colours.get(name, BLUE)
        place.plot(mine["x"], mine["y"], "o", markersize=3, alpha=0.3, color=colour, markeredgewidth=0)
        place.plot(*means[name], "o", markersize=6.5, color=colour, zorder=4)  # above names and their lines
    place.set(xlabel=axes[0], ylabel=wrapped(axes[1], 30))
    place.grid(visible=True)
    place.margins(0.08)
    _bound(place, metric)
    if ends:
        label_ends(figure, place, ends)
    runs = [*spots[["x", "y"]].itertuples(index=False, name=None)]
    named = [(names[name], means[name]) for _, name, _ in present if names[name]]
    _label_points(figure, place, named, [*means.values()], runs)
    return figure


def axes_figure(
    values: Mapping[tuple[str, str], Sequence[float]],
    points: Sequence[str],
    others: Sequence[str],
    names: Sequence[str],
    metric: Metric | None = None,
) -> Figure | None:
    """The interaction of two axes: a line for each of `others` over `points`, with a light dot for each run.

    `values`: (point, other) -> values over the seeds. `names`: the names of the first axis, of the second axis and of
    the values. `metric`: the metric of the values, whose bounds limit the axis.
    """
    if len(values) < 4:
        return None
    figure = canvas(2.9)
    place = figure.subplots()
    ends: dict[str, tuple[float, float] | None] = {}
    for order, other in enumerate(others):
        shift = 0.06 * (order - (len(others) - 1) / 2)  # so that dots of two lines do not hide each other
        known = [(x + shift, values[point, other]) for x, point in enumerate(points) if values.get((point, other))]
        how: dict[str, Any] = {"color": COLOURS[order % 7], "marker": "o"}
        for x, runs in known:
            place.plot([x] * len(runs), runs, markersize=3.5, alpha=0.35, linestyle="", **how)
        means = [sum(runs) / len(runs) for _, runs in known]
        style = DASHES[order % len(DASHES)]
        place.plot([x for x, _ in known], means, style, markersize=6.5, label=f"{names[1]} {other}", **how)
        ends[f"{names[1]} {other}"] = (known[-1][0], means[-1]) if known else None
    place.set_xticks(range(len(points)), [wrapped(point) for point in points])
    place.set(xlabel=names[0], ylabel=names[2])
    place.set_xlim(-0.3, len(points) - 0.7)
    _bound(place, metric)
    label_ends(figure, place, ends)
    return figure


def _bound(place: Axes, metric: Metric | None) -> None:
    """Limit the y axis to the values that a metric can have."""
    low, high = place.get_ylim()
    if metric is not None and metric.low is not None:
        place.set_ylim(bottom=max(low, metric.low - 0.02 * metric.span))
    if metric is not None and metric.high is not None:
        place.set_ylim(top=min(high, metric.high + 0.02 * metric.span))


def label_ends(figure: Figure, place: Axes, ends: Mapping[str, tuple[float, float] | None]) -> None:
    """Write the name of each line to the right of its end; names of ends that are close are stacked. A line without
    points has the end None, so that the next ones keep their colours."""
    height = 1.25 * rcParams["font.size"]
    figure.draw_without_rendering()
    below = -math.inf
    known = [(order, name, end) for order, (name, end) in enumerate(ends.items()) if end]
    for order, name, end in sorted(known, key=lambda one: one[2][1]):
        points = place.transData.transform(end)[1] * 72 / figure.dpi
        moved = max(points, below + height)
        below = moved
        how: dict[str, Any] = {"color": COLOURS[order % 7], "va": "center", "annotation_clip": False}
        right = place.get_xlim()[1], end[1]
        place.annotate(wrapped(name, 26), right, xytext=(3, moved - points), textcoords="offset points", **how)


def _label_points(
    figure: Figure,
    place: Axes,
    named: Sequence[tuple[str, tuple[float, float]]],
    means: Sequence[tuple[float, float]],
    runs: Sequence[tuple[float, float]],
) -> None:
    """Write each name next to its mean, at the position that hides least of the runs, other names and other means."""
    figure.draw_without_rendering()
    scale, inside = figure.dpi / 72, np.array([place.get_window_extent().extents])

    def boxes(points: Sequence[tuple[float, float]], radius: float) -> np.ndarray:
        """A row for each point: left, bottom, right, top; the radius is in points (1/72 inch)."""
        middle = np.asarray(place.transData.transform(points)).reshape(-1, 2)
        return np.hstack([middle - radius * scale, middle + radius * scale])

    taken = boxes(runs, 2.5)
    for name, at in sorted(named, key=lambda one: one[1]):
        line = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}
        how: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7.5, "arrowprops": line, "bbox": BEHIND}
        note = place.annotate(wrapped(name, 26), at, (0, 0), annotation_clip=False, **how)
        size, start = Text.get_window_extent(note).size, np.asarray(place.transData.transform(at))
        others = boxes(
            [mean for mean in means if mean != at], 8.0
        )  # a name near another mean would seem to be its name
        tried = []
        for distance, (right, up) in itertools.product((6, 15, 26), itertools.product((1, -1, 0), (0, 1, -1))):
            if right or up:
                offset = right * distance, up * (4 if right and distance == 6 else distance)
                low = start + scale * np.array(offset) + (np.array([right, up]) - 1) / 2 * size
                box = np.hstack([low, low + size])
                outside = size[0] * size[1] - _hidden(box, inside)
                hidden = (_hidden(box, taken) + 10 * outside + 10 * _hidden(box, others)) / scale**2
                tried.append((hidden + distance, offset, (right, up), box))
        _, offset, (right, up), box = min(tried, key=lambda one: one[0])
        note.set(position=offset, ha=("center", "left", "right")[right], va=("center", "bottom", "top")[up])
        note.set_in_layout(False)
        if note.arrow_patch is not None and max(map(abs, offset)) == 6:
            note.arrow_patch.set_visible(False)
        taken = np.vstack([taken, box])


def _hidden(box: np.ndarray, others: np.ndarray) -> float:
    """Return the area of `others` that a box covers; a box is left, bottom, right, top."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    return float(np.maximum(sides, 0).prod(axis=1).sum())


def shares_figure(rows: Sequence[tuple[str, Sequence[float]]], parts: Sequence[str], label: str) -> Figure | None:
    """A stacked bar for each row; `parts` names the shares of a bar, which add up to one."""
    if not rows:
        return None
    figure = canvas(0.95 + 0.36 * len(rows))
    place = figure.subplots()
    lefts = [0.0] * len(rows)
    for order, (part, colour) in enumerate(zip(parts, (SKY, ORANGE, GRID), strict=True)):
        widths = [shares[order] for _, shares in rows]
        bars = place.barh(range(len(rows)), widths, left=lefts, height=0.62, color=colour, label=part)
        place.bar_label(bars, [f"{share:.3f}" if share >= 0.07 else "" for share in widths], label_type="center")
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    place.set_yticks(range(len(rows)), [title for title, _ in rows])
    place.set(xlim=(0, 1), ylim=(len(rows) - 0.5, -0.5), xlabel=label)
    place.grid(visible=False)
    figure.legend(loc="outside upper left", ncols=len(parts))
    return figure


def history_figure(trials: pd.DataFrame, baseline: float | None, metric: str) -> Figure | None:
    """The complete trials of a search in their order, with the best so far; `trials` has the columns number, value."""
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


def legend(figure: Figure, columns: int = 1) -> float:
    """Draw the names of the cells above the axes, row by row, in at most `columns` columns, as many as fit the width.

    Names that differ only in numbers are sorted by these numbers. Returns the height of the legend in inches.
    """
    named: dict[str, Any] = {}
    for place in figure.axes:
        handles, names = place.get_legend_handles_labels()
        named |= dict(zip(names, handles, strict=True))
    ordered = by_value([*named])
    while True:
        names = [name for column in range(columns) for name in ordered[column::columns]]  # matplotlib fills columns
        placed = figure.legend([named[name] for name in names], names, ncols=columns, loc="outside upper left")
        size = placed.get_window_extent()
        if columns == 1 or size.width <= figure.bbox.width:
            return size.height / figure.dpi
        placed.remove()
        columns -= 1


def by_value(names: list[str]) -> list[str]:
    """Sort names that differ only in their numbers by these numbers; other names stay as they are."""
    if len({re.sub(r"\d[\d.]*", "#", name) for name in names}) > 1:
        return names
    return sorted(names, key=lambda name: [float(number.rstrip(".")) for number in re.findall(r"\d[\d.]*", name)])


def wrapped(title: str, width: int = 36) -> str:
    """Wrap a cell's title for figures, without shortening it."""
    return title if len(title) <= width else textwrap.fill(re.sub(r",(?=[A-Za-z])", ", ", title), width)


def _present(cells: Cells, frame: pd.DataFrame) -> list[tuple[int, str, str]]:
    """Return (number, name, title) of the cells with a row in `frame`; the number decides a cell's colour."""
    return [(order, *cell) for order, cell in enumerate(cells) if (frame["cell"] == cell[0]).any()]


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
