"""What a study says: each cell against the baseline, in each metric, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from realm_lab.core.files import read_json_lines
from realm_lab.metrics import Metric
from realm_lab.metrics import metric as metric_of
from realm_lab.reporting.frames import Run, column
from realm_lab.reporting.published import Published, published
from realm_lab.reporting.statistics import Comparison, Interval, compare, holm, per_example_interval
from realm_lab.tracking.run_values import finite
from realm_lab.tracking.study_record import StudyCell, StudyRecord

ALPHA = 0.05
NO_DIFFERENCE = "no significant difference"


class CellResult(NamedTuple):
    """One cell in one metric. The baseline has no comparison; nor has a cell that shares no finished seed with it."""

    cell: StudyCell
    values: dict[int, float]  # by seed
    comparison: Comparison | None
    corrected_p: float | None  # Holm, over the cells of this metric
    smallest_p: float | None  # that the corrected p could have been
    per_example: Interval | None  # bootstrap over questions: other questions, these very models
    paper: Published | None

    @property
    def finding(self) -> str:
        """In words: lower, higher, the same direction in each seed, no significant difference, or too few seeds."""
        if self.comparison and len(self.comparison.seeds) == 1:
            if self.per_example and self.per_example.excludes_zero:
                return f"{'higher' if self.comparison.mean > 0 else 'lower'} for this pair of models (one seed)"
        return finding(self.comparison, self.corrected_p, self.smallest_p)

    @property
    def mean(self) -> float | None:
        """Over the seeds."""
        return sum(self.values.values()) / len(self.values) if self.values else None


class MetricResult(NamedTuple):
    """A metric over all cells, the baseline first."""

    metric: Metric
    cells: list[CellResult]

    @property
    def baseline(self) -> CellResult:
        """The cell that the others are compared with."""
        return self.cells[0]

    @property
    def is_cost(self) -> bool:
        """True for what a run takes or undergoes, which is no measure of quality."""
        return self.metric.source == "run"


def finding(comparison: Comparison | None, corrected_p: float | None, smallest: float | None) -> str:
    """One cell in words. "No significant difference" only where these seeds could have shown one."""
    if comparison is None or corrected_p is None or smallest is None:
        return "no data"
    way, seeds = "higher" if comparison.mean > 0 else "lower", len(comparison.seeds)
    if corrected_p <= ALPHA:
        return way
    if smallest <= ALPHA:
        return NO_DIFFERENCE
    if seeds > 1 and (min(comparison.deltas) > 0 or max(comparison.deltas) < 0):
        return f"{way} in {all_seeds(seeds)}, too few for significance"
    return "one seed is too few to tell" if seeds == 1 else f"{seeds} seeds are too few to tell"


def all_seeds(seeds: int) -> str:
    """ "both seeds", "all 3 seeds"."""
    return "both seeds" if seeds == 2 else f"all {seeds} seeds"


class Scores:
    """What the predictions of runs score, question by question; each file is read once."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = {(run.cell, run.seed): run for run in runs}
        self._read: dict[tuple[str, int], list[dict[str, Any]]] = {}

    def of(self, cell: str, seed: int, metric: str) -> dict[tuple[str, str], float]:
        """(id, question) -> score of one run's predictions; empty where there are none."""
        key = (cell, seed)
        if key not in self._read:
            stage = self._runs[key].stages.get("evaluate") if key in self._runs else None
            path = stage.path / "eval" / "predictions.jsonl" if stage else None
            self._read[key] = read_json_lines(path) if path and path.is_file() else []
        rows = [(row, finite(row.get(metric))) for row in self._read[key]]
        return {(str(row.get("id")), str(row.get("question"))): score for row, score in rows if score is not None}

    def differences(self, cell: str, base: str, seeds: Sequence[int], metric: str) -> list[np.ndarray]:
        """For each seed the differences in score of the questions that both have; empty if a seed has none."""
        pairs = [(self.of(cell, seed, metric), self.of(base, seed, metric)) for seed in seeds]
        blocks = [np.array([one[key] - other[key] for key in one.keys() & other.keys()]) for one, other in pairs]
        return blocks if all(map(len, blocks)) else []


def compare_cells(
    study: StudyRecord, results: pd.DataFrame, metrics: Sequence[str], scores: Scores | None = None
) -> list[MetricResult]:
    """Every one of the metrics that was measured; `scores` for the intervals over questions, left out without them."""
    return [
        _compare(study, results, name, scores) for name in metrics if name in results and results[name].notna().any()
    ]


