"""States of a training after some of its steps, as stages: how a stage continues one, and how it ends."""

from __future__ import annotations

import shutil
from pathlib import Path

from realm_lab.core.files import atomic_directory
from realm_lab.errors import UserError
from realm_lab.params.parameters import Params
from realm_lab.systems.forks import AT
from realm_lab.systems.identity import Plan, state_folders, state_roots
from realm_lab.tracking.code_record import CodeStates
from realm_lab.tracking.run_dir import StageRun


def continue_state(params: Params, plan: Plan, run: StageRun) -> None:
    """Copy the state that a stage continues: for a fork the one of its parent, otherwise the latest one of the same
    training, if there is one. A stage with a checkpoint has started. UserError: the parent's state is missing."""
    if any((run.path / "checkpoints").glob("step-*")):
        return
    fork, runs = plan.continues, run.path.parents[1]
    if fork and fork.stage == run.stage:  # a state is of no fork
        found = _usable(params, plan, runs, fork.name)
        if found is None:
            folder = state_folders(runs, plan, fork.name)[fork.name]
            raise UserError(f"{folder}: the state that this run continues is missing, or other code computed it; sweep "
                            "the study again")  # fmt: skip
    else:
        found = _latest(params, plan, run)
    if found is not None:
        run.take_over(found)
        for checkpoint in (found.path / "checkpoints").glob("step-*"):
            with atomic_directory(run.path / "checkpoints" / checkpoint.name) as scratch:
                shutil.copytree(checkpoint, scratch, dirs_exist_ok=True)


def end_state(run: StageRun) -> None:
    """End the stage of a state: only its checkpoint stays."""
    for checkpoint in sorted((run.path / "checkpoints").glob("step-*"))[:-1]:
        shutil.rmtree(checkpoint)
    shutil.rmtree(run.path / "index", ignore_errors=True)
    run.finish({"step": run.until})


def _latest(params: Params, plan: Plan, run: StageRun) -> StageRun | None:
    """Return the latest usable state of the same training before the end of the stage."""
    states = [path.name.rpartition("-")[0] for path in run.path.parent.glob(f"{run.stage}{AT}*-*")]
    steps = sorted({int(state.rpartition(AT)[2]) for state in states}, reverse=True)
    runs = run.path.parents[1]
    before = (step for step in steps if run.until is None or step < run.until)
    found = (_usable(params, plan, runs, f"{run.stage}{AT}{step}") for step in before)
    return next((state for state in found if state), None)


def _usable(params: Params, plan: Plan, runs: Path, state: str) -> StageRun | None:
    """Return the stage of a state if it is complete and the present code computed it."""
    folders = state_folders(runs, plan, state)
    run = StageRun(folders[state], state)
    if not run.is_complete() or not any((run.path / "checkpoints").glob("step-*")):
        return None
    codes = CodeStates(runs).of_run(folders, state_roots(params, plan, state))
    return None if codes[-1].changes else run
