"""From a study's file to its runs: every cell at every seed with its resolved parameters and keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from realm_lab.errors import UserError
from realm_lab.params.load import Source, explain, flatten, lay_over, parameter_names, read_source, show
from realm_lab.params.parameters import Params
from realm_lab.runner.design import Cell, cells_of, changes_title
from realm_lab.runner.state import Condition, RunState, StageState, StageStates, run_state, run_states
from realm_lab.runner.study import Study, load_study, nearest
from realm_lab.runner.tuning import TunedCell, check_tune, own_value, tuned_cells
from realm_lab.systems.identity import Plan, plan_run, record_run
from realm_lab.tracking.study_record import (
    StudyCell,
    StudyRecord,
    StudyRun,
    StudyTuning,
    TunedStudyCell,
    write_study_record,
)

__all__ = [
    "Condition",
    "PlannedRun",
    "RunState",
    "StageState",
    "StageStates",
    "StudyPlan",
    "plan_study",
    "record_study",
    "run_state",
    "run_states",
]


@dataclass(frozen=True)
class PlannedRun:
    """One cell at one seed. `changes`: how its parameters differ from the baseline's, at the same value if tuned."""

    study: str
    cell: str
    seed: int
    params: Params
    plan: Plan
    changes: dict[str, Any]

    @property
    def run_key(self) -> str:
        """The run's key in full."""
        return self.plan.run_key

    @property
    def name(self) -> str:
        """Its folder under runs/."""
        return self.plan.run_name


@dataclass(frozen=True)
class StudyPlan:
    """A study with its cells, the baseline first, and its runs, cell by cell; those of the grid come last."""

    study: Study
    name: str
    path: Path
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    runs: tuple[PlannedRun, ...]
    tuned: tuple[TunedCell, ...] = ()
    tuned_seeds: tuple[int, ...] = ()
    own_value: Any = None  # of the tuned parameter, all else equal

    @property
    def tuned_parameter(self) -> str:
        """What the grid is of; "" without one."""
        return self.study.tune.parameter if self.study.tune else ""

    @property
    def all_cells(self) -> tuple[Cell, ...]:
        """The cells, then those of the grid."""
        return (*self.cells, *(tuned.cell for tuned in self.tuned))

    @property
    def baseline(self) -> Cell:
        """The cell that the others are compared with."""
        return self.cells[0]

    def of(self, cell: str) -> list[PlannedRun]:
        """The runs of a cell, by seed."""
        return [run for run in self.runs if run.cell == cell]


