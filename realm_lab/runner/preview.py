"""What `sweep --dry-run` says: the cells, what differs, what exists already, and what the rest may take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from realm_lab.core.launched import cores
from realm_lab.params.load import show
from realm_lab.params.parameters import Params
from realm_lab.runner.cells import Cell
from realm_lab.runner.plan import StudyPlan
from realm_lab.runner.status import in_words
from realm_lab.runner.tasks import Task, state_of_run, tasks_of
from realm_lab.tracking.run_dir import StageRun, read_run_records, stage_folder
from realm_lab.tracking.state import StageStates


class Times:
    """What stages took on this project's machines: the median over finished ones of the same kind and preset."""

    def __init__(self, root: Path) -> None:
        runs = Path(root) / "runs"
        self._taken: dict[tuple[str, str], dict[Path, tuple[float, int]]] = {}  # preset, stage -> seconds and steps
        for record in read_run_records(runs):
            folders = {stage: runs / folder for stage, folder in record.stages.items()}
            folders["prepare"] = stage_folder(runs, "prepare", record.inputs["corpus"])
            for stage, folder in folders.items():
                status = StageRun(folder, stage).status()
                if status.state == "COMPLETE" and status.wall_seconds:
                    taken = self._taken.setdefault((record.preset, stage), {})
                    taken[folder] = (status.wall_seconds, status.total_steps)

    def stage(self, stage: str, params: Params) -> float | None:
        """Seconds that a stage may take, scaled by its steps; None where none of its kind has finished yet."""
        taken = self._taken.get((params.preset, stage), {}).values()
        warm = params.warm_start
        steps = {
            "warm_start": warm.reader.steps + warm.embedder.steps,
            "pretrain": params.pretrain.steps,
            "finetune": params.finetune.steps,
        }.get(stage)
        if steps is None:
            return median(seconds for seconds, _ in taken) if taken else None
        rates = [seconds / count for seconds, count in taken if count]
        return median(rates) * steps if rates else None

    def tasks(self, tasks: Sequence[Task]) -> float | None:
        """Seconds that the stages of these tasks may take together; None where one of them is unknown."""
        known = [self.stage(stage, task.params) for task in tasks for stage in task.stages]
        return sum(seconds for seconds in known if seconds is not None) if None not in known else None


def plan_as_json(plan: StudyPlan, root: Path) -> list[dict[str, Any]]:
    """What `--dry-run --json` prints: one entry a run with its state and what its cell sets over params.yaml."""
    states = StageStates(Path(root) / "runs")
    overrides = {cell.name: cell.overrides for cell in plan.all_cells}
    return [
        {
            "study": plan.name,
            "cell": run.cell,
            "seed": run.seed,
            "run_key": run.run_key,
            "state": state_of_run(run.plan, states).state,
            "overrides": overrides[run.cell],
        }
        for run in plan.runs
    ]


def show_plan(plan: StudyPlan, root: Path, console: Console) -> None:
    states, times = StageStates(Path(root) / "runs"), Times(root)
    tasks = tasks_of(plan.runs, states, retry_failed=True)
    table = Table(title=f"{plan.name}: {plan.question}", title_justify="left", title_style="bold")
    for name in ("cell", "differs from the baseline in", "seeds", "state of its runs"):
        table.add_column(name, overflow="fold")
    table.add_column("time to go", justify="right")
    for cell in plan.all_cells:
        runs = plan.of(cell.name)
        counts = Counter(state_of_run(run.plan, states).state for run in runs)
        table.add_row(
            f"{cell.name}\n{cell.title}" if cell.title != cell.name else cell.name,
            _differs(plan, cell),
            ", ".join(str(run.seed) for run in runs),
            in_words(counts),
            time_in_words(times.tasks([task for task in tasks if task.cells[0] == cell.name])),  # shared: of the first
        )
    console.print(table, markup=False)
    console.print(_summary(plan, tasks, times), markup=False, highlight=False)


def time_in_words(seconds: float | None) -> str:
    """`unknown`, `-`, `45 s`, `12 min` or `3.5 h`."""
    if seconds is None:
        return "unknown"
    if seconds <= 0:
        return "-"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _differs(plan: StudyPlan, cell: Cell) -> str:
    if cell.name == plan.baseline.name:
        return "(the baseline)"
    tuned = next((one for one in plan.grid.cells if one.cell.name == cell.name), None) if plan.grid else None
    at = [f"grid: {plan.grid.tune.parameter} = {show(tuned.value)}"] if plan.grid and tuned else []
    system = [] if cell.system == plan.baseline.system else [f"system = {cell.system}"]
    return "\n".join([*at, *system, *(f"{name} = {show(value)}" for name, value in cell.changes.items())])


def _summary(plan: StudyPlan, tasks: list[Task], times: Times) -> str:
    cells, grid = f"{len(plan.cells)} cells", ""
    if plan.grid:
        tune = plan.grid.tune
        cells += f", {sum(len(plan.of(one.cell.name)) for one in plan.grid.cells)} of them of the grid"
        seeds = ", ".join(map(str, plan.grid.seeds)) or "none of the chosen ones"
        grid = f"\ngrid: {tune.parameter} in {', '.join(map(show, tune.values))}, seeds {seeds}; the best by {tune.by}"
    if not tasks:
        return f"{len(plan.runs)} runs, all complete{grid}"
    counts = f"{len(plan.runs)} runs of {cells}; {len(tasks)} tasks to do"
    seconds = times.tasks(tasks)
    if seconds is None:
        return f"{counts}; time unknown: no stage of every kind has finished with this preset yet{grid}"
    workers = min(plan.launcher.get("local", {}).get("processes") or cores(), len(tasks))
    return f"{counts}: about {time_in_words(seconds)}, {time_in_words(seconds / workers)} shared by {workers}{grid}"
