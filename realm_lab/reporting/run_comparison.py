"""`realm-lab compare`: two or more runs, or cells of studies, against the first: parameters, numbers, curves, deltas.

Where both sides have seeds in common the unit is the seed, as in the report of a study. Two single runs can only be
compared question by question, which speaks of other questions and not of other seeds; the tables say which it is.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from realm_lab.core.files import digest, read_json_lines
from realm_lab.errors import UserError
from realm_lab.reporting.provenance_sections import flat_parameters, mismatches
from realm_lab.reporting.run_selection import Side, find_sides
from realm_lab.reporting.statistics import Comparison, Interval, compare, holm, per_example_interval
from realm_lab.reporting.study_comparison import NAMES, PER_EXAMPLE, finding, study_rows
from realm_lab.reporting.table import Collection, Run, collect, column, curves_table, finite, gaps, results_table
from realm_lab.tracking.run_dir import stage_of

METRICS = (
    "exact_match",
    "exact_match_span",
    "f1",
    "exact_match_no_overlap",
    "exact_match_answer_overlap_only",
    "exact_match_question_overlap",
    "recall_at_1",
    "recall_at_5",
    "recall_at_20",
    "recall_at_1_finetuned",
    "recall_at_5_finetuned",
    "recall_at_20_finetuned",
    "retrieval_utility_start",
    "retrieval_utility_end",
    "edition_swap.follows",
    "edition_swap.stays",
    "index_staleness_steps",
    "wall_seconds",
)
NAME_CHARACTERS = 80  # of the page's folder; longer ones are cut and told apart by a digest


@dataclass(frozen=True)
class Part:
    """One side with all that was read of it; `title` is its name, as short as it can be told from the others."""

    side: Side
    title: str
    collection: Collection
    rows: pd.DataFrame
    points: pd.DataFrame

    def values(self, metric: str) -> dict[int, float]:
        """seed -> value, of the runs that have it."""
        return column(self.rows, self.title, metric)

    def at(self, seed: int) -> Run:
        """Its run of that seed."""
        return next(run for run in self.collection.runs if run.record.seed == seed)


class Difference(NamedTuple):
    """One metric of one side less that of the first; `over_seeds` is None where they share no finished seed."""

    metric: str
    title: str
    first: float
    value: float
    over_seeds: Comparison | None
    corrected_p: float | None  # Holm, over the sides of this metric
    smallest_p: float | None
    examples: Interval | None  # other questions, these very models
    questions: int  # that both sides answered, over all pairs of runs
    is_pair: bool  # one finished run each

    @property
    def mean(self) -> float:
        """The paired difference where there are pairs, else that of the means."""
        return self.over_seeds.mean if self.over_seeds else self.value - self.first

    @property
    def repeated(self) -> Comparison | None:
        """`over_seeds` where it is of more than one seed, and says something of seeds."""
        return self.over_seeds if self.over_seeds and len(self.over_seeds.seeds) > 1 else None

    @property
    def finding(self) -> str:
        """In words, and no more than the seeds or questions allow."""
        if self.repeated:
            return finding(self.repeated, self.corrected_p, self.smallest_p)
        if not self.over_seeds and not self.is_pair:
            return "no shared seed"
        if self.examples is None or not math.isfinite(self.examples.low):
            return "one run each"  # at the one seed that they share, or of two seeds
        way = "higher" if self.mean > 0 else "lower"
        return f"{way}, for these two models" if self.examples.excludes_zero else "not distinguishable"


class RunComparison:
    """Everything that is read of the sides, once."""

    def __init__(self, runs: Path, texts: Sequence[str]):
        sides = find_sides(runs, texts)
        titles = _titles(sides)
        self.parts = [_part(runs, side, title) for side, title in zip(sides, titles, strict=True)]
        self.metrics = [name for name in METRICS if any(part.values(name) for part in self.parts)]
        self._predictions: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
        self.differences = [found for metric in self.metrics for found in self._differences(metric)]

    @property
    def name(self) -> str:
        """A folder name made of the sides' names."""
        text = "-vs-".join(part.side.name.replace("/", ".") for part in self.parts)
        return text if len(text) <= NAME_CHARACTERS else f"{text[:NAME_CHARACTERS]}-{digest(text)[:8]}"

    @property
    def warnings(self) -> list[str]:
        """What is not there yet, and what else differs than a reader would think."""
        found = [problem for part in self.parts for problem in part.collection.problems]
        found += [gap for part in self.parts for run in part.collection.runs for gap in _first_gap(part, run)]
        runs = [run for part in self.parts for run in part.collection.runs]
        seeds = sorted({run.record.seed for run in runs})
        found += mismatches(Collection(self.parts[0].collection.runs_folder, runs, seeds))
        firsts = {run.record.seed for run in self.parts[0].collection.runs}
        for part in self.parts[1:]:
            if not firsts & {run.record.seed for run in part.collection.runs}:
                found.append(
                    f"{part.title} has no seed in common with {self.parts[0].title}: their difference holds that of "
                    "the seeds, and in the toy world each seed has questions of its own."
                )
        return list(dict.fromkeys(found))

    def changes(self) -> dict[str, list[Any]]:
        """Dotted parameter -> its value on each side, for those that differ; None where a side does not have it."""
        flats = [flat_parameters(part.collection.runs[0].record.params) for part in self.parts]
        systems = [part.collection.runs[0].record.system for part in self.parts]
        found: dict[str, list[Any]] = {"(system)": list(systems)} if len(set(systems)) > 1 else {}
        for key in sorted(set().union(*flats)):
            values = [flat.get(key) for flat in flats]
            if any(value != values[0] for value in values):
                found[key] = values
        return found

    def _differences(self, metric: str) -> list[Difference]:
        first = self.parts[0]
        base = first.values(metric)
        others = [(part, part.values(metric)) for part in self.parts[1:]]
        others = [(part, values) for part, values in others if values and base]
        found = [compare(values, base) for _, values in others]
        known = [comparison for comparison in found if comparison and len(comparison.seeds) > 1]
        corrected = iter(holm([comparison.p for comparison in known]))
        differences = []
        for (part, values), comparison in zip(others, found, strict=True):
            is_pair = len(base) == len(values) == 1
            is_repeated = comparison is not None and len(comparison.seeds) > 1
            if comparison:
                pairs = [(seed, seed) for seed in comparison.seeds]
            else:
                pairs = [(next(iter(values)), next(iter(base)))] if is_pair else []
            blocks = self._blocks(part, pairs, metric)
            differences.append(
                Difference(
                    metric,
                    part.title,
                    float(np.mean(list(base.values()))),
                    float(np.mean(list(values.values()))),
                    comparison,
                    next(corrected) if is_repeated else None,
                    min(1.0, comparison.smallest_p * len(known)) if comparison and is_repeated else None,
                    per_example_interval(blocks) if blocks else None,
                    sum(map(len, blocks)),
                    is_pair,
                )
            )
        return differences

    def _blocks(self, part: Part, pairs: Sequence[tuple[int, int]], metric: str) -> list[np.ndarray]:
        """For each pair of runs the differences in score of the questions both have; empty if one pair has none."""
        if metric not in PER_EXAMPLE:
            return []
        blocks = []
        for ours, theirs in pairs:
            mine, other = self._scores(part, ours, metric), self._scores(self.parts[0], theirs, metric)
            shared = sorted(mine.keys() & other.keys())
            blocks.append(np.array([mine[key] - other[key] for key in shared]))
        return blocks if all(len(block) for block in blocks) else []

    def _scores(self, part: Part, seed: int, metric: str) -> dict[tuple[str, str], float]:
        """(id, question) -> score: the same id may stand for another question in another corpus."""
        run = part.at(seed)
        key = (run.record.name, metric)
        if key not in self._predictions:
            stage = stage_of(part.collection.runs_folder, run.record, "evaluate")
            try:
                lines = read_json_lines(stage.path / "eval" / "predictions.jsonl") if stage else []
                scores = {(str(row["id"]), str(row.get("question"))): finite(row.get(metric)) for row in lines}
            except (UserError, OSError, KeyError, AttributeError):
                scores = {}
            self._predictions[key] = {place: score for place, score in scores.items() if score is not None}
        return self._predictions[key]


