"""Figures of particular studies: the paper's Figure 4, staleness against measured drift, quality against compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from realm_lab.reporting.comparison_figures import (
    Delta,
    DriftSpot,
    Spot,
    bands_figure,
    deltas_figure,
    drift_figure,
    plane_figure,
    xy_bands_figure,
)
from realm_lab.reporting.document import NOTHING, Block, Figure, Table, Text, number
from realm_lab.reporting.figures import Panel
from realm_lab.reporting.study_axes import points_of, refresh_axis
from realm_lab.reporting.study_contents import StudyContents
from realm_lab.reporting.table import column
from realm_lab.tracking.study_record import StudyRecord

MASKING = {
    f"pretrain.{name}" for name in ("masking", "masking_options", "mask_rate", "salient_spans", "sentence_choice")
}
CURVES = (
    Panel("retrieval_utility", "retrieval utility, weighted by p(z|x)", "nats per span"),
    Panel("recall_at_5", "recall@5 before fine-tuning", "share of dev questions", 0.0, 1.03),
    Panel("cloze_log_likelihood", "held-out log p(y|x)", "nats per span"),
    Panel("index_staleness_steps", "age of the index", "steps", 0.0),
)
FIGURE_4 = (
    Panel("retrieval_utility", "weighted by p(z|x)", "RU, nats per span"),
    Panel("retrieval_utility_top1", "of the top passage", "RU, nats per span"),
)
# Dev curves that are read off at equal compute; the first is drawn.
OVER_COMPUTE = {"recall_at_5": "recall@5", "cloze_exact_match": "cloze exact match", "retrieval_utility": "utility"}
UNITS = {"retrieval_utility_end": "nats per span"}


class Compute(NamedTuple):
    """Quality over operations of pre-training, refreshing the index included."""

    curves: pd.DataFrame  # label, seed, step, operations and a column for each metric
    equal: float  # operations that every cell has reached: the end of the cheapest one


def utility_by_masking(study: StudyRecord, points: pd.DataFrame, seeds: str) -> Figure | None:
    """The paper's Figure 4, for a study with a cell that changes the masking scheme; None for any other."""
    if not any("pretrain.masking" in cell.changes for cell in study.cells):
        return None
    cells = [cell for cell in study.cells if cell.system != "warm_start" and cell.changes.keys() <= MASKING]
    cells.sort(key=lambda cell: cell.name != study.baseline)
    return bands_figure(
        "utility_by_masking",
        "Figure 4 of the paper, regenerated: retrieval utility RU(z|x) = log p(y|z,x) − log p(y|∅,x) over "
        "pre-training, by masking scheme, on the same held-out sentences with one salient span masked in every cell. "
        f"Mean over seeds, band from the lowest to the highest ({seeds}).",
        points,
        FIGURE_4,
        [(cell.name, cell.title) for cell in cells],
    )


def staleness_by_drift(study: StudyRecord, points: pd.DataFrame, rows: pd.DataFrame, seeds: str) -> Figure | None:
    """Quality against measured drift, a line for each point of the other axis; None without a refresh axis.

    Drift is 1 − index_overlap: of what a fresh index would find among the top k, the share that the searched one
    misses. It is what training sees of staleness, and comparable between rates, as neither the age of the index nor
    the shift of p(z|x) is: that one also depends on how peaked p is.
    """
    axis = refresh_axis(study)
    if axis is None:
        return None
    other = next(name for name in study.axes if name != axis)
    measured = points[(points["metric"] == "index_overlap") & (points["step"] > 0)]
    drift = (1.0 - measured.groupby(["label", "seed"])["value"].mean()).to_dict()
    metrics = [name for name in ("exact_match", "recall_at_5", "retrieval_utility_end") if name in rows][:2]
    spots: list[list[DriftSpot]] = []
    for metric in metrics:
        found = []
        for cell in study.cells:
            at = points_of(study, cell)
            for seed, value in column(rows, cell.name, metric).items():
                if at is not None and (cell.name, seed) in drift:
                    found.append(DriftSpot(at[other], at[axis], drift[cell.name, seed], value))
        spots.append(found)
    names = {"exact_match": "exact match", "recall_at_5": "recall@5, zero-shot"}
    return drift_figure(
        "staleness_by_drift",
        "Staleness by what it does: drift is the share of a fresh index's top k that the searched index misses, mean "
        "over the evaluations of pre-training (1 − index_overlap). Small marks are runs, large ones cell means, joined "
        f"for each {_words(other)} ({seeds}).",
        [
            (names.get(metric, "retrieval utility at the end"), UNITS.get(metric, "share of test questions"), found)
            for metric, found in zip(metrics, spots, strict=True)
        ],
        lines=[(point, f"{_words(other)} = {point}" if "." in other else point) for point in study.axes[other]],
        marks=[(point, point.replace("_", " ")) for point in study.axes[axis]],
    )


def compute_of(points: pd.DataFrame, labels: Sequence[str]) -> Compute | None:
    """The dev curves over operations instead of steps; None where fewer than two cells logged operations."""
    wanted = [*OVER_COMPUTE, "training_operations", "refresh_operations"]
    chosen = points[(points["stage"] == "pretrain") & points["metric"].isin(wanted) & points["label"].isin(labels)]
    if chosen.empty:
        return None
    wide = chosen.pivot_table(index=["label", "seed", "step"], columns="metric", values="value", aggfunc="last")
    if "training_operations" not in wide or not set(OVER_COMPUTE) & set(wide.columns):
        return None
    wide = wide.reset_index()
    spent = wide["training_operations"] + wide.get("refresh_operations", 0.0)
    wide["operations"] = spent.where(wide["step"] > 0, 0.0)
    wide = wide[wide["operations"].notna()].dropna(subset=[m for m in OVER_COMPUTE if m in wide], how="all")
    whole = wide.groupby(["label", "seed"])["step"].transform("max") == wide["step"].max()  # not those under way
    wide = wide[whole]
    ends = wide.groupby(["label", "seed"])["operations"].max()
    return Compute(wide, float(ends.min())) if wide["label"].nunique() > 1 else None


