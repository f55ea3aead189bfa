"""`tune` in a study: the trials of each cell, and the choice among them.

The trials are a function of the study's file and of complete runs, so nothing is stored between two looks: a stopped
sweep continues with the same trials and makes the same choice. Trials are ordinary runs with ordinary keys.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from realm_lab.errors import UserError
from realm_lab.params.parameters import Params
from realm_lab.records.run import StageRun, stage_folder
from realm_lab.records.run_values import run_values
from realm_lab.records.state import StageStates
from realm_lab.runner.space import Dimension, Tuning, check_dimension, grid, hypercube, last_stage_for
from realm_lab.systems.identity import Plan, check_measured

OPERATIONS = "training_teraflop"
MOST_HYPERCUBES = 50

TrialState = Literal["pending", "failed", "complete"]

Make = Callable[[Mapping[str, Any]], tuple[Params, list[Plan]]]
"""Values of the space -> the parameters of a trial, and its run for each seed. UserError: no valid combination."""


@dataclass(frozen=True)
class Trial:
    """One trial of a cell: a run for every seed of the tuning. `by_seed`: their values of the metric, None without
    one."""

    values: dict[str, Any]
    params: Params
    plans: tuple[Plan, ...]
    state: TrialState
    by_seed: tuple[float | None, ...]
    teraflop: float | None  # a run's operations of training, mean over the seeds

    @property
    def value(self) -> float | None:
        known = [value for value in self.by_seed if value is not None]
        return statistics.fmean(known) if self.state == "complete" else None


@dataclass(frozen=True)
class CellTrials:
    """All trials of a cell that are known so far, the first with its parameters as they are."""

    cell: str
    system: str
    space: Mapping[str, Dimension]
    trials: tuple[Trial, ...]

    @property
    def best(self) -> int | None:
        """The number of the best complete trial, of equal ones the first."""
        known = {number: trial.value for number, trial in enumerate(self.trials) if trial.value is not None}
        return max(known, key=lambda number: (known[number], -number), default=None)

    def as_data(self, is_done: bool) -> dict[str, Any]:
        best = self.best if is_done else None
        chosen = {} if best is None else self.trials[best].values
        trials = [
            {
                "values": trial.values,
                "state": trial.state,
                "by_seed": [*trial.by_seed],
                OPERATIONS: trial.teraflop,
                "runs": [plan.run_name for plan in trial.plans],
            }
            for trial in self.trials
        ]
        space = {name: dimension.model_dump(exclude_defaults=True) for name, dimension in self.space.items()}
        at_edge = [name for name, value in chosen.items() if self.space[name].is_edge(value)]
        return {"space": space, "trials": trials, "chosen": best, "at_edge": at_edge}


@dataclass(frozen=True)
class Tuned:
    """The tuning of a study as far as it is."""

    tuning: Tuning
    cells: tuple[CellTrials, ...]

    @property
    def last_stage(self) -> str:
        return last_stage_for(self.tuning.metric)

    @property
    def is_done(self) -> bool:
        """True if every cell has all of its trials, and one of them is complete."""
        return not self.left and all(cell.best is not None for cell in self.cells)

    @property
    def left(self) -> int:
        """The number of trials that have not ended."""
        ended = sum(trial.state != "pending" for cell in self.cells for trial in cell.trials)
        return len(self.cells) * self.tuning.trials - ended

    def choice(self, cell: str) -> dict[str, Any]:
        """Return the values that were chosen for a cell; empty before all cells have been tuned."""
        found = next(one for one in self.cells if one.cell == cell)
        return found.trials[found.best].values if self.is_done and found.best is not None else {}

    def as_data(self) -> dict[str, Any]:
        """Return it as study.json has it."""
        tuning = self.tuning.model_dump(mode="json", exclude={"space"})
        cells = {cell.cell: cell.as_data(self.is_done) for cell in self.cells}
        return dict(json.loads(json.dumps(tuning | {"last_stage": self.last_stage, "cells": cells})))


def tune_cell(
    tuning: Tuning,
    cell: str,
    system: str,
    space: Mapping[str, Dimension],
    own: Mapping[str, Any],
    make: Make,
    runs: Path,
) -> CellTrials:
    """Return the trials of a cell: those that have ended, and those that follow from them. `own`: the cell's values of
    the parameters in the space. UserError: the space does not fit the cell, or does not have enough trials."""
    last = last_stage_for(tuning.metric)
    plans = make(own)[1]
    if last not in plans[0].stages:
        raise UserError(f"metric: the system '{system}' has no stage '{last}', where '{tuning.metric}' is measured")
    for name, dimension in space.items():
        check_dimension(name, dimension, own[name], lambda values: make({**own, **values})[1][0].key(last), last)
    states, found, keys = StageStates(runs), list[Trial](), set[str]()
    for values in _proposals(tuning, space, own, found):
        try:
            params, plans = make(values)
        except UserError:
            if tuning.sampler == "grid":
                raise
            continue  # the next draw
        if plans[0].key(last) in keys:
            continue
        keys.add(plans[0].key(last))
        found.append(_trial(tuning.metric, values, params, plans, last, states, runs))
        if len(found) == tuning.trials:
            break
    return CellTrials(cell, system, space, tuple(found))


def _proposals(
    tuning: Tuning, space: Mapping[str, Dimension], own: Mapping[str, Any], found: list[Trial]
) -> Iterator[dict[str, Any]]:
    """Yield values of trials; the caller adds those that suit to `found`. It ends where the next trial depends on
    results that are not there yet. UserError: there are not enough."""
    first = {name: own[name] for name in space}
    if tuning.sampler == "grid":
        points = grid(space)
        if len(points) != tuning.trials:
            raise UserError(
                f"its grid has {len(points)} combinations and tune.trials is {tuning.trials}, which every cell must "
                "have; change its choices or the trials"
            )
        yield first
        yield from (point for point in points if point != first)
    elif tuning.sampler == "latin":
        yield first
        for draw in range(MOST_HYPERCUBES):  # the first one, unless trials of it are equal or not valid
            yield from hypercube(space, own, tuning.trials - 1, draw)
    else:
        from realm_lab.runner.trials import MOST_DRAWS, RANDOM_TRIALS, draws  # brings optuna

        yield first
        while True:
            number, ended = len(found), list[tuple[dict[str, Any], float | None]]()
            if tuning.sampler == "tpe" and number >= RANDOM_TRIALS:
                if any(trial.state == "pending" for trial in found):
                    return
                ended = [(trial.values, trial.value) for trial in found]
            for values in draws(tuning.sampler, space, own, ended, number):
                yield values
                if len(found) > number:
                    break
            else:
                raise UserError(
                    f"no trial {number + 1} that differs from those before in {MOST_DRAWS} draws; widen its space, or "
                    "lower tune.trials"
                )
    if len(found) < tuning.trials:
        raise UserError(f"only {len(found)} combinations of its space differ up to the last stage of a trial")


def _trial(
    metric: str,
    values: Mapping[str, Any],
    params: Params,
    plans: list[Plan],
    last: str,
    states: StageStates,
    runs: Path,
) -> Trial:
    """Return a trial in its present state."""
    results: list[dict[str, float]] = []
    ended = []
    for plan in plans:
        names = list(plan.stages)
        stages = {name: plan.stages[name] for name in names[: names.index(last) + 1]}
        state = states.run(stages, plan.corpus_key).state
        ended.append(state in ("COMPLETE", "FAILED"))
        if state == "COMPLETE":
            check_measured(runs, plan, last, params)
        folders = {name: StageRun(stage_folder(runs, name, plan.key(name)), name) for name in stages}
        results.append(run_values(folders) if state == "COMPLETE" else {})
    by_seed = tuple(one.get(metric) for one in results)
    work = [one[OPERATIONS] for one in results if OPERATIONS in one]
    outcome: TrialState = "pending" if not all(ended) else "failed" if None in by_seed else "complete"
    mean = statistics.fmean(work) if len(work) == len(plans) else None
    return Trial(dict(values), params, tuple(plans), outcome, by_seed, mean)
