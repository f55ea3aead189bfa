"""Trials as what the rest of the project knows: tasks for a launcher, and cells of a study."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from realm_lab.params.load import flatten
from realm_lab.params.parameters import Params
from realm_lab.runner.design import changes_title
from realm_lab.runner.search_file import SearchPlan
from realm_lab.runner.state import StageStates
from realm_lab.runner.tasks import Task
from realm_lab.systems.identity import Plan, record_run
from realm_lab.tracking.run_dir import KEY_LENGTH
from realm_lab.tracking.study_record import StudyCell, StudyRecord, StudyRun, write_study_record

if TYPE_CHECKING:
    from realm_lab.runner.search_journal import Trial

SHARED = ("prepare", "warm_start")  # trials share them more often than not: a task of their own, done once


def tasks_of_trial(cell: str, params: Params, runs: Sequence[Plan], last_stage: str, states: StageStates) -> list[Task]:
    """What of a trial is not complete yet, each task after the one that it needs.

    Tasks have the same names for all trials that share them, whoever comes first.
    """
    tasks: dict[str, Task] = {}
    for run in runs:
        names = ["prepare", *run.stages]
        names = names[: names.index(last_stage) + 1]
        if states.stage(run, last_stage).state == "COMPLETE":
            continue
        todo = [name for name in names if states.stage(run, name).state != "COMPLETE"]
        parts = [[name] for name in todo if name in SHARED] + [[name for name in todo if name not in SHARED]]
        before: tuple[str, ...] = ()
        for stages in parts:
            keys = {stage: run.key(stage) for stage in stages}
            name = f"{stages[-1]}-{keys[stages[-1]][:KEY_LENGTH]}"
            tasks.setdefault(name, Task(name, tuple(stages), run.system, run.seed, params, keys, before, (cell,)))
            before = (name,)
    return list(tasks.values())


def record_search(plan: SearchPlan, trials: Sequence[tuple[Trial, Params, list[Plan]]], root: Path) -> StudyRecord:
    """Write run.json of every trial's runs and the study's study.json: a cell for each trial, the baseline first."""
    base = flatten(plan.base)
    found = sorted(trials, key=lambda entry: (entry[0].values != plan.baseline, entry[0].number))
    cells, members = [], []
    for trial, params, runs in found:
        changes = {key: value for key, value in flatten(params).items() if value != base[key]}
        title = changes_title(changes) if changes else "parameters as they are"
        cells.append(StudyCell(trial.cell, title, "realm", json.loads(json.dumps(changes))))
        for run in runs:
            name = folder_of(run)
            if not (Path(root) / "runs" / name / "run.json").exists():
                record_run(Path(root) / "runs", run, params)
            members.append(StudyRun(trial.cell, run.seed, run.run_key, name))
    record = StudyRecord(
        name=plan.name,
        question=plan.search.question,
        baseline=cells[0].name,
        cells=tuple(cells),
        seeds=tuple(plan.search.seeds),
        runs=tuple(members),
        metrics=(plan.search.metric,),
        last_stage="" if plan.last_stage == "evaluate" else plan.last_stage,
        source=_relative(plan.search.path, Path(root)),
    )
    write_study_record(Path(root) / "runs", record)
    return record


def folder_of(run: Plan) -> str:
    """Of a run, under runs/."""
    return f"{run.system}-s{run.seed}-{run.run_key[:KEY_LENGTH]}"


def _relative(path: Path, root: Path) -> str:
    try:
        return path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return path.as_posix()
