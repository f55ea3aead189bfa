"""The drawings of the study, in the style of realm_lab.reporting.figures. The same tables give the same bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from experiments.staleness_anatomy.design import Arm, Design
from realm_lab.core.files import atomic_write, write_text
from realm_lab.reporting.figures import DASHES, DOTS_PER_INCH, STYLE, WIDTH_INCHES
from realm_lab.reporting.palette import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, VERMILION

# Colour and marker of a kind of policy: told apart without colour, too.
FAMILIES = {
    "fixed": (BLUE, "o", "fixed schedule, all passages"),
    "held": (PURPLE, "D", "held behind the trainer"),
    "staggered": (VERMILION, "v", "in time slices"),
    "partial": (GREEN, "^", "a share of the passages"),
    "drift": (ORANGE, "s", "when it has drifted"),
    "never": (INK, "X", "never"),
}
COLUMNS = 3


def draw_all(design: Design, results: pd.DataFrame, steps: pd.DataFrame, evaluations: pd.DataFrame, to: Path) -> None:
    """Every figure, as NAME.png and NAME.svg."""
    n = f"{len(design.seeds)} seeds"
    _save(to / "quality_against_staleness", 5.6, lambda place: _quality(place, design, results))
    _save(to / "drift_against_schedule", 5.0, lambda place: _drift(place, design, results, steps))
    for name, table, column, title, top in (
        ("age", steps, "age_steps", f"age of the searched vectors, steps (mean over passages; {n})", None),
        ("overlap", steps, "overlap", f"share of the fresh top k that the index finds, estimated ({n})", 1.02),
        ("utility", evaluations, "utility", f"retrieval utility with a fresh index, nats a span ({n})", None),
        ("recall", evaluations, "recall_at_5", f"zero-shot recall@5 with a fresh index ({n})", None),
    ):
        rows = math.ceil(len(design.arms) / COLUMNS)
        chosen = table.dropna(subset=[column])
        _save(
            to / f"{name}_over_steps",
            0.7 + 1.55 * rows,
            lambda place, chosen=chosen, column=column, title=title, top=top: _multiples(  # type: ignore[misc]
                place, design, chosen, column, title, top
            ),
        )


def _quality(figure: Figure, design: Design, results: pd.DataFrame) -> None:
    """End of training against measured staleness: a small mark for each seed, a large one for the mean."""
    measured = (
        ("mean_age_steps", "mean age of the searched vectors, steps", True),
        ("mean_missed", "mean share of the fresh top k not found (estimate)", False),
    )
    results = results.assign(mean_missed=1.0 - results["mean_overlap"])
    wanted = (
        ("utility_late", "retrieval utility, nats a span"),
        ("recall_at_5_late", "zero-shot recall@5"),
    )
    grid = figure.subplots(2, 2, sharey="row", sharex="col")
    for row, (quality, name) in enumerate(wanted):
        for column, (staleness, described, is_log) in enumerate(measured):
            place: Axes = grid[row][column]
            for arm in design.arms:
                _arm_marks(place, arm, results[results["arm"] == arm.name], staleness, quality)
            if is_log:
                place.set_xscale("log")
                place.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
                place.set_xticks([3, 10, 30, 100, 300])
                place.xaxis.set_minor_locator(NullLocator())
            if column == 0:
                place.set_ylabel(name)
            if row == 1:
                place.set_xlabel(described)
            _annotate(place, design, design.arms, results, staleness, quality)
    used = {arm.family for arm in design.arms}
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle="", markersize=6, label=name)
        for family, (colour, marker, name) in FAMILIES.items()
        if family in used
    ]
    handles.append(Line2D([], [], color=MUTED, marker=".", linestyle="", markersize=5, label=_seeds(design)))
    figure.legend(handles=handles, loc="outside upper left", ncols=4, borderaxespad=0.3, handlelength=1.2)


def _seeds(design: Design) -> str:
    return f"seeds {', '.join(map(str, design.seeds))} (large: mean of {len(design.seeds)})"


def _arm_marks(place: Axes, arm: Arm, rows: pd.DataFrame, x: str, y: str) -> None:
    colour, marker, _ = FAMILIES[arm.family]
    centre = (rows[x].mean(), rows[y].mean())
    place.plot([centre[0]] * 2, [rows[y].min(), rows[y].max()], color=colour, linewidth=0.9, alpha=0.6)
    place.plot(rows[x], rows[y], marker=".", linestyle="", color=colour, markersize=4, alpha=0.6)
    place.plot(*centre, marker=marker, linestyle="", color=colour, markersize=6.5, zorder=3)


def _annotate(place: Axes, design: Design, arms: Sequence[Arm], results: pd.DataFrame, x: str, y: str) -> None:
    """The number of each arm in the tables beside its mark, on the side that is away from its neighbour's."""
    centres = {}
    for arm in arms:
        rows = results[results["arm"] == arm.name]
        centres[arm.name] = (float(rows[x].mean()), float(rows[y].mean()))
    shown = {name: _relative(place, centre) for name, centre in centres.items()}
    for arm in arms:
        here = shown[arm.name]
        others = [there for name, there in shown.items() if name != arm.name]
        near = [one for one in others if abs(one[0] - here[0]) < 0.1 and abs(one[1] - here[1]) < 0.12]
        nearest = min(near, key=partial(math.dist, here), default=None)
        left = nearest is not None and here[0] < nearest[0]
        below = nearest is not None and here[1] < nearest[1]
        place.annotate(
            str(design.arms.index(arm) + 1),
            centres[arm.name],
            xytext=(-6 if left else 6, -9 if below else 4),
            textcoords="offset points",
            ha="right" if left else "left",
            fontsize=7.5,
            color=INK,
        )