def plan_study(
    path: Path,
    root: Path,
    *,
    params_path: Path | None = None,
    seeds: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> StudyPlan:
    """Plan a study; nothing is written.

    Args:
        path: the study's file.
        root: the project's folder.
        params_path: the parameters that cells change; params.yaml of the project unless given.
        seeds: only the first so many of the study's; 0, 1, ... where the study has fewer.
        overrides: of the command line, dotted name -> value, for every cell, over what the study sets.

    Raises:
        UserError: the study or a cell's parameters are wrong, or two cells are the same run.
    """
    study = load_study(path)
    preset = {} if study.preset is None else {"preset": study.preset}
    source = read_source(params_path or Path(root) / "params.yaml", preset)
    common = dict(overrides or {})
    cells = cells_of(study)
    tune = check_tune(study, cells)
    _check_common(study, cells, common)
    cells = [cell._replace(overrides={**cell.overrides, **common}) for cell in cells]
    resolved = [_resolve(study, cell, source) for cell in cells]
    flat = [flatten(params) for params in resolved]
    chosen = _seeds(study, seeds)
    kept: list[Cell] = []
    runs: list[PlannedRun] = []
    seen: dict[str, int] = {}
    for place, (cell, params) in enumerate(zip(cells, resolved, strict=True)):
        changes = {key: value for key, value in flat[place].items() if value != flat[0][key]}
        if place and cell.from_axes and not changes and cell.system == cells[0].system:
            continue  # a point that the baseline has already
        kept.append(cell._replace(changes=changes, title=cell.title or changes_title(changes)))
        for seed in chosen:
            plan = plan_run(params, cell.system, seed)
            other = seen.setdefault(plan.run_key, place)
            if other != place:
                raise _overlap(study, cells[other], cell, flat[other], flat[place])
            runs.append(PlannedRun(study.name, cell.name, seed, params, plan, changes))
    if tune is None:
        return StudyPlan(study, study.name, Path(path), tuple(kept), chosen, tuple(runs))
    own = own_value(study, tune, flat[0][tune.parameter])
    tuned = tuned_cells(study, tune, own, kept)
    tuned_seeds = tuple(seed for seed in tune.seeds if seed in chosen)
    keys = {run.run_key: run.cell for run in runs}
    for cell, _, value in tuned:
        params = _resolve(study, cell, source)
        for seed in tuned_seeds:
            plan = plan_run(params, cell.system, seed)
            if plan.run_key in keys:
                message = f"cells '{keys[plan.run_key]}' and '{cell.name}' are the same run; leave {show(value)} out"
                raise study.problem(f"tune.values: {message}", *cell.places[tune.parameter])
            keys[plan.run_key] = cell.name
            runs.append(PlannedRun(study.name, cell.name, seed, params, plan, cell.changes))
    return StudyPlan(study, study.name, Path(path), tuple(kept), chosen, tuple(runs), tuple(tuned), tuned_seeds, own)


def record_study(plan: StudyPlan, root: Path) -> StudyRecord:
    """Write run.json of every run and the study's study.json."""
    runs = Path(root) / "runs"
    members: list[StudyRun] = []
    of_grid: list[StudyRun] = []
    tuned = {tuned.cell.name for tuned in plan.tuned}
    for run in plan.runs:
        record_run(runs, run.plan, run.params)
        which = of_grid if run.cell in tuned else members
        which.append(StudyRun(run.cell, run.seed, run.run_key, run.name))
    axes = {}
    if plan.study.mode == "product":
        axes = {
            axis: tuple(str(name) if isinstance(name, str) else show(name) for name in points)
            for axis, points in plan.study.axes.items()
        }
    record = StudyRecord(
        name=plan.name,
        question=plan.study.question,
        baseline=plan.baseline.name,
        cells=tuple(
            StudyCell(c.name, c.title, c.system, json.loads(json.dumps(c.changes)), c.paper) for c in plan.cells
        ),
        seeds=plan.seeds,
        runs=tuple(members),
        metrics=tuple(plan.study.metrics),
        axes=axes,
        source=_relative(plan.path, Path(root)),
        tuning=_tuning(plan, tuple(of_grid)),
    )
    write_study_record(runs, record)
    return record


def _tuning(plan: StudyPlan, runs: tuple[StudyRun, ...]) -> StudyTuning | None:
    """The grid for study.json."""
    tune = plan.study.tune
    if tune is None:
        return None
    return StudyTuning(
        tune.parameter,
        tuple(tune.values),
        plan.own_value,
        tune.by,
        plan.tuned_seeds,
        tuple(TunedStudyCell(one.cell.name, one.cell.title, one.of, one.value) for one in plan.tuned),
        runs,
    )


def _check_common(study: Study, cells: list[Cell], common: Mapping[str, Any]) -> None:
    """What the command line sets for every cell must be a parameter that no cell changes."""
    names = parameter_names() if common else []
    for key in common:
        if key in ("preset", "seeds"):
            remedy = "give --seeds N" if key == "seeds" else "change 'preset' in the study's file"
            raise UserError(f"--set {key}: not for a study; {remedy}")
        if key not in names:
            raise UserError(f"--set {key}: unknown parameter '{key}'; the nearest valid one is '{nearest(key, names)}'")
        if study.tune is not None and key == study.tune.parameter:
            message = f"'tune' varies '{key}', which --set {key} would undo; leave it away"
            raise study.problem(message, "tune", "parameter")
        for cell in cells:
            if key in cell.places:
                message = f"cell '{cell.name}' changes '{key}', which --set {key} would undo; leave it away"
                raise study.problem(message, *cell.places[key])


def _resolve(study: Study, cell: Cell, source: Source) -> Params:
    try:
        return Params(**lay_over(source.values, cell.overrides))
    except ValidationError as error:
        problem, unexplained = error.errors()[0], explain(error, source.path, source.document)
    location = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    words = [word.strip(":,;'()").split(".")[-1] for word in message.split()]
    own = [name for name in cell.places if name == location or name.startswith(f"{location}." if location else "")]
    own += [name for name in cell.places if location.startswith(f"{name}.")]
    own.sort(key=lambda name: [*words, name.rsplit(".", 1)[-1]].index(name.rsplit(".", 1)[-1]))  # as the message does
    shared = [name for name in cell.overrides if name == location or location.startswith(f"{name}.")]
    if not own and not shared and problem["type"] != "value_error":  # of params.yaml itself
        raise UserError(unexplained)
    place = cell.places[own[0]] if own else ("set", shared[0]) if shared else ("cells", cell.name)
    value = problem.get("input")
    given = f" (given: {show(value)})" if isinstance(value, str | int | float | list) else ""
    subject = f"parameter '{location}': " if location else ""
    remedy = "; or list the combination under 'exclude'" if study.mode == "product" and cell.from_axes else ""
    raise study.problem(f"cell '{cell.name}': {subject}{message[0].lower()}{message[1:]}{given}{remedy}", *place)


def _seeds(study: Study, wanted: int | None) -> tuple[int, ...]:
    if wanted is None:
        return tuple(study.seeds)
    if wanted < 1:
        raise UserError(f"--seeds {wanted}: a study needs at least one; give 1 or more")
    return tuple(study.seeds[:wanted]) if wanted <= len(study.seeds) else tuple(range(wanted))


def _overlap(study: Study, one: Cell, two: Cell, first: dict[str, Any], second: dict[str, Any]) -> UserError:
    """Two cells that are one run: what they change, which matters to no stage of it."""
    place = next(iter(two.places.values()), ("cells", two.name))
    said = ", ".join(
        f"{key} is {show(first[key])} and {show(second[key])}" for key in first if first[key] != second[key]
    )
    if said:
        why = f"they differ in parameters that matter to no stage of the run ({said})"
    else:
        why = "they set the same parameters"
    return study.problem(f"cells '{one.name}' and '{two.name}' are the same run: {why}; delete one of them", *place)


def _relative(path: Path, root: Path) -> str:
    try:
        return path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return path.as_posix()
