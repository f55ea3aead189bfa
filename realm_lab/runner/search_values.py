"""What the trials of a search have reached, read from the run folders, and whether one is worth going on with."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from realm_lab.reporting.values import value_of
from realm_lab.runner.search_file import Pruning
from realm_lab.systems.identity import Plan
from realm_lab.tracking.metric_log import read_metrics
from realm_lab.tracking.run_dir import KEY_LENGTH, StageRun

Curve = dict[int, float]  # step -> value
Curves = Mapping[int, Curve]  # seed -> the curve of its run


class Cut(NamedTuple):
    """A trial that is to be given up: at `step` it has `value`, which is below `bound`, a percentile of `others`."""

    step: int
    value: float
    bound: float
    others: int


class CurveReader:
    """Curves of pre-training; a file that has not changed is not read again."""

    def __init__(self, root: Path, metric: str):
        self._stages = Path(root) / "runs" / "stages"
        self._metric = metric
        self._known: dict[Path, tuple[tuple[int, int], Curve]] = {}

    def of(self, plan: Plan) -> Curve:
        """The curve of one run so far; what was not finite is left out."""
        path = self._stages / f"pretrain-{plan.key('pretrain')[:KEY_LENGTH]}" / "metrics.jsonl"
        if not path.exists():
            return {}
        stat = path.stat()
        state = (stat.st_mtime_ns, stat.st_size)
        if path not in self._known or self._known[path][0] != state:
            rows = read_metrics(path)
            self._known[path] = (state, {r["step"]: r[self._metric] for r in rows if r.get(self._metric) is not None})
        return self._known[path][1]


def final_value(root: Path, plan: Plan, last_stage: str, metric: str) -> float | None:
    """The metric of one finished run: its last value in pre-training, or its result; None where it is not finite."""
    names = list(plan.stages)[: list(plan.stages).index(last_stage) + 1]
    folder = Path(root) / "runs" / "stages"
    stages = {name: StageRun(folder / f"{name}-{plan.key(name)[:KEY_LENGTH]}", name) for name in names}
    return value_of(stages, metric)


def cut_of(mine: Curves, others: Sequence[Curves], pruning: Pruning) -> Cut | None:
    """Whether a trial is to be given up: its mean over the seeds that are far enough, each at its last evaluation,
    against the same mean of every other trial that has been there with the same seeds."""
    at = {seed: max(curve) for seed, curve in mine.items() if max(curve, default=0) >= pruning.after_steps}
    if not at:
        return None
    value = statistics.fmean(mine[seed][step] for seed, step in at.items())
    there = [
        statistics.fmean(curves[seed][step] for seed, step in at.items())
        for curves in others
        if all(step in curves.get(seed, {}) for seed, step in at.items())
    ]
    if len(there) < pruning.min_trials:
        return None
    bound = float(np.percentile(there, pruning.percentile))
    return Cut(min(at.values()), value, bound, len(there)) if value < bound else None