def compute_figure(compute: Compute, cells: Sequence[tuple[str, str]], seeds: str) -> Figure | None:
    """The first dev curve over operations, with a line at equal compute."""
    metric = next(name for name in OVER_COMPUTE if name in compute.curves)
    return xy_bands_figure(
        "compute",
        f"{OVER_COMPUTE[metric]} on dev questions before fine-tuning, over steps and over what pre-training computed, "
        "refreshing the index included (10¹² operations). Dotted: equal compute, the end of the cheapest run. "
        f"Mean over seeds, band from the lowest to the highest ({seeds}).",
        compute.curves.assign(operations=compute.curves["operations"] / 1e12),
        metric,
        (("step", "pre-training step"), ("operations", "10¹² operations")),
        f"{OVER_COMPUTE[metric]}, dev",
        cells,
        mark=compute.equal / 1e12,
    )


def compute_table(compute: Compute, cells: Sequence[tuple[str, str]]) -> Table:
    """Dev quality at equal steps (the end) and at equal compute, mean over seeds."""
    rows = []
    metrics = [name for name in OVER_COMPUTE if name in compute.curves]
    for label, title in cells:
        mine = compute.curves[compute.curves["label"] == label]
        if mine.empty:
            continue
        row: dict[str, Any] = {"cell": title, "10¹² operations": number(_mean_end(mine, "operations", 1e12), 2)}
        for metric in metrics:
            row[f"{OVER_COMPUTE[metric]}, equal steps"] = number(_mean_end(mine, metric))
            row[f"{OVER_COMPUTE[metric]}, equal compute"] = number(_at(mine, metric, compute.equal))
        rows.append(row)
    note = (
        f"Equal compute: {compute.equal / 1e12:.2f} · 10¹² operations of pre-training, refreshing included, those of "
        "the cheapest run; read off the curves between two evaluations. Runs under way are left out, and cells that "
        "are not pre-trained, which spend none."
    )
    frame = pd.DataFrame(rows).fillna(NOTHING)
    return Table("Dev quality at equal steps and at equal compute.", frame, notes=(note,))


def _at(curves: pd.DataFrame, metric: str, operations: float) -> float:
    """Mean over the seeds of a curve at so many operations, linear between its points."""
    values = []
    for _, curve in curves.dropna(subset=[metric]).sort_values("step").groupby("seed"):
        values.append(float(np.interp(operations, curve["operations"], curve[metric])))
    return float(np.mean(values)) if values else float("nan")


def _mean_end(curves: pd.DataFrame, metric: str, scale: float = 1.0) -> float:
    ends = curves.dropna(subset=[metric]).sort_values("step").groupby("seed")[metric].last()
    return float(ends.mean()) / scale


def _words(axis: str) -> str:
    return axis.rsplit(".", 1)[-1].replace("_", " ")


def figures_blocks(contents: StudyContents) -> list[Block]:
    """All figures of a study; those that it has nothing for are left out."""
    pretrain = contents.points[contents.points["stage"] == "pretrain"]
    panels = []
    for result in contents.results[:3]:
        deltas = [
            Delta(cell.cell.title, cell.comparison.deltas, cell.comparison.mean, *cell.comparison.interval)
            for cell in result.cells[1:]
            if cell.comparison
        ]
        panels.append((result.name, deltas))
    seeds = ", ".join(map(str, contents.study.seeds))
    drawn = [
        deltas_figure(
            "deltas",
            "Paired differences from the baseline: a tick a seed, the dot their mean, the line Student's 95 % interval "
            f"(seeds {seeds}).",
            panels,
        ),
        bands_figure(
            "curves",
            f"Over pre-training: mean over seeds, band from the lowest to the highest (seeds {seeds}). Cells that "
            "differ in fine-tuning alone share a curve.",
            pretrain,
            CURVES,
            contents.pretrained,
        ),
        utility_by_masking(contents.study, pretrain, f"seeds {seeds}"),
        staleness_by_drift(contents.study, pretrain, contents.rows, f"seeds {seeds}"),
        *_planes(contents),
    ]
    return [figure for figure in drawn if figure] or [Text("No figures: there are no numbers yet.", missing=True)]


def _planes(contents: StudyContents) -> list[Figure | None]:
    """Quality against cost, and against staleness where that differs."""
    metric = next((m for m in contents.study.metrics if m in ("exact_match", "recall_at_5")), None)
    if metric is None or metric not in contents.rows:
        return []
    name = next(result.name for result in contents.results if result.metric == metric)

    def spots(column: str, scale: float) -> list[Spot]:
        rows = contents.rows[contents.rows[[column, metric]].notna().all(axis=1)]
        return [
            Spot(label, x / scale, y) for label, x, y in zip(rows["label"], rows[column], rows[metric], strict=True)
        ]

    cost = plane_figure(
        "cost",
        f"{name[0].upper()}{name[1:]} against the time that a run took; light dots are runs, heavy ones cell means.",
        spots("wall_seconds", 60.0),
        contents.cells,
        ("wall-clock, minutes", name),
    )
    ages = spots("index_staleness_steps", 1.0)
    if len({round(spot.x, 1) for spot in ages}) < 3:
        return [cost]
    caption = f"{name[0].upper()}{name[1:]} against the mean age of the index during pre-training, as measured."
    return [cost, plane_figure("staleness", caption, ages, contents.cells, ("mean age, steps", name), is_log=True)]
