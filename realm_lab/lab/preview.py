"""Output of `--dry-run`: the cells or the space, the states of runs, and the time of unfinished runs."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from realm_lab.engine.core.durations import duration
from realm_lab.engine.params.parameters import Launch
from realm_lab.engine.params.sections import Refresh
from realm_lab.lab.launchers import Launcher, share_out
from realm_lab.lab.other_code import described, other_code
from realm_lab.lab.rules.tune import Tuned
from realm_lab.lab.status import in_words, print_table
from realm_lab.lab.study import StudyPlan, changes_title
from realm_lab.lab.tasks import stages_left, tasks_of
from realm_lab.records.files import print_json, read_json
from realm_lab.records.launched import cores, visible_gpus
from realm_lab.records.parameters import show
from realm_lab.records.run import Run
from realm_lab.records.state import StageStates
from realm_lab.records.study import StudyCell, study_folder

POLICY = "pretrain.refresh.policy"
REFRESH = [f"pretrain.refresh.{name}" for name in Refresh.model_fields]


def plan_as_json(plan: StudyPlan, runs: Sequence[Run], root: Path) -> list[dict[str, Any]]:
    """Output of `--dry-run --json`: one entry per run with its state and the parameters that its cell or trial sets."""
    states = StageStates(Path(root) / "runs")
    overrides = {cell.name: cell.overrides for cell in plan.cells}
    return [
        {
            "study": plan.name,
            "cell": run.cell,
            "seed": run.seed,
            "run_key": run.run_key,
            "state": states.look(run).state,
            "overrides": overrides[run.cell] | run.chosen,
        }
        | ({} if run.trial is None else {"trial": run.trial})
        for run in runs
    ]


def show_plan(
    plan: StudyPlan, runs: Sequence[Run], root: Path, until: str = "", launcher: Launcher | None = None
) -> None:
    """Print a row for each cell or trial of the `runs`, and the number of tasks to do. With a stage `until`, only tasks
    up to it count, and each is printed. Then print how `launcher` would start them. UserError: they cannot start."""
    states = StageStates(Path(root) / "runs")
    rows = []
    for cell in plan.cells:
        of_cell = [run for run in runs if run.cell == cell.name]  # none if the cell lacks the command's stage
        for trial in dict.fromkeys(run.trial for run in of_cell):
            of_trial = [run for run in of_cell if run.trial == trial]
            counts = Counter(states.look(run).state for run in of_trial)
            says_more = re.sub(r"[\s_]", "", cell.title) != re.sub(r"[\s_]", "", cell.name)
            name = f"{cell.name}\n{cell.title}" if says_more and trial is None else of_trial[0].label
            differs = _differs(plan, cell) if trial is None else changes_title(of_trial[0].chosen)
            rows.append((name, differs, ", ".join(str(run.seed) for run in of_trial), in_words(counts)))
    tasks = tasks_of(runs, states, retry_failed=True, until=until)
    how = launcher.preview(tasks) if launcher else ()
    columns = ("variant", "differs from the baseline in", "seeds", "state of its runs")
    print_table(f"{plan.name}: {plan.design.question}", columns, rows)
    print(f"{len(runs)} runs of {len(plan.cells)} variants; {len(tasks) or 'no'} tasks to do")
    for task in tasks if until else ():
        print(f"to do: {task.title}")
    if plan.design.common:
        print(in_every_cell(plan))
    if found := other_code(runs, root, until):
        print(described(found))
    if expected := expected_time(plan, runs, root, launcher.at_once if launcher else None):
        print(expected)
    for line in how:
        print(line)


def show_search(plan: StudyPlan, root: Path, *, as_json: bool) -> None:
    """Print the output of `sweep --dry-run` for a search: the space, the number of trials, and the states of trials."""
    assert plan.search is not None
    search, path = plan.search, study_folder(Path(root) / "runs", plan.name) / "trials.json"
    states = Counter(trial["state"] for trial in read_json(path)["trials"]) if path.exists() else {}
    start = plan.spaces[0].start
    found = search.as_data(start)
    if as_json:
        print_json(found | {"trials": search.trials, "parallel": search.parallel, "states": states})
        return
    rows = [(name, show(start[name]), show(space)) for name, space in found["space"].items()]
    print_table(f"{plan.name}: {search.question}", ("parameter", "as it is, the first trial", "where trials are"), rows)
    there = ", ".join(f"{count} {state}" for state, count in states.items()) or "none"
    how = f"{search.trials} trials for {search.metric}, at most {search.parallel} at a time"
    print(f"{how}, each with seeds {show(search.seeds)}; there are: {there}")


def expected_time(plan: StudyPlan, runs: Sequence[Run], root: Path, most: int | None = None) -> str:
    """Estimate the time of unfinished stages from reference runs of the same cells, for a machine as fast as the one of
    these runs; "" if no run is left, or none has a reference. A stage that several runs share counts once."""
    hours, states = reference_hours(plan, root), StageStates(Path(root) / "runs")
    todo: dict[tuple[str, str], float] = {}
    alone: dict[str, float] = {}  # run key -> device hours that it has left
    unknown: set[str] = set()
    for node, run in stages_left(runs, states):
        if run.cell not in hours:
            unknown.add(run.run_key)
        elif node[0] != "prepare":  # preparing needs no device
            value = hours[run.cell][node[0]]
            todo[node] = max(todo.get(node, 0.0), value)
            alone[run.run_key] = alone.get(run.run_key, 0.0) + value
    if not todo:
        return ""
    at_once = runs_at_once(len(alone), plan.runs[0].params.launch, most)
    work = sum(todo.values())
    time = f"{duration(max(work / at_once, *alone.values()) * 3600)}, {at_once} at a time"
    others = f"; {len(unknown)} more runs have no reference" if unknown else ""
    return f"about {time} ({work:.2f} device hours for {len(alone)} runs, as in reports/reference{others})"


def runs_at_once(runs: int, launch: Launch, most: int | None) -> int:
    """Return how many of `runs` a launcher runs at a time. `most`: the launcher's limit, if it has one."""
    return share_out(runs, launch.ranks, cores(), len(visible_gpus(launch.device)), most or launch.processes)[0]


