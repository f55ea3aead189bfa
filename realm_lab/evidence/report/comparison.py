"""Findings of a study: each cell compared with the baseline in each metric."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from realm_lab.evidence.report.frames import NotMeasured, column, metric_columns
from realm_lab.evidence.report.published import Published, published
from realm_lab.evidence.statistics.family import Finding, judge
from realm_lab.evidence.statistics.intervals import Interval, per_example_interval, seeds_and_questions_interval
from realm_lab.evidence.statistics.paired import compare
from realm_lab.evidence.statistics.sequential import Decisions, Rule, decide
from realm_lab.records.files import read_json_lines
from realm_lab.records.metric_log import finite
from realm_lab.records.metrics import Metric
from realm_lab.records.metrics import metric as metric_of
from realm_lab.records.run import Run
from realm_lab.records.study import StudyCell, StudyRecord

if TYPE_CHECKING:
    import pandas as pd

Cluster = Hashable  # the key of a group of similar questions, such as those about one article


class Gap(StrEnum):
    """The reason why a cell has no finding."""

    NO_DATA = "no data"  # no run of the cell has numbers
    NOT_MEASURED = "not measured"  # runs of the cell have numbers, but not in this metric
    BASELINE = "the baseline has no value"
    NO_SHARED_SEED = "no seed of the baseline"


class CellResult(NamedTuple):
    """One cell in one metric: a finding or a gap. The baseline has no finding, and a gap if it has no values."""

    cell: StudyCell
    values: dict[int, float]  # by seed
    finding: Finding | None
    paper: Published | None
    gap: Gap | None = None
    reason: str = ""  # why the metric is not measured

    @property
    def mean(self) -> float | None:
        """The mean over the seeds that the cell shares with the baseline; without a finding, over all its seeds."""
        if self.finding:
            return self.finding.comparison.means[0]
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
    def by_points(self) -> dict[tuple[str, ...], dict[int, float]]:
        """The values of the cells by their points on the axes of the study."""
        return {tuple(cell.cell.points.values()): cell.values for cell in self.cells if cell.cell.points}

    @property
    def is_cost(self) -> bool:
        """True for a value of the run itself, such as its time, which is no measure of quality."""
        return self.metric.source == "run"

    @property
    def is_measured(self) -> bool:
        """True if any run has a value."""
        return any(cell.values for cell in self.cells)

    @property
    def reasons(self) -> list[str]:
        """The reasons why no run has a value."""
        return list(dict.fromkeys(cell.reason or "no run has a value" for cell in self.cells))


class OverQuestions(NamedTuple):
    """95 % intervals of one comparison; None: too few questions, or too few seeds."""

    same_models: Interval | None  # for other questions
    new_seeds: Interval | None = None  # for other seeds and other questions


Intervals = Mapping[tuple[str, str], OverQuestions]  # (metric, cell) -> its intervals


def question_intervals(
    study: StudyRecord, results: pd.DataFrame, metrics: Sequence[str], runs: Sequence[Run]
) -> Intervals:
    """Return the intervals over questions of each comparison whose runs have the scores of single questions."""
    of_cells = {(run.cell, run.seed): run for run in runs}

    @functools.cache
    def predictions(cell: str, seed: int) -> list[dict[str, Any]]:
        run = of_cells.get((cell, seed))
        path = run.folder("evaluate").path / "eval" / "predictions.jsonl" if run and "evaluate" in run.stages else None
        return read_json_lines(path) if path and path.is_file() else []

    def scores(cell: str, seed: int, metric: str) -> dict[tuple[str, str], tuple[float, Cluster]]:
        """(id, question) -> score and cluster. Predictions of older code name no cluster: each question is separate."""
        rows = ((row, (str(row.get("id")), str(row.get("question")))) for row in predictions(cell, seed))
        known = ((row, question, finite(row.get(metric))) for row, question in rows)
        return {one: (score, row.get("cluster", one)) for row, one, score in known if score is not None}

    found = {}
    for name in metrics:
        base = column(results, study.baseline, name)
        for cell in (cell.name for cell in study.cells if cell.name != study.baseline):
            blocks = []  # for each seed: cluster -> the differences of the questions that both have
            for seed in sorted(column(results, cell, name).keys() & base.keys()):
                mine, theirs = scores(cell, seed, name), scores(study.baseline, seed, name)
                block: dict[Cluster, list[float]] = {}
                for question in (question for question in mine if question in theirs):
                    score, cluster = mine[question]
                    block.setdefault(cluster, []).append(score - theirs[question][0])
                blocks.append({cluster: np.array(deltas) for cluster, deltas in block.items()})
            if blocks and all(blocks):
                both = per_example_interval(blocks), seeds_and_questions_interval(blocks)
                found[name, cell] = OverQuestions(*(interval.within(metric_of(name).span) for interval in both))
    return {key: intervals for key, intervals in found.items() if intervals.same_models}


def compare_cells(
    study: StudyRecord,
    results: pd.DataFrame,
    metrics: Sequence[str],
    over_questions: Intervals | None = None,
    not_measured: NotMeasured | None = None,
) -> list[MetricResult]:
    """Compare the cells in all declared metrics, measured or not, and in the measured exploratory ones; empty before
    the first run has numbers.

    The declared `metrics` times the cells are one family of tests. A cost is left out of this family, unless it is the
    first metric or is in `study.delta`. Each cost left out and each exploratory metric is a separate family.
    """
    known = results.dropna(how="all", subset=metric_columns(results))["cell"]
    measured = [name for name in (*metrics, *study.exploratory) if name in results and results[name].notna().any()]
    names = [name for name in (*metrics, *study.exploratory) if name in metrics or name in measured]
    if known.empty:
        return []
    values = {name: {cell.name: column(results, cell.name, name) for cell in study.cells} for name in names}
    found = {
        (name, cell): (metric_of(name), comparison)
        for name in names
        for cell in values[name]
        if cell != study.baseline and (comparison := compare(values[name][cell], values[name][study.baseline]))
    }
    declared = [name for name in names if name in metrics and is_tested(name, names[0], study.delta)]
    absent = (len(study.cells) - 1) * sum(name not in measured for name in declared)
    judged = judge({key: one for key, one in found.items() if key[0] in declared}, study.delta, absent=absent)
    if study.until:
        at_looks = decisions(study, results, metrics)
        judged = {
            key: finding._replace(
                corrected_p=at_looks.differences.get(key, 1.0), equivalence_p=at_looks.equivalences.get(key)
            )
            for key, finding in judged.items()
        }
    for name in (name for name in names if name not in declared):
        mine = {key: one for key, one in found.items() if key[0] == name}
        judged |= judge(mine, {}, is_exploratory=True)
    gaps = {cell: (not_measured or {}).get(cell, {}) for cell in known}  # of cells with a run that has numbers
    results_of = []
    for name in names:
        metric, cells = metric_of(name), []
        for cell in sorted(study.cells, key=lambda cell: cell.name != study.baseline):
            finding, gap, reason = judged.get((name, cell.name)), None, ""
            if finding:
                same_models, new_seeds = (over_questions or {}).get((name, cell.name), OverQuestions(None))
                finding = finding._replace(per_example=same_models, seeds_and_questions=new_seeds)
            elif not values[name][cell.name]:
                gap = Gap.NOT_MEASURED if cell.name in gaps else Gap.NO_DATA
                why = gaps.get(cell.name, {})
                reason = why.get(name) or why.get(metric.part, "")
            elif not values[name][study.baseline]:
                gap = Gap.BASELINE
            elif cell.name != study.baseline:
                gap = Gap.NO_SHARED_SEED
            paper = published(cell.paper) if cell.paper else None
            cells.append(CellResult(cell, values[name][cell.name], finding, paper, gap, reason))
        results_of.append(MetricResult(metric, cells))
    return results_of


def decisions(study: StudyRecord, results: pd.DataFrame, metrics: Sequence[str]) -> Decisions[tuple[str, str]]:
    """Replay the looks of a study that takes seeds until its cells are decided, as far as complete runs allow. The
    first metric decides about a cell."""
    assert study.until is not None
    complete = results[results["status"] == "COMPLETE"]
    done = {name: set(mine["seed"]) for name, mine in complete.groupby("cell")}
    tests, first = dict[tuple[str, str], list[float]](), metrics[0]

    def is_at_floor(key: tuple[str, str], count: int) -> bool:
        name, mine = key
        seeds = {*sorted(study.seeds)[:count]}
        one, other = (
            {seed: value for seed, value in column(complete, cell, name).items() if seed in seeds}
            for cell in (mine, study.baseline)
        )
        found = compare(one, other)
        return found is not None and all(map(metric_of(name).is_at_floor, found.means))

    for name in metrics:
        base = column(complete, study.baseline, name)
        for cell in (cell.name for cell in study.cells if cell.name != study.baseline):
            values = column(complete, cell, name)
            if name != first and (not base or not values or not is_tested(name, first, study.delta)):
                continue
            both = done.get(cell, set()) & done.get(study.baseline, set())
            seeds = list(itertools.takewhile(both.__contains__, sorted(study.seeds)))
            # NaN for a seed whose runs lack this metric
            tests[name, cell] = [values[s] - base[s] if s in values and s in base else math.nan for s in seeds]
    bounds = {key: study.delta[key[0]] for key in tests if key[0] in study.delta}
    groups = {key: key[1] for key in tests}
    deciding = [key for key in tests if key[0] == first]
    return decide(tests, bounds, groups, deciding, Rule(*study.until), is_at_floor)


def is_tested(name: str, first: str, delta: Mapping[str, float]) -> bool:
    """True if a declared metric is in the study's family of tests: it is no cost, is the `first` metric, or is in
    `delta` (metric -> the largest difference that does not matter)."""
    return metric_of(name).source != "run" or name == first or name in delta


def as_json(results: Sequence[MetricResult]) -> dict[str, Any]:
    """The findings for summary.json: metric -> cell -> fields."""
    return {
        result.metric.name: {cell.cell.name: cell.finding.as_json() for cell in result.cells if cell.finding}
        for result in results
    }


def family_of(results: Sequence[MetricResult]) -> list[tuple[Metric, StudyCell, Finding]]:
    """Return the findings that are one family of tests: all except the exploratory ones."""
    return [
        (result.metric, cell.cell, cell.finding)
        for result in results
        for cell in result.cells
        if cell.finding and not cell.finding.is_exploratory
    ]
