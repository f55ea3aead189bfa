"""What a study says: each cell against the baseline, in each metric, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from realm_lab.core.files import read_json_lines
from realm_lab.errors import UserError
from realm_lab.reporting.published import Published, published
from realm_lab.reporting.statistics import (
    Comparison,
    Interval,
    OrderAgreement,
    compare,
    holm,
    order_agreement,
    per_example_interval,
)
from realm_lab.reporting.study_axes import AxisEffect, axis_effects, points_of
from realm_lab.reporting.table import Collection, column
from realm_lab.tracking.run_dir import stage_of
from realm_lab.tracking.study_record import StudyCell, StudyRecord

ALPHA = 0.05
PER_EXAMPLE = ("exact_match", "exact_match_span", "f1")  # what each prediction is scored by
COSTS = ("index_staleness_steps", "wall_seconds")  # no results
NAMES = {
    "exact_match": "exact match",
    "exact_match_span": "exact match, span",
    "f1": "F1",
    "recall_at_1": "recall@1, zero-shot",
    "recall_at_5": "recall@5, zero-shot",
    "recall_at_20": "recall@20, zero-shot",
    "recall_at_1_finetuned": "recall@1, fine-tuned",
    "recall_at_5_finetuned": "recall@5, fine-tuned",
    "recall_at_20_finetuned": "recall@20, fine-tuned",
    "retrieval_utility": "retrieval utility at the end",
    "retrieval_utility_start": "retrieval utility at the start",
    "retrieval_utility_end": "retrieval utility at the end",
    "retrieval_utility_top1_start": "utility of the top passage at the start",
    "retrieval_utility_top1_end": "utility of the top passage at the end",
    "index_staleness_steps": "mean age of the index, steps",
    "wall_seconds": "wall-clock seconds",
}


class CellResult(NamedTuple):
    """One cell in one metric. The baseline has no comparison; nor has a cell that shares no finished seed with it."""

    cell: StudyCell
    values: dict[int, float]  # by seed
    comparison: Comparison | None
    corrected_p: float | None  # Holm, over the cells of this metric
    smallest_p: float | None  # that the corrected p could have been
    per_example: Interval | None
    paper: Published | None

    @property
    def finding(self) -> str:
        """In words: lower, higher, the same direction in each seed, or not distinguishable."""
        return finding(self.comparison, self.corrected_p, self.smallest_p)


class MetricResult(NamedTuple):
    """A metric over all cells, the baseline first."""

    metric: str
    cells: list[CellResult]
    agreement: OrderAgreement | None

    @property
    def name(self) -> str:
        """What people call it."""
        return NAMES.get(self.metric, self.metric.replace("_", " "))


def finding(comparison: Comparison | None, corrected_p: float | None, smallest: float | None) -> str:
    """One cell in words. Where no result could have been significant, an effect in every seed is called just that."""
    if comparison is None or corrected_p is None or smallest is None:
        return "no data"
    way = "higher" if comparison.mean > 0 else "lower"
    if corrected_p <= ALPHA:
        return way
    one_way = min(comparison.deltas) > 0 or max(comparison.deltas) < 0
    if smallest > ALPHA and one_way and comparison.interval.excludes_zero:
        return f"{way} in each of {len(comparison.seeds)} seeds, too few to be significant"
    return "not distinguishable"


class Scores:
    """What the predictions of runs score, question by question; each file is read once."""

    def __init__(self) -> None:
        self._read: dict[Path, list[dict[str, Any]]] = {}

    def of(self, collection: Collection, label: str, seed: int, metric: str) -> dict[str, float]:
        """Question -> score of one run's predictions; empty where there are none."""
        for run in collection.of(label):
            stage = stage_of(collection.runs_folder, run.record, "evaluate") if run.record.seed == seed else None
            if stage:
                try:
                    rows = self._rows(stage.path / "eval" / "predictions.jsonl")
                    return {f"{row['id']} {row.get('question')}": float(row[metric]) for row in rows}
                except (UserError, KeyError, TypeError, ValueError):
                    return {}
        return {}

    def _rows(self, path: Path) -> list[dict[str, Any]]:
        if path not in self._read:
            kept = ("id", "question", *PER_EXAMPLE)
            found = read_json_lines(path) if path.is_file() else []
            self._read[path] = [{key: row[key] for key in kept if key in row} for row in found]
        return self._read[path]