def reference_hours(plan: StudyPlan, root: Path) -> dict[str, dict[str, float]]:
    """Return cell -> stage -> device hours of a run: the mean of the runs with the same keys in the reference reports,
    else of the cell with this name in the reference report of the study."""
    rows: list[dict[str, str]] = []
    minutes: dict[tuple[str, str], dict[str, float]] = {}  # (study, cell) -> stage -> minutes
    for path in (Path(root) / "reports" / "reference").glob("*/results.csv"):
        with open(path, newline="", encoding="utf-8") as file:
            rows += [row for row in csv.DictReader(file) if row["device_hours"]]
        if (summary := path.with_name("summary.json")).exists():
            cost = read_json(summary).get("cost", {})
            minutes |= {(path.parent.name, cell): of_cell["minutes"] for cell, of_cell in cost.items()}
    found = {}
    for cell in plan.cells:
        runs = plan.of(cell.name)
        keys = {run.run_key for run in runs}
        same = [row for row in rows if row["run_key"] in keys]
        if not same and plan.design.source:
            same = [row for row in rows if (row["study"], row["cell"]) == (plan.name, cell.name)]
        if same and runs:
            mean = sum(float(row["device_hours"]) for row in same) / len(same)
            found[cell.name] = in_stages(mean, runs[0], minutes.get((same[0]["study"], same[0]["cell"]), {}))
    return found


def in_stages(hours: float, run: Run, minutes: Mapping[str, float]) -> dict[str, float]:
    """Divide the hours of a run over its stages in proportion to `minutes`, or equally if these are not known."""
    known = {stage: minutes.get(stage, 0.0) for stage in run.stages}
    whole = sum(known.values())
    return {stage: hours * (value / whole if whole else 1 / len(known)) for stage, value in known.items()}


def after_tuning(plan: StudyPlan, trials: Tuned, root: Path, at_once: int | None) -> str:
    """Describe the work of a study whose cells are being tuned: trials that are left, and its own runs after them."""
    seeds = len(trials.tuning.seeds)
    line = f"{trials.left} trials are left, each of {seeds} runs; then {len(plan.runs)} runs of the study itself"
    expected = expected_time(plan, [*plan.runs, *trials.runs], root, at_once)
    return f"{line}\nall of them: {expected}" if expected else f"{line}; `--try` estimates the time of all of them"


def in_every_cell(plan: StudyPlan) -> str:
    """Describe the changes that params.yaml and --set make to the preset in every cell; warn if cells vary these."""
    changed = ", ".join(f"{name} = {show(value)}" for name, value in plan.design.common.items())
    varied = sorted({name for cell in plan.cells for name in cell.changes} & set(plan.design.common))
    warning = (
        f"\nWARNING: variants of this study vary {', '.join(varied)}: its baseline has the changed value"
        if varied
        else ""
    )
    return f"params.yaml or --set changes the preset in every variant: {changed}{warning}"


def _differs(plan: StudyPlan, cell: StudyCell) -> str:
    if cell.name == plan.baseline.name:
        return "(the baseline)"
    system = [] if cell.system == plan.baseline.system else [f"system = {cell.system}"]
    changes = dict(cell.changes)
    if changes.get(POLICY) == "never":  # no other setting of pretrain.refresh has an effect then
        changes = {name: value for name, value in changes.items() if name == POLICY or name not in REFRESH}
    return "\n".join([*system, *(f"{name} = {show(value)}" for name, value in changes.items())])
