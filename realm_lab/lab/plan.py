"""Turn a study's file into its runs: every cell at every seed with its resolved parameters and keys. No results are
read here; wanted.py chooses among these runs by the results so far."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from realm_lab.engine.masking import check_masking
from realm_lab.engine.params.changes import phases
from realm_lab.engine.params.load import beyond_preset, flatten, laid_over, parameter_errors, resolve, setting
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval.refresh_policies import check_refresh
from realm_lab.engine.systems.identity import DEFAULT_SYSTEMS, plan_run, plan_runs
from realm_lab.engine.systems.registry import system_of, with_options
from realm_lab.errors import UserError
from realm_lab.evidence.report.own_figures import FIGURES, OF_TRAINING, REPORT_SECTIONS
from realm_lab.lab.launchers import LocalOptions
from realm_lab.lab.rules.seeds import SEED_RULES, SeedCounts, SeedRule, options_of
from realm_lab.lab.rules.space import Dimension, Tuning, last_stage_for, unfit
from realm_lab.lab.rules.tune import trials_of_cell
from realm_lab.lab.study import (
    DEFAULT_SYSTEM,
    CellSpace,
    Search,
    Study,
    StudyPlan,
    cells_of,
    overrides_of,
    read_study_file,
    value_in_name,
)
from realm_lab.records.computed import COMPUTED, definition
from realm_lab.records.metrics import BUILT_IN, METRICS, Metric, learn, metric, of_kind, one_name
from realm_lab.records.parameters import measuring, show
from realm_lab.records.plugins import Choice, Plugin, import_plugins, load_object
from realm_lab.records.run import Run
from realm_lab.records.study import DEFAULT, StudyCell, StudyRecord
from realm_lab.records.yaml_file import reach

Given = tuple[StudyCell, Mapping[str, Any], Any]  # a cell, its settings, and its name as it is written
DEVICES = "auto", "cpu", "cuda"  # accepted without asking torch, since a job may run on another machine, with a GPU


def plan_study(
    path: Path,
    root: Path,
    *,
    params_path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> StudyPlan:
    """Plan the study of a file in the project `root`, whatever its results are; nothing is written.

    Cells change the parameters of `params_path` (default: the project's params.yaml). `overrides` (dotted name ->
    value; `preset` too) hold for every cell and override the study. UserError: the study or a cell's parameters are
    wrong, or two cells are one run.
    """
    study = read_study_file(Path(path))
    base, common = study.below(params_path or Path(root) / "params.yaml", overrides or {})
    if isinstance(study, Search):
        return _search(study, base, common, root)
    rule: Plugin[SeedCounts] | None = None
    if isinstance(study.seeds, list):
        seeds = tuple(map(int, study.seeds))
    else:
        rule = SEED_RULES.choose("seeds", study.seeds)
        if not isinstance(options := rule.options, SeedRule):
            problem = f"'{rule.name}': the type of its options is no subclass of realm_lab.SeedRule"
            raise UserError(problem, value=study.seeds.name)
        seeds = tuple(range(options.first, options.first + options.at_most))
    given = [(cell, study.settings(cell, common), study.written(cell)) for cell in cells_of(study)]
    spaces = () if study.tune is None else _spaces(study, study.tune, given, base, common, seeds)

    @functools.cache
    def planned(chosen: str) -> StudyPlan:
        choices = json.loads(chosen)
        cells, runs, everywhere, of_baseline = _runs(given, base, common, seeds, choices)
        metrics, axes = _metrics_of(study), study.axes if len(study.axes) > 1 else {}
        design = StudyRecord(
            name=study.name,
            question=study.question,
            baseline=cells[0].name,
            cells=tuple(cells),
            seeds=seeds,
            runs=(),
            metrics=tuple(dict.fromkeys(metric.name for metric in metrics.values())),
            axes={axis: tuple(value_in_name(show(point)) for point in points) for axis, points in axes.items()},
            source=os.path.relpath(study.path, root),
            # by their code, `module:object`: a registered name is known only where its plug-in is imported
            figures=tuple(Choice(FIGURES.choose("figures", one).target, one.options) for one in study.figures),
            sections=tuple(
                Choice(REPORT_SECTIONS.choose("sections", one).target, one.options) for one in study.sections
            ),
            until=options_of(rule).looks if rule else None,
            delta={metrics[text].name: value for text, value in study.delta.items()},
            own_metrics=tuple({m.name: m for m in metrics.values() if m.name in METRICS.keys() - BUILT_IN}.values()),
            common=json.loads(json.dumps(everywhere)),
            observes=measuring(flatten(of_baseline)),
            **study.model_dump(include={"declared", "not_run", "note", "tags"}),
        )
        return StudyPlan(design, runs, study.launcher, rule, study.tune, spaces, choose=chosen_by)

    def chosen_by(choices: Mapping[str, Any]) -> StudyPlan:
        return planned(json.dumps(choices, sort_keys=True))

    return chosen_by({})


def _search(search: Search, below: Mapping[str, Any], given: Mapping[str, Any], root: Path) -> StudyPlan:
    """Plan a search. UserError: its metric, its pruning or its space does not fit the parameters."""
    cell, values = StudyCell("", "", DEFAULT_SYSTEM, {}), laid_over(laid_over(below, search.common), given)
    space = _space(search, cell, search.space, values, {*search.common, *given}, reach(values, "preset"))
    runs, last, pruning, settings = space.make({}), last_stage_for(search.metric), search.pruning, search.launcher
    if pruning is not None and pruning.after_steps >= (steps := runs[0].params.pretrain.steps):
        message = f"pruning.after_steps: a trial has {steps} steps; give fewer"
        raise UserError(message, value=pruning.after_steps)
    if settings.local.processes is None:  # a process for each run of the parallel trials
        local = LocalOptions(processes=search.parallel * len(search.seeds))
        settings = settings.model_copy(update={"local": local})
    design = StudyRecord(
        name=search.name,
        question=search.question,
        baseline="",
        cells=(),
        seeds=tuple(search.seeds),
        runs=(),
        metrics=(search.metric,),
        last_stage="" if last == "evaluate" else last,
        source=os.path.relpath(search.path, root),
    )
    return StudyPlan(design, runs, settings, spaces=(space,), search=search)


def _runs(
    given: Sequence[Given],
    base: Mapping[str, Any],
    common: Mapping[str, Any],
    seeds: Sequence[int],
    choices: Mapping[str, Any],
) -> tuple[tuple[StudyCell, ...], tuple[Run, ...], dict[str, Any], Params]:
    """Return the cells with the values that were chosen for them, every run, the changes of the preset that all cells
    share, and the parameters of the baseline. UserError: a cell's parameters are wrong, or two cells are one run."""
    cells, resolved, plans = list[StudyCell](), list[Params](), []
    for cell, overrides, source in given:
        cells.append(replace(cell, overrides=laid_over(overrides, choices.get(cell.name, {}))))
        params, runs = _identified(cell, laid_over(base, cells[-1].overrides), seeds, source)
        resolved.append(params)
        plans.append([replace(run, chosen=choices.get(cell.name, {})) for run in runs])
    flat = [flatten(params) for params in resolved]
    names = dict.fromkeys(name for values in flat for name in values)
    of_baseline, *_ = flat = [with_options(values, names) for values in flat]
    changes = ({key: value for key, value in values.items() if value != of_baseline[key]} for values in flat)
    cells = [replace(cell, changes=json.loads(json.dumps(new))) for cell, new in zip(cells, changes, strict=True)]
    varied = [key for key in cells[0].overrides if key not in common]
    everywhere = {
        key: value
        for key, value in beyond_preset(resolved[0]).items()
        if not any(f"{key}.".startswith(f"{name}.") for name in varied)
    }
    owners: dict[str, StudyCell] = {}  # run key -> its cell
    for cell, runs, (_, _, source) in zip(cells, plans, given, strict=True):
        for run in runs:
            other = owners.setdefault(run.run_key, cell)
            if other != cell and choices:
                problem = f"tuning made variants '{other.name}' and '{cell.name}' the same run; delete one of them"
                raise UserError(problem, value=source)
            if other != cell:
                raise _overlap(other, cell, of_baseline, everywhere, source)
    return tuple(cells), tuple(run for runs in plans for run in runs), everywhere, resolved[0]