def _relative(place: Axes, point: tuple[float, float]) -> tuple[float, float]:
    shown = place.transAxes.inverted().transform(place.transData.transform(point))
    return float(shown[0]), float(shown[1])


def _drift(figure: Figure, design: Design, results: pd.DataFrame, steps: pd.DataFrame) -> None:
    """Above: quality against the number of refreshes, whole ones only. Below: when the drift arms refreshed."""
    arms = [arm for arm in design.arms if arm.family in ("fixed", "drift", "never")]
    drifting = [arm for arm in design.arms if arm.family == "drift"]
    halves: Any = figure.subfigures(2, 1, height_ratios=[1.5, 1.0])
    above, below = halves
    wanted = (("utility_late", "retrieval utility, nats a span"), ("recall_at_5_late", "zero-shot recall@5"))
    for place, (quality, name) in zip(above.subplots(1, 2), wanted, strict=True):
        for arm in arms:
            _arm_marks(place, arm, results[results["arm"] == arm.name], "refreshes", quality)
        place.set(xlabel="refreshes in a run", ylabel=name)
        place.set_xscale("symlog", linthresh=1.0, linscale=0.35)
        place.set_xticks([0, 1, 3, 10, 30, 100], ["0", "1", "3", "10", "30", "100"])
        place.set_xlim(-0.4, 130)
        place.xaxis.set_minor_locator(NullLocator())
        _annotate(place, design, arms, results, "refreshes", quality)
    place = below.subplots()
    lines = [(arm, seed) for arm in drifting for seed in design.seeds]
    for y, (arm, seed) in enumerate(lines):
        made = generations(steps, arm.name, seed)
        place.eventplot([made], lineoffsets=y, linelengths=0.7, linewidths=1.1, colors=FAMILIES["drift"][0])
    place.set_yticks(range(len(lines)), [f"{arm.title.split()[-1]}, seed {seed}" for arm, seed in lines])
    place.set(ylim=(len(lines) - 0.4, -0.6), xlabel="step of training at which the index was refreshed")
    place.set_title("When a low overlap asked for a refresh, by bound and seed")
    place.grid(False)
    handles = [
        Line2D([], [], color=FAMILIES[family][0], marker=FAMILIES[family][1], linestyle="", label=FAMILIES[family][2])
        for family in ("fixed", "drift", "never")
    ]
    handles.append(Line2D([], [], color=MUTED, marker=".", linestyle="", markersize=5, label=_seeds(design)))
    above.legend(handles=handles, loc="outside upper left", ncols=4, borderaxespad=0.3, handlelength=1.2)


