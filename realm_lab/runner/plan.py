"""Turn a study's file into its runs: every cell at every seed with its resolved parameters and keys."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from realm_lab.core.plugins import Choice
from realm_lab.core.records import problem_of
from realm_lab.corpus.sources import corpus_source
from realm_lab.corpus.taggers import corpus_tagger
from realm_lab.errors import UserError
from realm_lab.masking import check_masking
from realm_lab.metrics import BUILT_IN, METRICS
from realm_lab.models.objectives import training_objective
from realm_lab.params.load import (
    Source,
    beyond_preset,
    explain,
    flatten,
    is_known,
    is_same_or_inside,
    laid_over,
    placed,
    read_source,
    resolve,
    show,
    suggest_parameter,
)
from realm_lab.params.parameters import Params
from realm_lab.reporting.own_figures import known_anywhere
from realm_lab.retrieval.backends import check_search
from realm_lab.retrieval.refresh import check_refresh
from realm_lab.runner.cells import Cell, Place, cells_of, value_in_name
from realm_lab.runner.launchers import LauncherSettings
from realm_lab.runner.study import Study, check_parts, metrics_of, read_study_file, with_plugins
from realm_lab.systems.identity import DEFAULT_SYSTEMS, Plan, plan_run, record_run
from realm_lab.systems.registry import options_of, system_of, with_options
from realm_lab.tracking.study_record import DEFAULT, StudyCell, StudyRecord, StudyRun, write_study_record

DEVICES = "auto", "cpu", "cuda"  # known to any torch; a job may run on a machine with a GPU


@dataclass(frozen=True)
class PlannedRun:
    """One cell at one seed. `changes`: its differences from the baseline's parameters."""

    cell: str
    seed: int
    params: Params
    plan: Plan
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def run_key(self) -> str:
        return self.plan.run_key

    @property
    def name(self) -> str:
        """Its folder under runs/."""
        return self.plan.run_name


@dataclass(frozen=True)
class StudyPlan:
    """A study with its cells, the baseline first, and its runs, cell by cell. `common`: changes of the preset by
    params.yaml and --set for every cell. `described`: further fields of its record (StudyRecord)."""

    name: str
    question: str
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    runs: tuple[PlannedRun, ...]
    described: dict[str, Any]
    common: dict[str, Any] = field(default_factory=dict)
    launcher: LauncherSettings = field(default_factory=LauncherSettings)
    source: Path | None = None
    on_finish: str = ""

    @property
    def baseline(self) -> Cell:
        """The cell that all others are compared with."""
        return self.cells[0]

    def of(self, cell: str) -> list[PlannedRun]:
        return [run for run in self.runs if run.cell == cell]