def compare_study(
    study: StudyRecord, collection: Collection, rows: pd.DataFrame, scores: Scores | None
) -> list[MetricResult]:
    """Every metric of interest; `rows` is one row per run with its numbers (`study_rows`).

    `scores`: for the intervals over questions, which are left out without them.
    """
    return [_metric(study, collection, rows, metric, scores) for metric in study.metrics if metric in rows]


def _metric(
    study: StudyRecord, collection: Collection, rows: pd.DataFrame, metric: str, scores: Scores | None
) -> MetricResult:
    values = {cell.name: column(rows, cell.name, metric) for cell in study.cells}
    base = values[study.baseline]
    others = [cell for cell in study.cells if cell.name != study.baseline]
    comparisons = {cell.name: compare(values[cell.name], base) for cell in others}
    known = {name: found for name, found in comparisons.items() if found is not None}
    corrected = dict(zip(known, holm([found.p for found in known.values()]), strict=True))
    cells = []
    for cell in sorted(study.cells, key=lambda cell: cell.name != study.baseline):
        found = comparisons.get(cell.name)
        cells.append(
            CellResult(
                cell,
                values[cell.name],
                found,
                corrected.get(cell.name),
                min(1.0, found.smallest_p * len(known)) if found else None,
                _per_example(collection, study, cell, found, metric, scores),
                published(cell.paper) if cell.paper else None,
            )
        )
    papers = {r.cell.name: r.paper.values[metric] for r in cells if r.paper and metric in r.paper.values}
    return MetricResult(metric, cells, order_agreement(values, papers))


def _per_example(
    collection: Collection,
    study: StudyRecord,
    cell: StudyCell,
    found: Comparison | None,
    metric: str,
    scores: Scores | None,
) -> Interval | None:
    if found is None or scores is None or metric not in PER_EXAMPLE:
        return None
    blocks = []
    for seed in found.seeds:
        ours, theirs = (scores.of(collection, name, seed, metric) for name in (cell.name, study.baseline))
        shared = sorted(ours.keys() & theirs.keys())
        if shared:
            blocks.append(np.array([ours[key] - theirs[key] for key in shared]))
    return per_example_interval(blocks) if len(blocks) == len(found.seeds) else None


def verdict(study: StudyRecord, results: list[MetricResult]) -> str:
    """The study's answer in a sentence or two, by its first metric."""
    if not results or not results[0].cells[0].values:
        return f"{study.question} No answer yet: the baseline has no finished run."
    first = results[0]
    base = first.cells[0]
    mean = sum(base.values.values()) / len(base.values)
    text = f"{study.question} By {first.name}, against {base.cell.title} ({mean:.3f}, n = {len(base.values)}): "
    effects = axis_effects(study, {cell.cell.name: cell.values for cell in first.cells})
    if effects:
        return text + " ".join(_axis_sentence(study, axis, effects, first) for axis in study.axes)
    groups: dict[str, list[str]] = {}
    for result in first.cells[1:]:
        delta = f" ({_signed(result.comparison.mean)})" if result.comparison else ""
        groups.setdefault(result.finding, []).append(f"{result.cell.title}{delta}")
    order = sorted(groups, key=lambda words: (words == "no data", words == "not distinguishable", words))
    said = "; ".join(f"{words}: {', '.join(groups[words])}" for words in order)
    return f"{text}{said}.{_elsewhere(results)}"


def _elsewhere(results: list[MetricResult]) -> str:
    """Of the cells that the first metric cannot tell from the baseline: what the other measures of quality can."""
    alike = {cell.cell.name for cell in results[0].cells[1:] if cell.finding == "not distinguishable"}
    said = []
    for result in results[1:]:
        for words in ("lower", "higher"):
            cells = [cell for cell in result.cells[1:] if cell.cell.name in alike and cell.finding == words]
            names = [f"{cell.cell.title} ({_signed(cell.comparison.mean)})" for cell in cells if cell.comparison]
            if names and result.metric not in COSTS:
                said.append(f"{words} {result.name}: {', '.join(names)}")
    return f" Significant in other measures: {'; '.join(said)}." if said else ""