def generations(steps: pd.DataFrame, arm: str, seed: int) -> list[int]:
    """The steps whose weights made the indexes that were seen in a run, the first one left out.

    A generation that lived for fewer steps than lie between two measurements may be missing.
    """
    rows = steps[(steps["arm"] == arm) & (steps["seed"] == seed)].dropna(subset=["age_steps"])
    made = (rows["step"] - 1 - rows["age_steps"]).round().astype(int)
    return sorted(set(made.tolist()) - {0})


def _multiples(figure: Figure, design: Design, table: pd.DataFrame, column: str, title: str, top: float | None) -> None:
    """A panel for each arm: a thin line for each seed, a heavy one for the mean, the reference's mean in grey."""
    count = len(design.arms)
    grid = figure.subplots(math.ceil(count / COLUMNS), COLUMNS, sharey=True, sharex=True, squeeze=False)
    places = list(grid.flat)
    reference = _mean(table[table["arm"] == design.reference], column)
    is_log = column == "age_steps"
    for index, (place, arm) in enumerate(zip(places, design.arms, strict=False)):
        rows = table[table["arm"] == arm.name]
        if arm.name != design.reference:
            place.plot(reference.index, reference, color=MUTED, linewidth=1.0, alpha=0.7)
        colour = FAMILIES[arm.family][0]
        for number, seed in enumerate(design.seeds):
            line = rows[rows["seed"] == seed]
            dash = DASHES[number % len(DASHES)]
            place.plot(line["step"], line[column], color=colour, linewidth=0.7, alpha=0.65, linestyle=dash)
        mean = _mean(rows, column)
        place.plot(mean.index, mean, color=colour, linewidth=1.7)
        place.set_title(f"{index + 1}  {arm.title}", fontsize=7.5)
        if is_log:
            place.set_yscale("symlog", linthresh=10.0)
            place.set_yticks([0, 10, 100, 800], ["0", "10", "100", "800"])
            place.yaxis.set_minor_locator(NullLocator())
        elif table[column].min() < 0:
            place.axhline(0.0, color=MUTED, linewidth=0.7)
    if top is not None:
        places[0].set_ylim(0.0, top)
    for place in places[count:]:
        place.set_axis_off()
    for place in grid[-1]:
        place.set_xlabel("step")
    heavy = Line2D([], [], color=INK, linewidth=1.7, label="mean")
    thin = [
        Line2D([], [], color=INK, linewidth=0.8, linestyle=DASHES[i % len(DASHES)], label=f"seed {seed}")
        for i, seed in enumerate(design.seeds)
    ]
    grey = Line2D([], [], color=MUTED, linewidth=1.0, label=f"mean of {design.arm(design.reference).title}")
    figure.suptitle(title, x=0.01, ha="left", fontsize=8.5, fontweight="bold")
    figure.legend(handles=[heavy, *thin, grey], loc="outside lower left", ncols=5, borderaxespad=0.3)


def _mean(rows: pd.DataFrame, column: str) -> pd.Series:
    """Over the seeds, at the steps that all of them have."""
    return rows.pivot(index="step", columns="seed", values=column).dropna().mean(axis=1)


def _save(path: Path, height_inches: float, draw: Callable[[Figure], None]) -> None:
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        draw(figure)
        vector, raster = io.StringIO(), io.BytesIO()
        # No dates and no program versions: the same tables must give the same bytes.
        figure.savefig(vector, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(raster, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path.with_suffix(".svg"), vector.getvalue())
    with atomic_write(path.with_suffix(".png"), "wb") as file:
        file.write(raster.getvalue())
