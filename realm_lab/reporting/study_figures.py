"""The figures of a study: those that every study has, by their role, and those that it names itself.

A study's file may name figures of its own, `figures: [package.module:function]`. Such a function is called with the
StudyFrames and returns a matplotlib figure, or None where there is nothing to draw; the first paragraph of its
docstring is the caption, its name that of the file.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from realm_lab.errors import UserError
from realm_lab.metrics import CURVES, curve
from realm_lab.reporting.comparison import MetricResult
from realm_lab.reporting.figures import (
    Delta,
    Drawing,
    Panel,
    curves_figure,
    deltas_figure,
    draw,
    plane_figure,
)
from realm_lab.reporting.frames import StudyFrames
from realm_lab.reporting.rendering import NOTHING, number
from realm_lab.reporting.tables import Rows
from realm_lab.reporting.tuning import seeds_text

MOST_PANELS = 3
OVER_TIME = ("retrieval_utility", "recall_at_5", "cloze_log_likelihood", "index_staleness_steps")
BANDS = "mean over the seeds, with each seed (up to three) or a band from the lowest to the highest"


class Compute(NamedTuple):
    """Development curves over operations of pre-training, refreshing the index included."""

    curves: pd.DataFrame  # cell, seed, step, operations and a column for each metric
    metrics: list[str]
    equal: float  # operations that every cell has reached: the end of the cheapest one


def drawings(study: StudyFrames, results: Sequence[MetricResult]) -> list[Drawing]:
    """All figures of a study, in the order of its report; those that it has nothing for are left out."""
    seeds = seeds_text(study.record.seeds)
    panels = [(result.metric.title, _deltas(result)) for result in results[:MOST_PANELS]]
    details = "; ".join(f"{t}: " + ", ".join(f"{d.title} {d.mean:+.3f}" for d in rows) for t, rows in panels if rows)
    text = "Paired differences from the baseline: a tick a seed, the dot their mean, the line Student's 95 % interval"
    found = [draw("deltas", f"{text} ({seeds}).", lambda: deltas_figure(panels), f"{text}. {details}.")]
    own = [panel_of(name) for name in OVER_TIME]
    found.append(
        draw(
            "curves",
            f"Over pre-training: {BANDS} ({seeds}). Cells that share their pre-training share a curve.",
            lambda: curves_figure(study.curves, own, study.pretrained),
        )
    )
    for name in study.record.figures:
        try:
            found.append(own_figure(name, study))
        except UserError as error:  # a broken figure of the user's own must not take the report away
            study.problems.append(str(error))
    found += _trade_offs(study, results)
    return [drawing for drawing in found if drawing is not None]


def panel_of(name: str, **given: Any) -> Panel:
    """A panel of a registered curve; shares are drawn from 0 to 1."""
    if curve(name).unit == "" and name.startswith(("recall", "cloze_exact", "gold_", "null_", "index_overlap")):
        given = {"low": 0.0, "high": 1.03} | given
    return Panel(name, **given)


def own_figure(name: str, study: StudyFrames) -> Drawing | None:
    """A figure that a study names, `package.module:function`.

    Raises:
        UserError: it cannot be imported, or it fails; the message names the figure.
    """
    function = figure_function(name)
    caption = " ".join((inspect.getdoc(function) or name).split("\n\n")[0].split())
    try:
        return draw(name.partition(":")[2], caption, lambda: function(study))
    except Exception as error:  # code of the user's own
        raise UserError(f"figure '{name}' failed: {type(error).__name__}: {error}") from error


def figure_function(name: str) -> Callable[[StudyFrames], Any]:
    """The function behind `package.module:function`.

    Raises:
        UserError: there is none.
    """
    module, colon, attribute = name.partition(":")
    try:
        if not colon:
            raise ImportError("write it as package.module:function")
        found: Callable[[StudyFrames], Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"figure '{name}': {error}; name a function, package.module:function") from None
    return found


def compute_of(study: StudyFrames) -> Compute | None:
    """The development curves over operations instead of steps; None where fewer than two cells logged operations."""
    metrics = [name for name, known in CURVES.items() if known.split == "dev" and known.headline]
    metrics.sort(key=lambda name: name != "recall_at_5")
    cells = [name for name, _ in study.cells]
    wanted = [*metrics, "training_operations", "refresh_operations"]
    chosen = study.curves[study.curves["metric"].isin(wanted) & study.curves["cell"].isin(cells)]
    if chosen.empty:
        return None
    wide = chosen.pivot_table(index=["cell", "seed", "step"], columns="metric", values="value", aggfunc="last")
    metrics = [name for name in metrics if name in wide]
    if "training_operations" not in wide or not metrics:
        return None
    wide = wide.reset_index()
    spent = wide["training_operations"] + wide.get("refresh_operations", 0.0)
    wide["operations"] = spent.where(wide["step"] > 0, 0.0)
    wide = wide[wide["operations"].notna()].dropna(subset=metrics, how="all")
    ends = wide.groupby(["cell", "seed"])["step"].transform("max")
    longest = wide.groupby("cell")["step"].transform("max")
    wide = wide[ends == longest]  # without runs that are under way
    equal = wide.groupby(["cell", "seed"])["operations"].max().min()
    return Compute(wide, metrics, float(equal)) if wide["cell"].nunique() > 1 else None


def compute_rows(compute: Compute, cells: Sequence[tuple[str, str]]) -> Rows:
    """Development measures at equal steps (the end) and at equal compute, mean over seeds."""
    rows = []
    for name, title in cells:
        mine = compute.curves[compute.curves["cell"] == name]
        if mine.empty:
            continue
        row = {"cell": title, "10¹² operations": number(_mean_end(mine, "operations") / 1e12, 2)}
        for metric in compute.metrics:
            known = curve(metric)
            row[f"{known.title}, equal steps"] = number(_mean_end(mine, metric), known.digits)
            row[f"{known.title}, equal compute"] = number(_at(mine, metric, compute.equal), known.digits)
        rows.append(row)
    return [{name: value or NOTHING for name, value in row.items()} for row in rows]


def _deltas(result: MetricResult) -> list[Delta]:
    return [
        Delta(cell.cell.title, cell.comparison.deltas, cell.comparison.mean, *cell.comparison.interval)
        for cell in result.cells[1:]
        if cell.comparison
    ]


def _trade_offs(study: StudyFrames, results: Sequence[MetricResult]) -> list[Drawing | None]:
    """The first measure of quality against time, and against the age of the index where that differs."""
    quality = next((result.metric for result in results if not result.is_cost), None)
    if quality is None:
        return []

    def spots(name: str, scale: float) -> pd.DataFrame:
        own = study.results[study.results["cell"].isin([cell for cell, _ in study.cells])]
        known = own[own[[name, quality.name]].notna().all(axis=1)]
        return pd.DataFrame({"cell": known["cell"], "x": known[name] / scale, "y": known[quality.name]})

    title = f"{quality.title[0].upper()}{quality.title[1:]}"
    dots = "light dots are runs, heavy ones the means of cells"
    minutes, ages = spots("wall_seconds", 60.0), spots("index_staleness_steps", 1.0)
    cost = draw(
        "cost",
        f"{title} against the time that a run took; {dots}.",
        lambda: plane_figure(minutes, study.cells, ("wall-clock time, minutes", quality.title)),
    )
    if ages["x"].round(1).nunique() < 3:
        return [cost]
    stale = draw(
        "staleness",
        f"{title} against the mean age of the index during pre-training, as measured; {dots}.",
        lambda: plane_figure(ages, study.cells, ("mean age of the index, steps", quality.title), is_log=True),
    )
    return [cost, stale]


def _at(curves: pd.DataFrame, metric: str, operations: float) -> float:
    """Mean over the seeds of a curve at so many operations, linear between its points."""
    values = []
    for _, one in curves.dropna(subset=[metric]).sort_values("step").groupby("seed"):
        values.append(float(np.interp(operations, one["operations"], one[metric])))
    return float(np.mean(values)) if values else float("nan")


def _mean_end(curves: pd.DataFrame, metric: str) -> float:
    return float(curves.dropna(subset=[metric]).sort_values("step").groupby("seed")[metric].last().mean())
