"""What `sweep --dry-run` says: the cells, what differs, what exists already, and what the rest may take."""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from realm_lab.core.files import read_json
from realm_lab.params.load import show
from realm_lab.params.parameters import Params
from realm_lab.runner.design import Cell
from realm_lab.runner.plan import PlannedRun, StudyPlan
from realm_lab.runner.state import Condition, RunState, StageStates
from realm_lab.runner.tasks import Task, tasks_of
from realm_lab.runner.tuning import TunedCell
from realm_lab.tracking.run_dir import KEY_LENGTH, run_record_paths

CONDITIONS: tuple[Condition, ...] = ("COMPLETE", "RUNNING", "PREEMPTED", "LOST", "FAILED", "PENDING")


class Times:
    """What stages took on this project's machines: the median over finished ones of the same kind and preset."""

    def __init__(self, root: Path) -> None:
        self._taken: dict[tuple[str, str], list[tuple[float, int]]] = {}
        runs = Path(root) / "runs"
        seen: set[tuple[str, str]] = set()
        for path in run_record_paths(runs):
            record = read_json(path)
            corpus = f"stages/prepare-{record.get('inputs', {}).get('corpus', '')[:KEY_LENGTH]}"
            for stage, folder in {"prepare": corpus, **record.get("stages", {})}.items():
                place = (str(record.get("preset")), folder)
                if place not in seen:
                    seen.add(place)
                    self._add(str(record.get("preset")), stage, runs / folder / "status.json")

    def _add(self, preset: str, stage: str, path: Path) -> None:
        if path.exists():
            status = read_json(path)
            if status.get("state") == "COMPLETE" and status.get("wall_seconds"):
                taken = (float(status["wall_seconds"]), int(status.get("total_steps") or 0))
                self._taken.setdefault((preset, stage), []).append(taken)

    def stage(self, stage: str, params: Params) -> float | None:
        """Seconds that a stage may take, scaled by its steps; None where none of its kind has finished yet."""
        taken = self._taken.get((params.preset, stage), [])
        steps = _steps(stage, params)
        if steps is None:
            return median(seconds for seconds, _ in taken) if taken else None
        rates = [seconds / count for seconds, count in taken if count]
        return median(rates) * steps if rates else None

    def task(self, task: Task) -> float | None:
        """Seconds that the stages of a task may take together; None where one of them is unknown."""
        return _total([self.stage(stage, task.params) for stage in task.stages])


def plan_as_json(plan: StudyPlan, root: Path) -> list[dict[str, Any]]:
    """What `--dry-run --json` prints: one entry a run with its state and what its cell sets over params.yaml."""
    states = StageStates(root)
    overrides = {cell.name: cell.overrides for cell in plan.all_cells}
    return [
        {
            "study": plan.name,
            "cell": run.cell,
            "seed": run.seed,
            "run_key": run.run_key,
            "state": states.run(run.plan).state,
            "overrides": overrides[run.cell],
        }
        for run in plan.runs
    ]


def show_plan(plan: StudyPlan, root: Path, console: Console) -> None:
    """Print the plan as a table and what it may take."""
    states, times = StageStates(root), Times(root)
    tasks = tasks_of(plan, root, retry_failed=True, states=states)
    table = Table(title=f"{plan.name}: {plan.study.question}", title_justify="left", title_style="bold")
    for name in ("cell", "differs from the baseline in", "seeds", "state of its runs"):
        table.add_column(name, overflow="fold")
    table.add_column("time to go", justify="right")
    spent: set[tuple[str, str]] = set()
    of_cell: dict[str, list[PlannedRun]] = {}
    for run in plan.runs:
        of_cell.setdefault(run.cell, []).append(run)
    tuned = {one.cell.name: one for one in plan.tuned}
    for cell in plan.all_cells:
        runs = of_cell.get(cell.name, [])
        found = [states.run(run.plan) for run in runs]
        counts = Counter(state.state for state in found)
        said = ", ".join(f"{counts[state]} {state.lower()}" for state in CONDITIONS if counts[state])
        seeds = ", ".join(str(run.seed) for run in runs)
        table.add_row(
            f"{cell.name}\n{cell.title}" if cell.title != cell.name else cell.name,
            _differs(plan, cell, tuned.get(cell.name)),
            seeds,
            said,
            time_in_words(_to_go(runs, found, times, spent)),
        )
    console.print(table, markup=False)
    console.print(_summary(plan, tasks, times), markup=False, highlight=False)