def _identified(
    cell: StudyCell, values: Mapping[str, Any], seeds: Iterable[int], source: Any
) -> tuple[Params, list[Run]]:
    """Return the parameters of a cell from flat values, and its runs. UserError: a value is wrong; the error has the
    line of the value, or else of `source`."""
    with parameter_errors(values, source, f"variant '{cell.name}': " if cell.name else ""):
        params = resolve(values)
        check_parts(params)
        return params, [replace(run, cell=cell.name) for run in plan_runs(params, cell.system, map(int, seeds))]


def _spaces(
    study: Study,
    tune: Tuning,
    given: Sequence[Given],
    base: Mapping[str, Any],
    common: Mapping[str, Any],
    seeds: Sequence[int],
) -> tuple[CellSpace, ...]:
    """Return the space of every cell. UserError: the choice could depend on the study's own seeds or on test data, or
    the space of a cell does not fit it."""
    if shared := sorted(set(tune.seeds) & set(seeds)):
        message = f"tune.seeds: {shared[0]} is a seed of the study, too; a choice must not see them, so take others"
        raise UserError(message, value=tune.seeds)
    found = []
    for cell, overrides, source in given:
        entry = study.cells.get(cell.name)
        if not (space := (entry and entry.space) or tune.space):
            problem = f"variant '{cell.name}' has no space to tune; write one here, or in 'tune'"
            raise UserError(problem, value=source)
        found.append(_space(tune, cell, space, laid_over(base, overrides), {*cell.overrides, *common}, source))
        trials_of_cell(found[-1], tune, lambda values, runs: {})
    return tuple(found)