def _axis_sentence(study: StudyRecord, axis: str, effects: list[AxisEffect], metric: MetricResult) -> str:
    """What one axis does, averaged over the others; then at each point of the other one, where there is one."""
    others = [other for other in study.axes if other != axis]
    groups: dict[str, list[str]] = {}
    for effect in effects:
        if effect.axis == axis:
            found = finding(effect.comparison, effect.corrected_p, effect.smallest_p)
            groups.setdefault(found, []).append(f"{effect.point} ({_signed(effect.comparison.mean)})")
    order = sorted(groups, key=lambda words: (words == "not distinguishable", words))
    said = "; ".join(f"{words}: {', '.join(groups[words])}" for words in order) or "no data"
    names = " and ".join(_words(other) for other in others)
    text = f"{_words(axis)[0].upper()}{_words(axis)[1:]}, averaged over {names}: {said}"
    within = _within(study, axis, others[0], metric) if len(others) == 1 and axis == next(iter(study.axes)) else ""
    return f"{text}{f' ({within})' if within else ''}."


def _within(study: StudyRecord, axis: str, other: str, metric: MetricResult) -> str:
    """The largest effect of an axis at each point of the other: whether the two interact."""
    base = points_of(study, study.cell(study.baseline)) or {}
    means: dict[tuple[str, str], float] = {}
    for cell in metric.cells:
        at = points_of(study, cell.cell)
        if at is not None and cell.values:
            means[at[axis], at[other]] = sum(cell.values.values()) / len(cell.values)
    said = []
    for point in study.axes[other]:
        at_rest = means.get((base[axis], point))
        deltas = {
            name: value - at_rest
            for (name, where), value in means.items()
            if at_rest is not None and where == point and name != base[axis]
        }
        if deltas:
            largest = max(deltas, key=lambda name: abs(deltas[name]))
            said.append(f"{_signed(deltas[largest])} with {largest} at {_words(other)} {point}")
    return f"the largest difference is {', '.join(said)}" if len(said) > 1 else ""


def _words(axis: str) -> str:
    return axis.rsplit(".", 1)[-1].replace("_", " ")


def as_json(results: list[MetricResult]) -> dict[str, Any]:
    """The comparisons for summary.json: metric -> cell -> what was found."""
    found: dict[str, Any] = {}
    for result in results:
        cells = {}
        for cell in result.cells[1:]:
            if cell.comparison is not None:
                cells[cell.cell.name] = {
                    "n": len(cell.comparison.seeds),
                    "delta": cell.comparison.mean,
                    "deltas": dict(zip(map(str, cell.comparison.seeds), cell.comparison.deltas, strict=True)),
                    "interval": _bounds(cell.comparison.interval),
                    "per_example_interval": _bounds(cell.per_example) if cell.per_example else None,
                    "p": cell.comparison.p,
                    "corrected_p": cell.corrected_p,
                    "smallest_corrected_p": cell.smallest_p,
                    "finding": cell.finding,
                }
        found[result.metric] = cells
    return found


def study_rows(collection: Collection, rows: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """`results_table` with what the evaluate stage does not know: time taken, and the index's mean age."""
    rows = rows.copy()
    seconds = {run.record.name: run.wall_seconds for run in collection.runs if run.is_complete}
    rows["wall_seconds"] = rows["run"].map(seconds)
    ages = points[points["metric"] == "index_staleness_steps_mean"].groupby(["label", "seed"])["value"].last()
    known: Mapping[Any, float] = ages.to_dict()
    rows["index_staleness_steps"] = [known.get(key) for key in zip(rows["label"], rows["seed"], strict=True)]
    return rows


def _bounds(interval: Interval) -> list[float] | None:
    return list(interval) if np.isfinite(interval).all() else None


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")
