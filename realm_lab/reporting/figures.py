"""Every drawing of the report, as SVG and PNG. The only file that imports matplotlib.

The same curves give the same bytes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib

matplotlib.use("Agg")

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from realm_lab.reporting.document import Figure
from realm_lab.reporting.palette import BLUE, GREEN, GRID, INK, MUTED, ON_ORANGE, ORANGE, PAPER, PURPLE, VERMILION

SERIES = (BLUE, GREEN, PURPLE, ORANGE)
DOTTED = (0, (2, 2))
HEADROOM = 0.3  # of a panel with a legend, as a share of what its curves take
MOST_TEETH = 24  # refreshes that a panel can show one by one
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1.5, 1.5)), (0, (5, 1.5, 1.2, 1.5)))
WIDTH_INCHES = 7.6
DOTS_PER_INCH = 170
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
    "text.color": INK,
    "text.parse_math": False,
    "svg.hashsalt": "realm_lab",
    "svg.fonttype": "path",
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 6.0,
    "axes.labelsize": 8.0,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "axes.unicode_minus": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.size": 3.0,
    "ytick.major.size": 0.0,
    "xtick.major.width": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "legend.labelcolor": INK,
    "legend.handlelength": 2.2,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True)
class Panel:
    """One set of axes: which metric, and how it is called and bounded."""

    metric: str
    title: str
    unit: str
    low: float | None = None
    high: float | None = None
    reference: float | None = None
    reference_name: str = ""
    bounds: tuple[tuple[float, str], ...] = ()  # Thin lines and their names: where a run is flagged.
    is_age: bool = False  # Steps since the index was built: rises by one a step, falls to 0 when it is rebuilt.
    series: tuple[tuple[str, str], ...] = ()  # (metric, name) of lines that share the axes, instead of `metric`.
    is_log: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric it draws."""
        return tuple(metric for metric, _ in self.series) or (self.metric,)


def curves_figure(
    name: str,
    caption: str,
    points: pd.DataFrame,
    panels: Sequence[Panel],
    *,
    columns: int,
    step_name: str,
    share_y: bool = False,
    legend_in_panel: bool = False,
) -> Figure | None:
    """Small multiples over steps: a thin line per seed, a heavy one for the mean at the steps all seeds have.

    `points` is the long table of `table.curves_table`. Metrics without a point are left out; None if none is left.
    Colours are labels; in a panel with series they are its series, which asks for points of one label.
    """
    drawn = [panel for panel in panels if points["metric"].isin(panel.metrics).any()]
    if not drawn:
        return None
    labels = sorted(points["label"].unique(), key=lambda label: (label != "realm", label))
    seeds = sorted(int(seed) for seed in points["seed"].unique())
    columns = min(columns, len(drawn))
    free_cell = legend_in_panel and len(drawn) % columns != 0
    rows = math.ceil(len(drawn) / columns)

    def draw(figure: Canvas) -> None:
        grid = figure.subplots(rows, columns, squeeze=False, sharey="row" if share_y else False)
        places = list(grid.flat)
        for place, panel in zip(places, drawn, strict=False):
            _draw_curves(place, panel, points[points["metric"].isin(panel.metrics)], labels)
            if share_y and place not in grid[:, 0]:
                place.set_ylabel("")  # The same axis, named once.
        for place in places[len(drawn) :]:
            place.set_axis_off()
        # The step axis is named once, under the lowest panel of each column.
        for index in range(max(0, len(drawn) - columns), len(drawn)):
            places[index].set_xlabel(step_name)
        handles = _legend_handles(labels, seeds)
        if free_cell:
            places[len(drawn)].legend(handles=handles, loc="center left", borderaxespad=0.0)
        else:
            figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), borderaxespad=0.3)

    height = 1.95 * rows + (0.2 if free_cell else 0.5)
    names = ", ".join(panel.title for panel in drawn)
    alt = f"{caption} Panels: {names}. Seeds: {', '.join(map(str, seeds))}."
    return render(name, caption, alt, draw, height)


