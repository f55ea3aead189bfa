"""Figures of studies that vary how fresh the index is; they name them in their files."""

from __future__ import annotations

from typing import Any

import pandas as pd

from realm_lab.metrics import metric
from realm_lab.reporting.comparison import points_of
from realm_lab.reporting.figures import Panel, canvas, cell_style, curves_figure, legend
from realm_lab.reporting.frames import StudyFrames

MEASURES = ("exact_match", "recall_at_5", "retrieval_utility")


def quality_over_drift(study: StudyFrames) -> Any:
    """Quality against what staleness does: drift is the share of a fresh index's top k that the searched index misses,
    mean over the evaluations of pre-training (1 − index_overlap). Small marks are runs, large ones the means of cells;
    in a study with two axes the cells that differ in freshness alone are joined.

    Drift is what training sees of staleness, and comparable between learning rates, as neither the age of the index nor
    the shift of p(z|x) is: that one also depends on how peaked p is.
    """
    measured = study.curves[(study.curves["metric"] == "index_overlap") & (study.curves["step"] > 0)]
    drift = 1.0 - measured.groupby(["cell", "seed"])["value"].mean()
    names = [name for name in MEASURES if name in study.results and study.results[name].notna().any()][:2]
    if drift.empty or not names:
        return None
    cells = [(name, title) for name, title in study.cells if name in drift.index.get_level_values("cell")]
    figure = canvas(2.8 + 0.2 * (len(cells) // 3))
    places = figure.subplots(1, len(names), squeeze=False)[0]
    for place, name in zip(places, names, strict=True):
        means: dict[str, list[tuple[float, float]]] = {}
        for number, (cell, _) in enumerate(cells):
            values = study.values(cell, name)
            spots = pd.DataFrame(
                [(drift[cell, seed], value) for seed, value in values.items() if (cell, seed) in drift.index],
                columns=["x", "y"],
            )
            if spots.empty:
                continue
            colour, _, marker = cell_style(number)
            place.plot(spots["x"], spots["y"], marker, color=colour, markersize=3.5, alpha=0.45)
            place.plot([spots["x"].mean()], [spots["y"].mean()], marker, color=colour, markersize=7.5)
            means.setdefault(_other_point(study, cell), []).append((spots["x"].mean(), spots["y"].mean()))
        for line in means.values() if len(study.record.axes) == 2 else ():
            line.sort()
            place.plot([x for x, _ in line], [y for _, y in line], color="#5b6771", linewidth=0.9, zorder=1)
        known = metric(name)
        place.set(
            title=known.title, ylabel=known.unit, xlabel="drift: share of the fresh top k missed", xlim=(0.0, 1.0)
        )
    legend(figure, places[0], cells)
    return figure


def overlap_over_steps(study: StudyFrames) -> Any:
    """Over pre-training: the age of the vectors that training searches, and the share of the fresh top k that it still
    finds (exact at the evaluations, and estimated from a sample between them).
    """
    names = ("index_staleness_steps", "index_overlap", "index_overlap_sampled", "prior_shift_sampled")
    return curves_figure(study.curves, [Panel(name, low=0.0) for name in names], study.pretrained)


def _other_point(study: StudyFrames, cell: str) -> str:
    """The point of the axis that is not about refreshing the index, of a study with two axes; "" in any other."""
    record = study.record
    at, base = points_of(record, record.cell(cell)), points_of(record, record.cell(record.baseline))
    if at is None or base is None:
        return ""
    for axis in at:
        moved = [
            other.changes
            for other in record.cells
            if (there := points_of(record, other))
            and there[axis] != base[axis]
            and all(there[name] == base[name] for name in base if name != axis)
        ]
        if moved and all(name.startswith("pretrain.refresh.") for changes in moved for name in changes):
            return next((point for name, point in at.items() if name != axis), "")
    return ""
