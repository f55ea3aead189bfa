"""The figures of a study: those that every study has, by their role, and those that it names itself.

A study's file may name figures of its own, `figures: [package.module:function]`. Such a function is called with the
StudyFrames and returns a matplotlib figure, or None where there is nothing to draw; the first paragraph of its
docstring is the caption, its name that of the file.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from realm_lab.core.extensions import own_code
from realm_lab.metrics import Metric, curve
from realm_lab.reporting.comparison import MetricResult
from realm_lab.reporting.figures import Drawing, Panel, curves_figure, deltas_figure, draw, plane_figure
from realm_lab.reporting.frames import StudyFrames
from realm_lab.reporting.rendering import seeds_text

Make = Callable[..., Drawing | None]  # figures.draw
MOST_PANELS = 3
OVER_TIME = ("retrieval_utility", "recall_at_5", "cloze_log_likelihood", "index_staleness_steps")


def drawings(study: StudyFrames, results: Sequence[MetricResult], *, is_paper: bool = False) -> list[Drawing]:
    """All figures of a study, in the order of its report, for a paper as PDF too; those without data are left out."""
    make = functools.partial(draw, is_paper=is_paper)
    seeds = seeds_text(study.record.seeds)
    text = (
        "Paired differences from the baseline: a tick a seed, the dot their mean, the line Student's 95 % interval "
        f"({seeds}), with an arrow where it goes on."
    )
    found = [make("deltas", text, lambda: deltas_figure(results[:MOST_PANELS]))]
    own = [panel_of(name) for name in OVER_TIME]
    text = (
        f"Over pre-training: mean over the seeds, with a band from the lowest to the highest ({seeds}). "
        "Cells that share their pre-training share a curve."
    )
    found.append(make("curves", text, lambda: curves_figure(study.curves_once, own, study.cells)))
    for name in study.record.figures:
        try:
            found.append(own_figure(name, study, make))
        except Exception as error:  # of the user's own code, which must not take the report away
            study.problems.append(f"figure '{name}' failed: {type(error).__name__}: {error}")
    quality = next((result.metric for result in results if not result.is_cost), None)
    if quality is not None:
        minutes, age = study.results["wall_seconds"] / 60, study.results["index_staleness_steps"]
        found.append(_trade_off(make, "cost", study, quality, minutes, "wall-clock time, minutes"))
        if age.round(1).nunique() > 2:
            text = "mean age of the index over pre-training, steps"
            found.append(_trade_off(make, "staleness", study, quality, age, text, is_log=True))
    return [drawing for drawing in found if drawing is not None]


def panel_of(name: str, **given: Any) -> Panel:
    """A panel of a registered curve; shares are drawn from 0 to 1."""
    if curve(name).unit == "" and name.startswith(("recall", "cloze_exact", "gold_", "null_", "index_overlap")):
        given = {"low": 0.0, "high": 1.03} | given
    return Panel(name, **given)


def own_figure(name: str, study: StudyFrames, make: Make = draw) -> Drawing | None:
    """A figure that a study names, `package.module:function`, with the first paragraph of its docstring."""
    function = own_code("figures", name)
    caption = " ".join((inspect.getdoc(function) or name).split("\n\n")[0].split())
    return make(function.__name__, caption, lambda: function(study))


def _trade_off(
    make: Make, name: str, study: StudyFrames, quality: Metric, price: pd.Series, title: str, *, is_log: bool = False
) -> Drawing | None:
    """A measure of quality against what it takes."""
    spots = study.results.copy().assign(x=price, y=study.results[quality.name])
    caption = f"{quality.title} against {title}; light dots are runs, heavy ones the means of cells."
    caption = caption[0].upper() + caption[1:]
    return make(name, caption, lambda: plane_figure(spots, study.cells, (title, quality.title), is_log=is_log))