def slopes_figure(
    name: str, caption: str, columns: Sequence[tuple[str, dict[int, float], dict[int, float]]], names: tuple[str, str]
) -> Figure | None:
    """One panel per metric: each seed a line from its value under `names[0]` to that under `names[1]`."""
    drawn = [column for column in columns if column[1].keys() & column[2].keys()]
    if not drawn:
        return None

    def draw(figure: Canvas) -> None:
        for place, (title, before, after) in zip(
            figure.subplots(1, len(drawn), squeeze=False).flat, drawn, strict=True
        ):
            seeds = sorted(before.keys() & after.keys())
            for index, seed in enumerate(seeds):
                ends = [before[seed], after[seed]]
                place.plot([0, 1], ends, color=MUTED, linewidth=1.1, linestyle=DASHES[index % len(DASHES)], zorder=2)
                place.plot([0], ends[:1], "o", color=VERMILION, markersize=6.5, zorder=3)
                place.plot([1], ends[1:], "o", color=BLUE, markersize=6.5, zorder=3)
            for x, side, align in ((-0.07, before, "right"), (1.07, after, "left")):
                for seed, y in _spread({seed: side[seed] for seed in seeds}, gap=0.062).items():
                    place.text(x, y, f"seed {seed}: {side[seed]:.3f}", ha=align, va="center", fontsize=7.5)
            place.set(xlim=(-0.75, 1.75), ylim=(-0.03, 1.03), title=title)
            place.set_xticks([0, 1], names)
            place.tick_params(axis="x", length=0, labelsize=8.0, labelcolor=INK)

    details = "; ".join(
        f"{title} "
        + ", ".join(
            f"seed {seed} {before[seed]:.3f} to {after[seed]:.3f}" for seed in sorted(before.keys() & after.keys())
        )
        for title, before, after in drawn
    )
    return render(name, caption, f"{caption} {details}.", draw, 2.7)


def shares_figure(
    name: str, caption: str, rows: Sequence[tuple[str, Sequence[float]]], parts: Sequence[str]
) -> Figure | None:
    """One stacked bar per row, `parts` naming its shares (of one)."""
    if not rows:
        return None
    colours = (BLUE, ORANGE, MUTED)

    def draw(figure: Canvas) -> None:
        place = figure.subplots()
        for y, (_, shares) in enumerate(rows):
            left = 0.0
            for share, colour in zip(shares, colours, strict=True):
                place.barh(y, share, left=left, height=0.62, color=colour, edgecolor=PAPER, linewidth=1.2)
                if share >= 0.07:
                    text = ON_ORANGE if colour == ORANGE else PAPER
                    place.text(left + share / 2, y, f"{share:.3f}", ha="center", va="center", color=text, fontsize=7.5)
                left += share
        place.set_yticks(range(len(rows)), [title for title, _ in rows])
        place.tick_params(axis="y", labelcolor=INK, labelsize=8.0)
        place.set(xlim=(0, 1), ylim=(len(rows) - 0.5, -0.5), xlabel="share of the questions whose answer changed")
        place.grid(False)
        place.spines["left"].set_visible(False)
        handles = [Patch(color=colour, label=part) for part, colour in zip(parts, colours, strict=True)]
        figure.legend(handles=handles, loc="outside upper left", ncols=len(parts), borderaxespad=0.3, handlelength=1.2)

    details = "; ".join(
        f"{title}: " + ", ".join(f"{part} {share:.3f}" for part, share in zip(parts, shares, strict=True))
        for title, shares in rows
    )
    return render(name, caption, f"{caption} {details}.", draw, 0.95 + 0.36 * len(rows))


def _draw_curves(place: Axes, panel: Panel, points: pd.DataFrame, labels: Sequence[str]) -> None:
    if panel.is_log:
        place.set_yscale("log")
        place.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        place.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        place.yaxis.set_minor_locator(NullLocator())
    handles = []
    if panel.series:
        assert len(labels) == 1, "colours cannot be labels and series at once"
        for (metric, name), colour in zip(panel.series, SERIES, strict=False):
            if _draw_lines(place, points[points["metric"] == metric], colour, is_age=False):
                handles.append(Line2D([], [], color=colour, linewidth=2.0, label=name))
        for _, name in panel.bounds:  # beside three curves and a legend there is no room for their names
            handles.append(Line2D([], [], color=VERMILION, linewidth=0.7, linestyle=DOTTED, label=name))
    else:
        for label, colour in zip(labels, _colours(labels), strict=True):
            _draw_lines(place, points[points["label"] == label], colour, is_age=panel.is_age)
    if (panel.low is not None and panel.low < 0) or points["value"].min() < 0 < points["value"].max():
        place.axhline(0.0, color=MUTED, linewidth=0.7)
    if panel.reference is not None:
        _draw_reference(place, panel, panel.reference, panel.reference_name, points, width=1.1)
    for height, name in panel.bounds:
        _draw_reference(place, panel, height, name, points, width=0.7)
    if handles:  # in a strip of their own above the curves
        low, high = place.get_ylim()
        place.set_ylim(low, high * (high / low) ** HEADROOM if panel.is_log else high + HEADROOM * (high - low))
        place.legend(
            handles=handles,
            loc="upper left",
            ncols=2,
            fontsize=7.0,
            handlelength=0.8,
            borderaxespad=0.1,
            columnspacing=0.6,
        )
    place.set_title(panel.title)
    place.set_ylabel(panel.unit)
    if panel.low is not None or panel.high is not None:
        place.set_ylim(panel.low, panel.high)
    place.margins(x=0.02)


