"""Figures of studies that vary how fresh the index is; they name them in their files."""

from __future__ import annotations

from typing import Any

from realm_lab.metrics import metric
from realm_lab.reporting.figures import plane_figure
from realm_lab.reporting.frames import StudyFrames


def quality_over_drift(study: StudyFrames) -> Any:
    """Quality against what staleness does: drift is the share of a fresh index's top k that the searched index misses,
    mean over the evaluations of pre-training (1 − index_overlap). Light dots are runs, heavy ones the means of cells.
    """
    measured = study.curves[(study.curves["metric"] == "index_overlap") & (study.curves["step"] > 0)]
    overlap = measured.groupby(["cell", "seed"])["value"].mean().rename("overlap").reset_index()
    quality = metric(next(iter(study.record.metrics), "exact_match"))
    if overlap.empty or quality.name not in study.results:
        return None
    spots = study.results.merge(overlap, on=["cell", "seed"])
    spots = spots.assign(drift=1.0 - spots["overlap"], y=spots[quality.name])
    return plane_figure(spots, study.cells, "drift", ("drift: share of the fresh top k missed", quality.title))