def plan_study(
    path: Path,
    root: Path,
    *,
    params_path: Path | None = None,
    seeds: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> StudyPlan:
    """Plan the study of a file in the project `root`; nothing is written.

    Cells change the parameters of `params_path` (default: the project's params.yaml). `seeds`: only the first ones
    of the study; 0, 1, ... if the study has fewer. `overrides` (dotted name -> value; `preset` too) hold for every
    cell and override the study. UserError: the study or a cell's parameters are wrong, or two cells are one run.
    """
    study, common = read_study_file(Path(path), Study), dict(overrides or {})
    preset = {"preset": name} if (name := common.pop("preset", study.preset)) else {}
    source = with_plugins(read_source(params_path or Path(root) / "params.yaml", preset), study)
    check_parts(study)
    cells = cells_of(study)
    _check_common(study, cells, common)
    cells = [cell._replace(overrides=laid_over(cell.overrides, common)) for cell in cells]
    resolved = _resolve_all(study, cells, source, common)
    flat = [flatten(params) for params in resolved]
    names = dict.fromkeys(name for values in flat for name in values)
    flat = [with_options(values, names) for values in flat]
    base = flat[0]
    cells = [
        cell._replace(changes={key: value for key, value in values.items() if value != base[key]})
        for cell, values in zip(cells, flat, strict=True)
    ]
    own = [key for key in cells[0].overrides if key not in common]
    everywhere = {
        key: value
        for key, value in beyond_preset(resolved[0]).items()
        if not any(f"{key}.".startswith(f"{name}.") for name in own)
    }
    chosen = _seeds(study, seeds)
    runs = _runs(study, cells, resolved, chosen, base, everywhere)
    metrics = metrics_of(study)
    described = study.model_dump(include={"not_run", "note", "tags"}) | {
        "figures": tuple(known_anywhere("figures", choice) for choice in study.figures),
        "metrics": list(dict.fromkeys(metric.name for metric in metrics.values())),
        "delta": {metrics[text].name: value for text, value in study.delta.items()},
        "own_metrics": tuple({m.name: m for m in metrics.values() if m.name in METRICS.keys() - BUILT_IN}.values()),
    }
    if len(study.axes) > 1:
        described["axes"] = {
            axis: [value_in_name(show(point)) for point in points] for axis, points in study.axes.items()
        }
    return StudyPlan(
        study.name,
        study.question,
        tuple(cells),
        chosen,
        tuple(runs),
        described,
        everywhere,
        study.launcher,
        Path(path),
        study.on_finish,
    )


def _runs(
    study: Study,
    cells: list[Cell],
    resolved: list[Params],
    seeds: tuple[int, ...],
    base: dict[str, Any],
    common: Mapping[str, Any],
) -> list[PlannedRun]:
    """Return the runs of cells with their parameters. UserError: two cells are the same run."""
    runs = []
    owners: dict[str, Cell] = {}  # run key -> its cell
    for cell, params in zip(cells, resolved, strict=True):
        for seed in seeds:
            run = PlannedRun(cell.name, seed, params, plan_run(params, cell.system, seed), cell.changes)
            other = owners.setdefault(run.run_key, cell)
            if other != cell:
                raise _overlap(study, other, cell, base, common)
            runs.append(run)
    return runs


# Extra metrics and figures of the report of the default run.
DEFAULT_FIGURES = tuple(
    Choice(f"realm_lab.reporting.figures_training:{name}")
    for name in "retrieval_utility recall early_warnings by_kind index_freshness warm_start corpus_update".split()
)


def default_plan(params: Params) -> StudyPlan:
    """Return the default pipeline as a study: REALM and its warm start."""
    check_names(params)
    cells = tuple(Cell(name, system_of(name).title, name, {}, {}) for name in DEFAULT_SYSTEMS)
    runs = [
        PlannedRun(cell.name, seed, params, plan_run(params, cell.system, seed))
        for cell in cells
        for seed in params.seeds
    ]
    question = "What does REALM pre-training add to its own warm start?"
    described = {"figures": DEFAULT_FIGURES}
    return StudyPlan(DEFAULT, question, cells, tuple(params.seeds), tuple(runs), described, beyond_preset(params))


def record_study(plan: StudyPlan, root: Path) -> StudyRecord:
    """Write run.json of every run and the study's study.json."""
    runs = Path(root) / "runs"
    for run in plan.runs:
        record_run(runs, run.plan, run.params)
    record = study_record(plan, root)
    write_study_record(runs, record)
    return record


def study_record(plan: StudyPlan, root: Path) -> StudyRecord:
    """Return the study.json of a plan; nothing is written."""
    return StudyRecord(
        name=plan.name,
        question=plan.question,
        baseline=plan.baseline.name,
        cells=tuple(
            StudyCell(c.name, c.title, c.system, json.loads(json.dumps(c.changes)), c.paper) for c in plan.cells
        ),
        seeds=plan.seeds,
        runs=tuple(StudyRun(run.cell, run.seed, run.run_key, run.name) for run in plan.runs),
        source="" if plan.source is None else os.path.relpath(plan.source, root),
        common=json.loads(json.dumps(plan.common)),
        **plan.described,
    )


def _check_common(study: Study, cells: list[Cell], common: Mapping[str, Any]) -> None:
    """Check that settings of the command line for every cell are parameters that no cell changes."""
    check_overrides(common)
    for key in common:
        for cell in cells:
            if key in cell.places:
                message = f"cell '{cell.name}' changes '{key}', which --set {key} would undo; leave it out"
                raise study.problem(message, *cell.places[key])


def check_overrides(given: Mapping[str, Any]) -> None:
    """Refuse parameters that --set may not change in a study or a search."""
    for key in given:
        if key == "seeds":
            raise UserError("--set seeds: change 'seeds' in the file, or give --seeds N to `sweep`")
        if not is_known(key):
            raise UserError(f"--set {key}: unknown parameter '{key}'; {suggest_parameter(key)}")


def _resolve_all(study: Study, cells: Sequence[Cell], source: Source, common: Mapping[str, Any]) -> list[Params]:
    """Return the parameters of each cell. Faults caused only by --set (`common`) are reported for --set."""
    try:
        return [_resolve(study, cell, source) for cell in cells]
    except UserError as error:
        if not common:
            raise
        for cell in cells_of(study):
            _resolve(study, cell, source)  # a fault without --set belongs to the file
        given = [f"{key}={show(value)}" for key, value in common.items()]
        raise UserError(error.problem, path=f"--set {', '.join(given)}", parameter=error.parameter) from None


def _resolve(study: Study, cell: Cell, source: Source) -> Params:
    """Return the parameters of a cell; errors point to the line that set the value."""
    try:
        params = resolve(laid_over(source.values, cell.overrides))
        check_names(params, cell.system)
        return params
    except ValidationError as error:
        names, message, unset = problem_of(error).parameters, problem_of(error).text, explain(error, source)
    except UserError as error:
        names, message, unset = (error.parameter,), str(error), placed(str(error), [error.parameter], source)
    # the setting: the parameter itself, a section above it or a parameter in it; of several, the first that is named
    near = [key for name in names if name for key in cell.overrides if is_same_or_inside(name, key)]
    own = [key for key in near if key in cell.places]
    if not near and any(names):  # of params.yaml itself
        raise unset
    place: Place = cell.places[own[0]] if own else ("set", near[0]) if near else ("cells", cell.name)
    raise study.problem(f"cell '{cell.name}': {message}", *place)


def check_names(params: Params, system: str = DEFAULT_SYSTEMS[-1]) -> None:
    """Refuse unknown names and options of plug-ins before any work. UserError: with the nearest name."""
    corpus_source(params.corpus)
    corpus_tagger(params.corpus)
    check_masking(params.pretrain)
    check_refresh(params.pretrain.refresh)
    check_search(params.pretrain.search.backend)
    training_objective("pretrain.objective", params.pretrain.objective)
    training_objective("finetune.objective", params.finetune.objective)
    options_of(params, system)
    if params.launch.device not in DEVICES:
        from realm_lab.core.process import device_named  # torch takes seconds to import: only for rare names

        device_named(params.launch.device)


def _seeds(study: Study, wanted: int | None) -> tuple[int, ...]:
    if wanted is None:
        return tuple(study.seeds)
    if wanted < 1:
        raise UserError(f"--seeds {wanted}: a study needs at least one; give 1 or more")
    return tuple(study.seeds[:wanted]) if wanted <= len(study.seeds) else tuple(range(wanted))


def _overlap(study: Study, one: Cell, two: Cell, base: dict[str, Any], common: Mapping[str, Any]) -> UserError:
    """Raise a UserError for two cells that are one run: their changes affect no stage of it, or params.yaml makes the
    same change."""
    place = next(iter(two.places.values()), ("cells", two.name))
    first, second = base | one.changes, base | two.changes
    said = ", ".join(
        f"{key} is {show(first[key])} and {show(second[key])}" for key in first if first[key] != second[key]
    )
    same = [key for key in common if {**one.overrides, **two.overrides}.get(key) == common[key]]
    if same and not said:
        why = f"params.yaml sets {same[0]} = {show(common[same[0]])} for every cell; empty that line"
        return study.problem(f"cells '{one.name}' and '{two.name}' are the same run: {why}", *place)
    why = (
        f"they differ in parameters that matter to no stage of the run ({said})"
        if said
        else "they have identical parameters"
    )
    return study.problem(f"cells '{one.name}' and '{two.name}' are the same run: {why}; delete one of them", *place)