def _draw_lines(place: Axes, points: pd.DataFrame, colour: str, *, is_age: bool) -> bool:
    """One metric of one label: a line per seed, and their mean; False when there is nothing to draw."""
    wide = points.pivot(index="step", columns="seed", values="value")
    several = wide.shape[1] > 1
    for index, seed in enumerate(wide.columns):
        line = wide[seed].dropna()
        dash = DASHES[index % len(DASHES)] if several else "-"
        width, alpha = (0.9, 0.65) if several else (1.8, 1.0)
        x, y = _sawtooth(line) if is_age else (list(line.index), list(line))
        if is_age and y.count(0.0) > MOST_TEETH:  # too dense to read: the range the age runs through
            place.fill_between(line.index, 0.0, max(y), color=colour, alpha=0.18, linewidth=0.0)
            x, y = [line.index[0], line.index[-1]], [max(y), max(y)]
        place.plot(x, y, color=colour, linewidth=width, alpha=alpha, linestyle=dash)
    mean = wide.dropna().mean(axis=1)
    if several and not mean.empty and not is_age:
        place.plot(mean.index, mean, color=colour, linewidth=2.0)
    return not wide.empty


def _draw_reference(place: Axes, panel: Panel, height: float, name: str, points: pd.DataFrame, *, width: float) -> None:
    """A dotted line with its name (that of a panel with series is in the legend), where the curves are farther away."""
    place.axhline(height, color=VERMILION, linewidth=width, linestyle=DOTTED)
    if panel.series:
        return
    distance = points.groupby("step")["value"].mean().sub(height).abs()
    at_right = distance.iloc[-1] >= distance.iloc[0]
    top = panel.high if panel.high is not None else max(height, float(points["value"].max()))
    near_top = height > 0.85 * top
    place.annotate(
        name,
        (1.0 if at_right else 0.0, height),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        xytext=(-1 if at_right else 4, -3 if near_top else 3),
        ha="right" if at_right else "left",
        va="top" if near_top else "bottom",
        fontsize=7.0,
        color=VERMILION,
    )


def _sawtooth(age: pd.Series) -> tuple[list[float], list[float]]:
    """Logged ages with the falls put where they happened: an index of age a at step s was built at step s - a."""
    steps, ages = [float(step) for step in age.index], [float(value) for value in age]
    x, y = steps[:1], ages[:1]
    for before, step, value in zip(steps[:-1], steps[1:], ages[1:], strict=True):
        built = step - value
        if built > before:
            x += [built, built]
            y += [y[-1] + built - before, 0.0]
        x.append(step)
        y.append(value)
    return x, y


def _colours(labels: Sequence[str]) -> list[str]:
    return [SERIES[index % len(SERIES)] for index in range(len(labels))]


def _legend_handles(labels: Sequence[str], seeds: Sequence[int]) -> list[Line2D]:
    """Colours name labels (only if there are several), dashes name seeds; the heavy line is the mean."""
    colours = _colours(labels)
    names = [label if label != "shared" else "warm start" for label in labels]
    handles = (
        []
        if len(labels) == 1
        else [Line2D([], [], color=c, linewidth=2.0, label=n) for c, n in zip(colours, names, strict=True)]
    )
    tone = colours[0] if len(labels) == 1 else MUTED
    if len(seeds) == 1:
        return [*handles, Line2D([], [], color=tone, linewidth=1.8, label=f"seed {seeds[0]} (the only one)")]
    mean = Line2D([], [], color=tone, linewidth=2.0, label=f"mean of {len(seeds)} seeds")
    thin = [
        Line2D(
            [], [], color=tone, linewidth=0.9, alpha=0.8, linestyle=DASHES[index % len(DASHES)], label=f"seed {seed}"
        )
        for index, seed in enumerate(seeds)
    ]
    return [*handles, mean, *thin]


def _spread(values: dict[int, float], gap: float) -> dict[int, float]:
    """Heights for texts beside points, at least `gap` apart and near their points, inside 0..1."""
    order = sorted(values, key=lambda seed: values[seed])
    heights: list[float] = []
    for seed in order:
        heights.append(max(values[seed], heights[-1] + gap) if heights else values[seed])
    excess = max(0.0, heights[-1] - 1.0) if heights else 0.0
    for index in range(len(heights) - 1, -1, -1):
        limit = 1.0 if index == len(heights) - 1 else heights[index + 1] - gap
        heights[index] = min(heights[index], limit) if excess else heights[index]
    return dict(zip(order, heights, strict=True))


def render(name: str, caption: str, alt: str, draw: Callable[[Canvas], None], height_inches: float) -> Figure:
    """One drawing in both forms; `draw` gets the empty canvas."""
    with rc_context(STYLE):
        canvas = Canvas(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        canvas.get_layout_engine().set(w_pad=0.06, h_pad=0.035, wspace=0.04, hspace=0.06)  # type: ignore[union-attr,call-arg]
        draw(canvas)
        vector, raster = io.StringIO(), io.BytesIO()
        # No dates and no program versions: the same curves must give the same bytes.
        canvas.savefig(vector, format="svg", metadata={"Date": None, "Creator": None})
        canvas.savefig(raster, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return Figure(name, caption, alt, vector.getvalue(), raster.getvalue())