def _compare(study: StudyRecord, results: pd.DataFrame, metric: str, scores: Scores | None) -> MetricResult:
    values = {cell.name: column(results, cell.name, metric) for cell in study.cells}
    base = values[study.baseline]
    comparisons = {cell.name: compare(values[cell.name], base) for cell in study.cells if cell.name != study.baseline}
    known = {name: found for name, found in comparisons.items() if found is not None}
    corrected = dict(zip(known, holm([found.p for found in known.values()]), strict=True))
    cells = []
    for cell in sorted(study.cells, key=lambda cell: cell.name != study.baseline):
        found = known.get(cell.name)
        blocks = scores.differences(cell.name, study.baseline, found.seeds, metric) if scores and found else []
        cells.append(
            CellResult(
                cell,
                values[cell.name],
                found,
                corrected.get(cell.name),
                min(1.0, found.smallest_p * len(known)) if found else None,
                per_example_interval(blocks) if blocks else None,
                published(cell.paper) if cell.paper else None,
            )
        )
    return MetricResult(metric_of(metric), cells)


def as_json(results: Sequence[MetricResult]) -> dict[str, Any]:
    """The comparisons for summary.json: metric -> cell -> what was found."""
    return {
        result.metric.name: {
            cell.cell.name: _cell_as_json(cell, cell.comparison) for cell in result.cells[1:] if cell.comparison
        }
        for result in results
    }


def _cell_as_json(cell: CellResult, found: Comparison) -> dict[str, Any]:
    return {
        "n": len(found.seeds),
        "delta": found.mean,
        "deltas": dict(zip(map(str, found.seeds), found.deltas, strict=True)),
        "interval": _bounds(found.interval),
        "per_example_interval": _bounds(cell.per_example),
        "p": found.p,
        "corrected_p": cell.corrected_p,
        "smallest_corrected_p": cell.smallest_p,
        "finding": cell.finding,
    }


def _bounds(interval: Interval | None) -> list[float] | None:
    """Both ends for JSON; None where the data say nothing."""
    return list(interval) if interval is not None and np.isfinite(interval).all() else None


class AxisEffect(NamedTuple):
    """One point of an axis against the baseline's, averaged over the points of the other axes that have both."""

    axis: str
    point: str
    comparison: Comparison
    corrected_p: float  # Holm, over the points of the axis
    smallest_p: float


def points_of(study: StudyRecord, cell: StudyCell) -> dict[str, str] | None:
    """Axis -> point of a cell that the axes made; None for any other."""
    parts = set(cell.name.split(","))
    found = {}
    for axis, points in study.axes.items():
        short = axis.rsplit(".", 1)[-1]
        point = next((p for p in points if {p, f"{short}={p}", f"{axis}={p}"} & parts), None)
        if point is None:
            return None
        found[axis] = point
    return found or None


def axis_effects(study: StudyRecord, values: Mapping[str, Mapping[int, float]]) -> list[AxisEffect]:
    """Every point of every axis but the baseline's; `values`: cell -> seed -> value. Empty without several axes."""
    base = points_of(study, study.cell(study.baseline)) if len(study.axes) > 1 else None
    if base is None:
        return []
    rows: list[dict[str, Any]] = []
    for cell in study.cells:
        if points := points_of(study, cell):
            rows += [points | {"seed": seed, "value": value} for seed, value in values.get(cell.name, {}).items()]
    table = pd.DataFrame(rows, columns=[*study.axes, "seed", "value"])
    effects = []
    for axis, known in study.axes.items():
        others = [other for other in study.axes if other != axis]
        wide = table.pivot(index=[*others, "seed"], columns=axis, values="value").reindex(columns=list(known))
        compared: list[tuple[str, Comparison]] = []
        for point in (point for point in known if point != base[axis]):
            # rows: points of the other axes where both cells have runs; columns: the seeds that all of them have
            pairs = (wide[point] - wide[base[axis]]).unstack("seed").dropna(how="all").dropna(axis="columns")
            deltas = {int(seed): float(pairs[seed].mean()) for seed in pairs.columns}
            if found := compare(deltas, dict.fromkeys(deltas, 0.0)):
                compared.append((point, found))
        corrected = holm([one.p for _, one in compared])
        for (point, one), p in zip(compared, corrected, strict=True):
            effects.append(AxisEffect(axis, point, one, p, min(1.0, one.smallest_p * len(compared))))
    return effects