def as_json(found: RunComparison) -> dict[str, Any]:
    """What was found, for programs: side -> seed -> metric, and the differences from the first side."""
    sides = []
    for part in found.parts:
        runs = {run.record.seed: run for run in part.collection.runs}
        numbers = {
            str(seed): {metric: part.values(metric)[seed] for metric in found.metrics if seed in part.values(metric)}
            for seed in runs
        }
        names = {str(seed): run.record.name for seed, run in runs.items()}
        sides.append({"name": part.side.name, "runs": names, "numbers": numbers})
    return {
        "sides": sides,
        "parameters": {
            key: {part.side.name: value for part, value in zip(found.parts, values, strict=True)}
            for key, values in found.changes().items()
        },
        "differences": [_difference_as_json(found, item) for item in found.differences],
        "warnings": found.warnings,
    }


def _difference_as_json(found: RunComparison, item: Difference) -> dict[str, Any]:
    over = item.repeated
    return {
        "metric": item.metric,
        "side": next(part.side.name for part in found.parts if part.title == item.title),
        "delta": item.mean,
        "seeds": list(over.seeds) if over else [],
        "interval_over_seeds": _bounds(over.interval) if over else None,
        "corrected_p": item.corrected_p if over else None,
        "smallest_corrected_p": item.smallest_p if over else None,
        "interval_over_questions": _bounds(item.examples) if item.examples else None,
        "questions": item.questions,
        "finding": item.finding,
    }


def show_value(value: Any) -> str:
    """A parameter as it would stand in YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def metric_name(metric: str) -> str:
    """What people call it."""
    return NAMES.get(metric, metric.replace("_", " ").replace(".", ", "))


def _part(runs: Path, side: Side, title: str) -> Part:
    read = collect(runs, "", list(side.runs))  # of no study: a run is called what this side is called
    if not read.runs:
        reasons = [*(f"{name} has no record" for name in read.missing_runs), *read.problems]
        raise UserError(f"'{side.name}': nothing to compare ({'; '.join(reasons) or 'no runs'}); run it first")
    found = sorted((replace(run, label=title) for run in read.runs), key=lambda run: run.record.seed)
    problems = [*read.problems, *(f"{title}: run {name} has no record." for name in read.missing_runs)]
    collection = replace(read, runs=found, missing_runs=[], problems=problems)
    points = curves_table(collection)
    return Part(side, title, collection, study_rows(collection, results_table(collection), points), points)


def _first_gap(part: Part, run: Run) -> list[str]:
    """What a run waits for; the stages after it are missing for that alone."""
    return gaps(replace(part.collection, runs=[run], seeds=[run.record.seed]))[:1]


def _titles(sides: Sequence[Side]) -> list[str]:
    """Names without the run's key, or without the study's name, wherever they stay different."""
    short = []
    for side in sides:
        is_run = "/" not in side.name
        short.append(side.name.rpartition("-")[0] if is_run else side.name.partition("/")[2])
    counts = Counter(short)
    return [name if counts[name] == 1 else side.name for name, side in zip(short, sides, strict=True)]


def _bounds(interval: Interval) -> list[float] | None:
    return list(interval) if np.isfinite(interval).all() else None
