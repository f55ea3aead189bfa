"""`realm-lab sweep NAME --try`: run every cell with a few steps and questions, and estimate the time of a whole run.

It is a sweep in a separate project, ROOT/runs/try, which links to the files and the prepared corpora of this project.
"""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from realm_lab.engine.core.durations import duration
from realm_lab.engine.params.load import flatten
from realm_lab.engine.systems.registry import options_of, system_of
from realm_lab.lab.launchers import launcher_of
from realm_lab.lab.preview import runs_at_once
from realm_lab.lab.progress import say
from realm_lab.lab.study import StudyPlan
from realm_lab.lab.sweep import Sweep, part_of
from realm_lab.lab.tasks import stages_left
from realm_lab.lab.wanted import settled, wanted
from realm_lab.records.files import write_text
from realm_lab.records.metrics import Part
from realm_lab.records.parameters import CHANGES, OPTIONS
from realm_lab.records.plugins import Choice
from realm_lab.records.run import Run, StageRun, stage_folder
from realm_lab.records.state import StageStates

STEPS = 4
QUESTIONS = 20
SMALL = {  # parameter -> its small value; if cells differ in it, they get this value and the next ones
    "warm_start.reader.steps": STEPS,
    "warm_start.embedder.steps": STEPS,
    "pretrain.steps": STEPS,
    "pretrain.refresh.interval_steps": STEPS // 2,  # so that a refresh is timed
    "finetune.steps": STEPS,
    "evaluate.questions": QUESTIONS,
    "evaluate.cloze_sentences": QUESTIONS,
}
MANY = 10**9
OWN = ("runs", "reports", "mlflow.db", "experiments")  # entries of the project that runs/try does not link to


def try_study(asked: Sweep) -> int:
    """Run a small version of a study and print the time of a whole run of each cell; returns the sweep's exit code.
    UserError: `sweep` would refuse the study too."""
    root, study, results = asked.root, asked.study, asked.results
    now = wanted(study, results)
    runs = [*study.runs, *now] if any(run.trial is not None for run in now) else now
    whole = replace(settled(study, results)[0], runs=tuple(part_of(study, runs, asked.cells, asked.seeds)))
    folder = root / "runs" / "try"
    for path in (folder / "runs" / "stages").glob("*"):
        if not path.is_symlink():
            shutil.rmtree(path)  # each try runs again: the code may have been edited
    _link(root, folder)
    path = folder / "experiments" / f"{whole.name}.yaml"
    write_text(path, json.dumps(_small(whole), indent=2))
    params_path = Path(asked.params_path).resolve() if asked.params_path else None
    given = {key: value for key, value in asked.overrides.items() if key in ("preset", "launch.other_code")}
    say(f"{whole.name} is tried in {folder}: {STEPS} steps, {QUESTIONS} questions, one seed")
    named = Choice.read(asked.launcher or whole.launcher.default).name
    launcher = "inline" if named == "inline" else "local"
    tried = Sweep(path, folder, params_path, launcher, overrides=given, force=True)
    code = tried.run()
    _keep_prepared(root, folder)
    most = launcher_of(whole.name, folder, whole.launcher, launcher).at_once
    for line in _expected(whole, tried.study, root, folder, most):
        print(line)
    return code


def _link(root: Path, folder: Path) -> None:
    """Link the project's files into `folder`, with corpora and their records, so that corpora are prepared once."""
    shared = [root / "runs" / "corpora", *(root / "runs" / "stages").glob("prepare-*")]
    shared[0].mkdir(parents=True, exist_ok=True)
    for path in (*(path for path in root.iterdir() if path.name not in OWN and path.name[0] != "."), *shared):
        link = folder / path.relative_to(root)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(path.resolve())


def _keep_prepared(root: Path, folder: Path) -> None:
    """Move the records of corpora that the try prepared to the project, whose linked folder has the corpora already."""
    for path in (folder / "runs" / "stages").glob("prepare-*"):
        kept = root / path.relative_to(folder)
        if not path.is_symlink() and not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            path.rename(kept)
    _link(root, folder)


def _small(plan: StudyPlan) -> dict[str, Any]:
    """Return the content of the small study's file: each cell with its settings, but few steps and questions."""
    cells = [cell for cell in plan.cells if plan.of(cell.name)]
    flat = {cell.name: _sizes(plan.of(cell.name)[0]) for cell in cells}
    small: dict[str, dict[str, int]] = {cell.name: {} for cell in cells}
    steps = sorted({int(step) for cell in cells for step in cell.overrides.get(CHANGES) or ()})
    for name in dict.fromkeys(name for sizes in flat.values() for name in sizes):
        known = sorted({sizes[name] for sizes in flat.values() if name in sizes})
        for variant, sizes in flat.items():
            if name in sizes:  # cells that differ in it stay different
                longer = len(steps) if name.endswith("steps") and "interval" not in name else 0
                more = known.index(sizes[name]) + longer
                small[variant][name] = min(sizes[name], SMALL.get(name, STEPS) + more)
    common = {key: value for key, value in cells[0].overrides.items() if key.startswith("launch.")}
    entries = {}
    for cell in cells:
        changed = {key: value for key, value in cell.overrides.items() if not key.startswith("launch.")}
        if changes := changed.get(CHANGES):  # at steps 1, 2, ..., since a small run has few
            changed[CHANGES] = {str(steps.index(int(step)) + 1): change for step, change in changes.items()}
        entries[cell.name] = {"title": cell.title, "system": cell.system, "set": changed | small[cell.name]}
    document = {
        "question": plan.design.question,
        "preset": plan.runs[0].params.preset,
        "plugins": plan.runs[0].params.plugins,
        "seeds": [plan.seeds[0]],
        "set": common | {"launch.log_interval_steps": 1},
        "baseline": cells[0].name,
        "cells": entries,
        "metrics": [*plan.design.metrics],
        "delta": plan.design.delta,
    }
    return dict(json.loads(json.dumps(document)))