def check_budget(plan: StudyPlan, root: Path) -> None:
    """Refuse a plan whose work still to do is estimated above its budget; an unknown estimate passes.

    Raises:
        UserError: it names the budget's line, the estimate and the remedy.
    """
    if plan.study.budget is None:
        return
    times = Times(root)
    known = [times.task(task) for task in tasks_of(plan, root, retry_failed=True)]
    hours = sum(seconds for seconds in known if seconds is not None) / 3600.0
    limit = plan.study.budget.device_hours
    if hours > limit:
        raise plan.study.problem(
            f"budget: what is to do takes about {hours:.1f} device hours, more than {limit:g}; raise "
            "budget.device_hours, or give fewer --seeds",
            "budget",
            "device_hours",
        )


def wall_seconds(tasks: Sequence[Task], times: Times, workers: int) -> float | None:
    """How long so many workers may take, each going on with the first task that can begin; None if unknown."""
    places = {task.name: place for place, task in enumerate(tasks)}
    waits_for = [sum(name in places for name in task.after) for task in tasks]
    followers: dict[str, list[int]] = {}
    for place, task in enumerate(tasks):
        for name in task.after:
            followers.setdefault(name, []).append(place)
    ready = [place for place, count in enumerate(waits_for) if not count]
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < workers:
            place = heapq.heappop(ready)
            seconds = times.task(tasks[place])
            if seconds is None:
                return None
            heapq.heappush(running, (now + seconds, place))
        now, place = heapq.heappop(running)
        for follower in followers.get(tasks[place].name, []):
            waits_for[follower] -= 1
            if not waits_for[follower]:
                heapq.heappush(ready, follower)
    return now


def time_in_words(seconds: float | None) -> str:
    """`unknown`, `-`, `45 s`, `12 min` or `3.5 h`."""
    if seconds is None:
        return "unknown"
    if seconds <= 0:
        return "-"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _to_go(runs: list[PlannedRun], found: list[RunState], times: Times, spent: set[tuple[str, str]]) -> float | None:
    """Seconds of what is left of a cell; a stage that several cells need counts for the first."""
    seconds: list[float | None] = []
    for run, state in zip(runs, found, strict=True):
        if state.state == "COMPLETE":
            continue
        for stage, (condition, _) in state.stages.items():
            node = (stage, run.plan.key(stage))
            if condition != "COMPLETE" and node not in spent:
                spent.add(node)
                seconds.append(times.stage(stage, run.params))
    return _total(seconds)


def _differs(plan: StudyPlan, cell: Cell, tuned: TunedCell | None) -> str:
    if cell.name == plan.baseline.name:
        return "(the baseline)"
    at = [] if tuned is None else [f"grid: {plan.tuned_parameter} = {show(tuned.value)}"]
    system = [] if cell.system == plan.baseline.system else [f"system = {cell.system}"]
    return "\n".join([*at, *system, *(f"{name} = {show(value)}" for name, value in cell.changes.items())])


def _summary(plan: StudyPlan, tasks: list[Task], times: Times) -> str:
    runs, cells = len(plan.runs), f"{len(plan.cells)} cells"
    grid = _grid(plan)
    if plan.tuned:
        cells += f", {sum(len(plan.of(one.cell.name)) for one in plan.tuned)} of them of the grid"
    said = f"{runs} runs of {cells}; {len(tasks)} tasks to do" if tasks else f"{runs} runs, all complete"
    if not tasks:
        return f"{said}{grid}"
    settings = plan.study.launcher.get("local", {}).get("processes")
    workers = settings if isinstance(settings, int) and settings > 0 else os.cpu_count() or 1
    total = _total([times.task(task) for task in tasks])
    if total is None:
        return f"{said}; time unknown: no stage of every kind has finished with this preset yet{grid}"
    together = time_in_words(wall_seconds(tasks, times, workers))
    said += f": about {time_in_words(total)} for one worker, {together} for {workers}"
    if plan.study.budget is not None:
        said += f"; budget {plan.study.budget.device_hours:g} device hours"
    return said + grid


def _grid(plan: StudyPlan) -> str:
    """A line on what is searched for each cell, and for which it is not."""
    tune = plan.study.tune
    if tune is None:
        return ""
    values = ", ".join(map(show, tune.values))
    seeds = ", ".join(map(str, plan.tuned_seeds)) or "none of the chosen ones"
    said = f"\ngrid: {tune.parameter} in {values}, seeds {seeds}; the best by {tune.by} on dev entities"
    left = [cell.name for cell in plan.cells if cell.system == "warm_start"]
    return f"{said}; not pre-trained, so the same at every value: {', '.join(left)}" if left else said


def _steps(stage: str, params: Params) -> int | None:
    """Optimiser steps of a training stage, None for the others."""
    warm = params.warm_start
    steps = {
        "warm_start": warm.reader.steps + warm.embedder.steps,
        "pretrain": params.pretrain.steps,
        "finetune": params.finetune.steps,
    }
    return steps.get(stage)


def _total(seconds: Sequence[float | None]) -> float | None:
    known = [value for value in seconds if value is not None]
    return sum(known) if len(known) == len(seconds) else None
