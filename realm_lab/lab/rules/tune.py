"""`tune` in a study: trials of each cell, and the choice among them, before the study's own runs.

The trials are a function of the study and of complete runs, so nothing is stored between two looks: a stopped sweep
continues with the same trials and makes the same choice. Trials are ordinary runs with ordinary keys.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from realm_lab.errors import UserError
from realm_lab.lab.results import Results
from realm_lab.lab.rules.space import Dimension, Tuning, hypercube, last_stage_for
from realm_lab.lab.study import CellSpace, StudyPlan
from realm_lab.records.run import Run

OPERATIONS = "training_teraflop"
MOST_HYPERCUBES = 50

Trial = dict[str, Any]
"""A trial as in study.json, but `runs` has its runs, one for every seed of the tuning, instead of their names. `state`
is pending, failed or complete; `by_seed` has the values of the metric, None for a missing one."""


@dataclass(frozen=True)
class Tuned:
    """The trials of every cell; the first trial of a cell has its parameters as they are."""

    tuning: Tuning
    trials: dict[str, list[Trial]]
    spaces: dict[str, Mapping[str, Dimension]]

    @property
    def left(self) -> int:
        """The number of trials that have not ended."""
        ended = [trial for trials in self.trials.values() for trial in trials if trial["state"] != "pending"]
        return len(self.trials) * self.tuning.trials - len(ended)

    @property
    def best(self) -> dict[str, int | None]:
        """Cell -> the number of its best complete trial (the first of equal ones); all None until all trials ended."""
        found = {}
        for cell, trials in self.trials.items():
            complete = ((number, trial) for number, trial in enumerate(trials) if trial["state"] == "complete")
            known = {number: statistics.fmean(trial["by_seed"]) for number, trial in complete}
            found[cell] = max(known, key=lambda number: (known[number], -number), default=None)
        return dict.fromkeys(found) if self.left else found

    @property
    def choices(self) -> dict[str, dict[str, Any]]:
        """Cell -> the values that were chosen for it; empty before every cell has a choice."""
        best = {cell: number for cell, number in self.best.items() if number is not None}
        if len(best) < len(self.trials):
            return {}
        return {cell: self.trials[cell][number]["values"] for cell, number in best.items()}

    @property
    def runs(self) -> list[Run]:
        """The runs of all trials, equal runs once."""
        found = dict[str, Run]()
        for run in (run for trials in self.trials.values() for trial in trials for run in trial["runs"]):
            found.setdefault(run.run_key, run)
        return [*found.values()]

    def as_data(self) -> dict[str, Any]:
        """Return the tuning as study.json has it."""
        choices, best, cells = self.choices, self.best, dict[str, Any]()
        for cell, dimensions in self.spaces.items():
            chosen = choices.get(cell, {})
            cells[cell] = {
                "space": {name: dimension.model_dump(exclude_defaults=True) for name, dimension in dimensions.items()},
                "trials": [trial | {"runs": [run.name for run in trial["runs"]]} for trial in self.trials[cell]],
                "chosen": best[cell] if choices else None,
                "at_edge": [name for name, value in chosen.items() if dimensions[name].is_edge(value)],
            }
        tuning = self.tuning.model_dump(mode="json", exclude={"space"})
        last = last_stage_for(self.tuning.metric)
        return dict(json.loads(json.dumps(tuning | {"last_stage": last, "cells": cells})))


def tuned(study: StudyPlan, results: Results) -> Tuned:
    """Return all trials of a study's tuning, each with its state and values by the results so far."""
    tuning = study.tuning
    assert tuning is not None

    def trial(values: dict[str, Any], runs: list[Run]) -> Trial:
        found = [results.outcome(run) for run in runs]
        by_seed = [None if one is None else one.get(tuning.metric) for one in found]
        work = [one[OPERATIONS] for one in found if one and OPERATIONS in one]
        state = "pending" if None in found else "failed" if None in by_seed else "complete"
        mean = statistics.fmean(work) if len(work) == len(runs) else None  # mean operations of training
        return {"values": values, "state": state, "by_seed": by_seed, OPERATIONS: mean, "runs": runs}

    trials = {cell.cell: trials_of_cell(cell, tuning, trial) for cell in study.spaces}
    return Tuned(tuning, trials, {cell.cell: cell.space for cell in study.spaces})


def trials_of_cell(cell: CellSpace, tuning: Tuning, look: Callable[[dict[str, Any], list[Run]], Trial]) -> list[Trial]:
    """Return all trials of a cell, each made by `look` from its values and runs. UserError: the space has too few
    different trials."""
    found, keys = list[Trial](), set[str]()
    for values in _proposals(cell, tuning, found):
        try:
            runs = cell.make(values)
        except UserError:
            if tuning.sampler == "grid":
                raise
            continue  # no valid combination: the next draw
        key = cell.key(values)
        if key in keys:
            continue
        keys.add(key)
        numbered = [replace(run, chosen=dict(values), trial=len(found)) for run in runs]
        found.append(look(dict(values), numbered))
        if len(found) == tuning.trials:
            break
    return found


def _proposals(cell: CellSpace, tuning: Tuning, found: Sequence[Trial]) -> Iterator[dict[str, Any]]:
    """Yield values of trials. The caller adds those that are valid and new to `found`. UserError: these are too few."""
    space, start = cell.space, cell.start
    first = {name: start[name] for name in space}
    yield first
    if tuning.sampler == "grid":
        for name, dimension in space.items():
            if dimension.choices is None:
                raise cell.error(f"'{name}' is a range; list its values as 'choices' for a grid", name)
        values = [dimension.ends for dimension in space.values()]
        points = [dict(zip(space, chosen, strict=True)) for chosen in itertools.product(*values)]
        if len(points) != tuning.trials:
            raise cell.error(
                f"its grid has {len(points)} combinations and tune.trials is {tuning.trials}, which every variant must "
                "have; change its choices or the trials"
            )
        yield from (point for point in points if point != first)
    else:
        for draw in range(MOST_HYPERCUBES):  # more than one draw only if trials are equal or invalid
            yield from hypercube(space, start, tuning.trials - 1, draw)
    if len(found) < tuning.trials:
        raise cell.error(f"only {len(found)} combinations of its space differ up to the last stage of a trial")