def _space(
    tuning: Tuning | Search,
    cell: StudyCell,
    space: Mapping[str, Dimension],
    before: Mapping[str, Any],
    taken: Collection[str],
    source: Any,
) -> CellSpace:
    """Return the space of a cell with the runs of its trials. `before` are the cell's settings, `taken` the names of
    settings that cannot be in a space. UserError: the space does not fit the cell; `source`: as in `_identified`."""
    for name in overrides_of(dict.fromkeys(space)):  # refuses a name that no cell may set
        if name in taken:
            where = f"for variant '{cell.name}'" if cell.name else "in 'set' or by --set"
            raise UserError(f"'{name}' is set {where} and is in its space; keep one", value=name)
    last, made = last_stage_for(tuning.metric), dict[str, tuple[Run, ...]]()

    def make(values: Mapping[str, Any]) -> tuple[Run, ...]:
        text = json.dumps(values, sort_keys=True)
        if text not in made:
            tried = laid_over(before, {name: values[name] for name in space if name in values})
            runs = _identified(cell, tried, tuning.seeds, source)[1]
            made[text] = tuple(replace(run, last_stage=last) for run in runs)
        return made[text]

    untuned, runs = _identified(cell, before, tuning.seeds, source)
    made["{}"] = tuple(replace(run, last_stage=last) for run in runs)
    known = with_options(flatten(untuned), space)
    found = CellSpace(cell.name, space, {name: known[name] for name in space}, make)
    if why := unfit(tuning.metric, untuned.corpus):
        raise found.error(why, tuning.metric)
    if last not in runs[0].stages:
        raise found.error(f"metric: the system '{cell.system}' has no stage '{last}', where it is measured")
    for name, dimension in space.items():
        start = found.start[name]
        if dimension.choices is None and (isinstance(start, bool) or not isinstance(start, int | float)):
            raise found.error(f"'{name}' is no number; list its values as 'choices'", name)
        if isinstance(start, int) and isinstance(dimension.step, float):
            raise found.error(f"'{name}' takes whole numbers; write its step as a whole number", name)
        if start not in dimension:
            raise found.error(f"'{name}' is {show(start)} in the baseline, which is not in its range; widen it", name)
        if {found.key({name: end}) for end in dimension.ends} == {found.key({})}:
            remedy = "leave it out, or search for another metric"
            raise found.error(f"'{name}' changes nothing up to '{last}', where a trial ends; {remedy}", name)
    return found