def _sizes(run: Run) -> dict[str, int]:
    """Return parameter -> value for parameters that decide a run's length; MANY for an empty one, all questions."""
    values = flatten(run.params)
    found = {name: MANY if values[name] is None else values[name] for name in SMALL}
    options = options_of(run.params, run.system)
    of_system = {f"{OPTIONS}.{run.system}.{name}": value for name, value in options if name.endswith("steps")}
    return found | {name: value for name, value in of_system.items() if value}


def _steps_of(stage: str, run: Run) -> list[str]:
    """Return the parameters that decide the number of steps of a stage: those of its section, else options of the
    system that no stage before depends on."""
    sizes = [name for name in _sizes(run) if name.endswith("steps")]
    options = [name for name in sizes if name.startswith(OPTIONS)]
    left = options
    for one in system_of(run.system).stages:
        of_section = [name for name in sizes if name.endswith(".steps") and name not in options and one.declares(name)]
        of_system = [name for name in left if one.declares(f"{OPTIONS}.{name.rpartition('.')[2]}")]
        left = [name for name in left if name not in of_system]
        if one.name == stage:
            return of_section or of_system
    return []


def _expected(whole: StudyPlan, small: StudyPlan, root: Path, folder: Path, most: int | None = None) -> list[str]:
    """Return lines with the time of a whole run of each cell, and of the work that the study has left, without complete
    stages and with shared stages once. `most`: the launcher's limit of runs at a time."""
    seconds: dict[tuple[str, int], dict[str, float]] = {}  # cell, seed -> stage -> seconds of a whole run
    lines, todo = [], dict[tuple[str, str], float]()
    for run in whole.runs:
        small_run = next(other for other in small.runs if other.cell == run.cell)
        found = {stage: _seconds(stage, run, small_run, folder / "runs") for stage in ("prepare", *run.stages)}
        known = {stage: value for stage, value in found.items() if value is not None}
        if len(known) == len(found):
            seconds[run.cell, run.seed] = known
    for run in whole.runs:
        if run.seed == whole.seeds[0] and (known := seconds.get((run.cell, run.seed), {})):
            parts = ", ".join(f"{stage.replace('_', '-')} {duration(value)}" for stage, value in known.items())
            lines.append(f"{run.cell}: a whole run takes about {duration(sum(known.values()))} ({parts})")
    for node, run in stages_left(whole.runs, StageStates(root / "runs")):
        if known := seconds.get((run.cell, run.seed), {}):
            todo[node] = known[node[0]]
    at_once = runs_at_once(len(whole.runs), whole.runs[0].params.launch, most)
    work = sum(todo.values())
    what = f"{whole.name}, {len(whole.runs)} runs: about {duration(work)} of work is left"
    return [*lines, f"{what}, {duration(work / at_once)} at {at_once} at a time on this machine"]


def _seconds(stage: str, run: Run, tried: Run, runs: Path) -> float | None:
    """Estimate the time of a stage of a whole run from the small run; None if the small run has not finished the stage.
    A step and a question are taken to last as long as in the small run. That run refreshes often, so the estimate may
    be too long."""
    found = StageRun(stage_folder(runs, stage, tried.key(stage)), stage)
    if not found.is_complete():
        return None
    wall, rows, sizes, small = found.status().wall_seconds, found.metrics.rows(), _sizes(run), _sizes(tried)
    if stage == "evaluate":
        counts = StageRun(stage_folder(runs, "prepare", tried.corpus_key), "prepare").results()["counts"]
        kept = {"evaluate.questions": counts["questions_test"], "evaluate.cloze_sentences": counts["cloze_test"]}
        asked, read = (max(1, min(sizes[name], most)) / max(1, min(small[name], most)) for name, most in kept.items())
        # retrieval and BM25 read all passages: they do not grow with the questions
        grows: dict[Part, float] = {"own measurements": read, "answers": asked, "corpus update": asked}
        parts = zip(get_args(Part), itertools.pairwise(row["time"] for row in rows), strict=True)
        return float(wall + sum((grows.get(part, 1.0) - 1.0) * (end - start) for part, (start, end) in parts))
    times, names = [row["time"] for row in rows if "loss" in row], _steps_of(stage, run)
    if len(times) < 2:
        return float(wall)
    missing, each = sum(sizes[name] - small[name] for name in names), (times[-1] - times[0]) / (len(times) - 1)
    if stage == "pretrain":  # the stage ends with an evaluation
        ratio = sizes["evaluate.cloze_sentences"] / small["evaluate.cloze_sentences"]
        each += ratio * (rows[-1]["time"] - times[-1]) / run.params.evaluate.interval_steps
    return float(wall + missing * each)