def _metrics_of(study: Study) -> dict[str, Metric]:
    """Return the definition of each metric of a study, by its name and by its name in the file. Call this after the
    modules of the study's systems and schemes are imported, since they may register metrics. UserError: an unknown
    metric, or one named twice."""
    found = list[Metric]()
    for choice in study.metrics:
        if (entry := _metric(choice)) in found:
            raise UserError(f"metrics: {entry.name} is listed twice; keep one", value=choice.name)
        found.append(entry)
    named = {choice.name: one for one, choice in zip(found, study.metrics, strict=True)}
    named |= {metric.name: metric for metric in found}
    for text, largest in study.delta.items():
        if text not in named:
            raise UserError(f"delta: '{text}' is none of the study's metrics", value=text, known=named)
        named[text].check_delta(largest)
    return named


def _metric(choice: Choice) -> Metric:
    """Return the metric that a study names; a custom one is registered. UserError: no such metric, or a taken name."""
    name = one_name(choice.name)
    if not choice.options and (name in METRICS or of_kind(name, "results")):
        return metric(name)
    entry = load_object("metrics", name) if ":" in name else None
    if not isinstance(entry, Metric):
        import_plugins()
        known = {*METRICS, *COMPUTED}
        if ":" not in name and name not in COMPUTED:
            raise UserError(f"metrics: unknown metric '{name}'", value=choice.name, known=sorted(known))
        entry = definition("metrics", choice)
    elif choice.options or entry.source != "results":
        problem = f"metrics: '{name}' is a realm_lab.Metric, which has no options and is of source 'results'"
        raise UserError(problem, value=choice.name)
    if METRICS.get(entry.name, entry) != entry:
        problem = f"metrics: '{name}': another metric is called '{entry.name}'; choose another name"
        raise UserError(problem, value=choice.name)
    learn([entry])
    return entry


# Additional figures in the report of the default run.
DEFAULT_FIGURES = tuple(Choice(FIGURES[name].target) for name in OF_TRAINING)


def default_plan(params: Params, name: str = DEFAULT) -> StudyPlan:
    """Return the default pipeline as a study: REALM and its warm start."""
    check_parts(params)
    cells = tuple(StudyCell(system, system_of(system).title, system, {}) for system in DEFAULT_SYSTEMS)
    design = StudyRecord(
        name=name,
        question="What does REALM pre-training add to its own warm start?",
        baseline=cells[0].name,
        cells=cells,
        seeds=tuple(params.seeds),
        runs=(),
        figures=DEFAULT_FIGURES,
        common=json.loads(json.dumps(beyond_preset(params))),
    )
    runs = (replace(plan_run(params, cell.system, seed), cell=cell.name) for cell in cells for seed in params.seeds)
    return StudyPlan(design, tuple(runs))


def check_parts(params: Params) -> None:
    """Raise a UserError for a masking scheme or refresh policy that fails when it is tried, or an unknown device."""
    for settings in phases(params.pretrain).values():
        check_masking(settings)
        check_refresh(settings.refresh)
    if params.launch.device not in DEVICES:
        from realm_lab.engine.core.process import device_named  # torch takes seconds to import: only for rare names

        device_named(params.launch.device)


def _overlap(one: StudyCell, two: StudyCell, base: dict[str, Any], common: Mapping[str, Any], source: Any) -> UserError:
    """Return an error about two cells that are one run: their changes affect no stage of the run, or params.yaml makes
    the same change. `source`: the second cell in the file."""
    first, second = base | one.changes, base | two.changes
    differs = [key for key in first if first[key] != second[key]]
    same = [key for key in common if {**one.overrides, **two.overrides}.get(key) == common[key]]
    if differs:
        shown = ", ".join(f"{key} is {show(first[key])} and {show(second[key])}" for key in differs)
        why = f"they differ in parameters that matter to no stage of the run ({shown}); delete one of them"
    elif same:
        why = f"params.yaml sets {same[0]} = {show(common[same[0]])} for every variant; empty that line"
    else:
        why = "they have identical parameters; delete one of them"
    place = setting(two.overrides, *differs) or source
    return UserError(f"variants '{one.name}' and '{two.name}' are the same run: {why}", value=place)
