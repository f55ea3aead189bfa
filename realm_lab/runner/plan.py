"""Turn a study's file into its runs: every cell at every seed with its resolved parameters and keys."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from realm_lab.errors import UserError, suggestion
from realm_lab.evidence.report.own_figures import FIGURES, OF_TRAINING, known_anywhere
from realm_lab.masking import check_masking
from realm_lab.params.changes import phases
from realm_lab.params.load import beyond_preset, flatten, laid_over, placed, resolve, setting
from realm_lab.params.parameters import Params
from realm_lab.records.computed import COMPUTED, definition
from realm_lab.records.metrics import BUILT_IN, METRICS, Metric, learn, metric, of_kind, one_name
from realm_lab.records.parameters import measuring, show
from realm_lab.records.plugins import Choice, import_plugins, load_object
from realm_lab.records.study import DEFAULT, StudyCell, StudyRecord, StudyRun, write_study_record
from realm_lab.retrieval.refresh import check_refresh
from realm_lab.runner.launchers import LauncherSettings
from realm_lab.runner.seeds import SEED_RULES, SeedRule
from realm_lab.runner.space import check_metric
from realm_lab.runner.study import (
    Cell,
    Study,
    cells_of,
    overrides_of,
    read_study_file,
    value_in_name,
)
from realm_lab.runner.tuning import Tuned, tune_cell
from realm_lab.systems.identity import DEFAULT_SYSTEMS, Plan, plan_run, plan_runs, record_run
from realm_lab.systems.registry import system_of, with_options

SeedCounts = Callable[..., Mapping[str, int]]
DEVICES = "auto", "cpu", "cuda"  # known to any torch; a job may run on a machine with a GPU


@dataclass(frozen=True)
class PlannedRun:
    """One cell at one seed. `changes`: its differences from the baseline's parameters. `trial`: the number of a trial
    of its tuning, whose values are the changes."""

    cell: str
    seed: int
    params: Params
    plan: Plan
    changes: dict[str, Any] = field(default_factory=dict)
    trial: int | None = None

    @property
    def label(self) -> str:
        """Its cell, as people read it."""
        return self.cell if self.trial is None else f"{self.cell}, trial {self.trial}"

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
    tuning: Tuned | None = None  # until it is done the study has no runs
    untuned: tuple[PlannedRun, ...] = ()  # its runs with the parameters as they are, for estimates of their time
    rule: SeedRule | None = None  # options of the rule for its seeds
    counts: SeedCounts | None = None  # that rule

    @property
    def is_tuning(self) -> bool:
        """True while it has no runs yet, but trials that its cells' parameters depend on."""
        return self.tuning is not None and not self.tuning.is_done

    @property
    def wanted(self) -> tuple[PlannedRun, ...]:
        """The runs that it wants by the results so far."""
        return self.trials if self.is_tuning else self.runs

    @property
    def last_stage(self) -> str:
        """The last stage of the runs that it wants, if that is before the end."""
        found = self.tuning.last_stage if self.tuning and self.is_tuning else self.described.get("last_stage", "")
        return "" if found == "evaluate" else str(found)

    @property
    def trials(self) -> tuple[PlannedRun, ...]:
        """The runs of all trials of its tuning; of trials that are the same run, those of the first."""
        found = dict[str, PlannedRun]()
        for tuned in self.tuning.cells if self.tuning else ():
            for number, trial in enumerate(tuned.trials):
                for plan in trial.plans:
                    run = PlannedRun(tuned.cell, plan.seed, trial.params, plan, trial.values, number)
                    found.setdefault(run.run_key, run)
        return tuple(found.values())

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
    overrides: Mapping[str, Any] | None = None,
) -> StudyPlan:
    """Plan the study of a file in the project `root`; nothing is written.

    Cells change the parameters of `params_path` (default: the project's params.yaml). `overrides` (dotted name ->
    value; `preset` too) hold for every cell and override the study. UserError: the study or a cell's parameters are
    wrong, or two cells are one run.
    """
    study = read_study_file(Path(path), Study)
    base, common = study.below(params_path or Path(root) / "params.yaml", overrides or {})
    chosen, rule, counts = _seeds_of(study)
    given = [(cell, _settings(study, cell, common)) for cell in cells_of(study)]
    tuning = None if study.tune is None else _tuned(study, given, base, common, chosen, Path(root) / "runs")
    cells, resolved, plans = [], dict[str, Params](), []
    for cell, overrides in given:
        cells.append(cell._replace(overrides=laid_over(overrides, tuning.choice(cell.name) if tuning else {})))
        values = laid_over(base, cells[-1].overrides)
        with _in_cell(study, cell, values):
            resolved[cell.name] = resolve(values)
            check_parts(resolved[cell.name])
            plans.append(plan_runs(resolved[cell.name], cell.system, chosen))
    cells, of_baseline = _compared(cells, [flatten(params) for params in resolved.values()])
    own = [key for key in cells[0].overrides if key not in common]
    everywhere = {
        key: value
        for key, value in beyond_preset(resolved[cells[0].name]).items()
        if not any(f"{key}.".startswith(f"{name}.") for name in own)
    }
    runs = []
    owners: dict[str, Cell] = {}  # run key -> its cell
    for cell, params, planned in zip(cells, resolved.values(), plans, strict=True):
        for seed, plan in zip(chosen, planned, strict=True):
            other = owners.setdefault(plan.run_key, cell)
            if other != cell:
                raise _overlap(study, other, cell, of_baseline, everywhere)
            runs.append(PlannedRun(cell.name, seed, params, plan, cell.changes))
    metrics = _metrics_of(study)
    described = study.model_dump(include={"not_run", "note", "tags"}) | {
        "figures": _figures_of(study),
        "observes": measuring(flatten(resolved[cells[0].name])),
        "metrics": list(dict.fromkeys(metric.name for metric in metrics.values())),
        "delta": {metrics[text].name: value for text, value in study.delta.items()},
        "own_metrics": tuple({m.name: m for m in metrics.values() if m.name in METRICS.keys() - BUILT_IN}.values()),
    }
    if len(study.axes) > 1:
        described["axes"] = {
            axis: [value_in_name(show(point)) for point in points] for axis, points in study.axes.items()
        }
    if rule and rule.looks:
        described["until"] = rule.looks
    if tuning is not None:
        described["tuning"] = tuning.as_data()
    is_ready = tuning is None or tuning.is_done
    made = StudyPlan(
        study.name,
        study.question,
        tuple(cells),
        chosen,
        tuple(runs) if is_ready else (),
        described,
        everywhere,
        study.launcher,
        Path(path),
        study.on_finish,
        tuning,
        () if is_ready else tuple(runs),
        rule,
        counts,
    )
    return _by_rule(made, root) if rule and is_ready else made


def _compared(cells: Sequence[Cell], flat: Sequence[dict[str, Any]]) -> tuple[list[Cell], dict[str, Any]]:
    """Return cells with their differences from the baseline, the first, and its parameters. `flat`: those of each."""
    names = dict.fromkeys(name for values in flat for name in values)
    flat = [with_options(values, names) for values in flat]
    base = flat[0]
    changes = ({key: value for key, value in values.items() if value != base[key]} for values in flat)
    return [cell._replace(changes=own) for cell, own in zip(cells, changes, strict=True)], base


def _settings(study: Study, cell: Cell, common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a cell over params.yaml. UserError: it changes one of `common`, the --set of all cells."""
    for key in common:
        if key in cell.overrides:
            message = f"cell '{cell.name}' changes '{key}', which --set {key} would undo; leave it out"
            raise UserError(message, value=setting(cell.overrides, key))
    return laid_over(laid_over(study.common, cell.overrides), common)


def _in_cell(study: Study, cell: Cell, values: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Attach the source of a parameter in flat `values`, or else of the cell, to errors raised inside."""
    return placed(study.reach("cells", cell.name), values, f"cell '{cell.name}': ")


def _tuned(
    study: Study,
    given: Sequence[tuple[Cell, Mapping[str, Any]]],
    base: Mapping[str, Any],
    common: Mapping[str, Any],
    seeds: Sequence[int],
    runs: Path,
) -> Tuned:
    """Return the tuning of every cell as far as it is. UserError: it could depend on the study's own seeds or on test
    data, or the space of a cell does not fit it."""
    tune, cells = study.tune, []
    assert tune is not None
    study.refuse_twice(tune.seeds, "tune", "seeds")
    if shared := sorted(set(tune.seeds) & set(seeds)):
        message = f"tune.seeds: {shared[0]} is a seed of the study, too; a choice must not see them, so take others"
        raise UserError(message, value=study.reach("tune", "seeds"))
    for cell, overrides in given:
        own = study.cells[cell.name].space if cell.name in study.cells else None
        space = tune.space if own is None else own
        written_space = study.reach("tune", "space") if own is None else study.reach("cells", cell.name, "space")
        if not space:
            problem = f"cell '{cell.name}' has no space to tune; write one here, or in 'tune'"
            raise UserError(problem, value=written_space)
        for name in overrides_of(dict.fromkeys(written_space)):  # they are parameters of a cell
            if name in cell.overrides or name in common:
                raise UserError(f"'{name}' is set for cell '{cell.name}' and is in its space; keep one", value=name)
        before = laid_over(base, overrides)
        with _in_cell(study, cell, before):
            untuned = resolve(before)
        with placed(study.reach("tune", "metric")):
            check_metric(tune.metric, untuned.corpus)
        known = with_options(flatten(untuned), space)

        def make(
            values: Mapping[str, Any],
            cell: Cell = cell,
            before: Mapping[str, Any] = before,
            names: Iterable[str] = written_space,
        ) -> tuple[Params, list[Plan]]:
            tried = laid_over(before, {name: values[name] for name in names if name in values})
            with _in_cell(study, cell, tried):
                params = resolve(tried)
                check_parts(params)
            return params, plan_runs(params, cell.system, tune.seeds)

        with placed(written_space, prefix=f"cell '{cell.name}': "):
            first = {name: known[name] for name in space}
            cells.append(tune_cell(tune, cell.name, cell.system, space, first, make, runs))
    return Tuned(tune, tuple(cells))


def _by_rule(plan: StudyPlan, root: Path) -> StudyPlan:
    """Return a plan of all seeds with only those that its rule asks for, by the results so far."""
    from realm_lab.evidence.report.frames import load_runs  # brings pandas

    assert plan.rule is not None
    assert plan.counts is not None
    whole, least = study_record(plan, root), plan.rule.at_least
    results = load_runs(Path(root) / "runs", whole).results
    complete = results[results["status"] == "COMPLETE"]
    done = {*complete[["cell", "seed"]].itertuples(index=False, name=None)}
    begun = all((cell.name, seed) in done for cell in plan.cells for seed in plan.seeds[:least])
    counts = plan.counts(whole, complete) if begun else {}
    wanted = {cell.name: set(plan.seeds[: max(least, counts.get(cell.name, least))]) for cell in plan.cells[1:]}
    wanted[plan.baseline.name] = set(plan.seeds[:least]).union(*wanted.values())
    seeds = tuple(seed for seed in plan.seeds if seed in wanted[plan.baseline.name])
    return replace(plan, seeds=seeds, runs=tuple(run for run in plan.runs if run.seed in wanted[run.cell]))


def _figures_of(study: Study) -> tuple[Choice, ...]:
    """Return the extra figures of a study. UserError: an unknown one."""
    found = []
    for place, choice in enumerate(study.figures):
        with placed(study.reach("figures", place)):
            found.append(known_anywhere("figures", choice))
    return tuple(found)


def _metrics_of(study: Study) -> dict[str, Metric]:
    """Return the definition of each metric of a study, by its name and as the file writes it. The modules of the
    study's systems and schemes are imported before, since they may register some. UserError: an unknown one, or one
    named twice."""
    found: list[Metric] = []
    for place, choice in enumerate(study.metrics):
        with placed(study.reach("metrics", place)):
            found.append(_metric(choice))
    study.refuse_twice([metric.name for metric in found], "metrics")
    named = {choice.name: metric for choice, metric in zip(study.metrics, found, strict=True)}
    named |= {metric.name: metric for metric in found}
    for text in study.delta:
        with placed(study.reach("delta", text)):
            if text not in named:
                raise UserError(f"delta: '{text}' is none of the study's metrics", suggestion(text, named))
            named[text].check_delta(study.delta[text])
    return named


def _metric(choice: Choice) -> Metric:
    """The metric that a study names."""
    name = one_name(choice.name)
    if not choice.options and (name in METRICS or of_kind(name, "results")):
        return metric(name)
    entry = load_object("metrics", name) if ":" in name else None
    if not isinstance(entry, Metric):
        import_plugins()
        known = {*METRICS, *COMPUTED}
        if ":" not in name and name not in COMPUTED:
            raise UserError(f"metrics: unknown metric '{name}'; {suggestion(name, sorted(known))}")
        entry = definition("metrics", choice)
    elif choice.options or entry.source != "results":
        raise UserError(f"metrics: '{name}' is a realm_lab.Metric, which has no options and is of source 'results'")
    if METRICS.get(entry.name, entry) != entry:
        raise UserError(f"metrics: '{name}': another metric is called '{entry.name}'; choose another name")
    learn([entry])
    return entry


def _seeds_of(study: Study) -> tuple[tuple[int, ...], SeedRule | None, SeedCounts | None]:
    """Return all seeds that a study may take, the options of the rule for them, and the rule, if it has one. UserError:
    no such rule, or a wrong option."""
    if isinstance(study.seeds, list):
        return tuple(study.seeds), None, None
    with placed(study.reach("seeds")):
        rule = SEED_RULES.choose("seeds", study.seeds)
        if not isinstance(options := rule.options, SeedRule):
            raise UserError(f"'{rule.name}': the type of its options is no subclass of realm_lab.SeedRule")
    return tuple(range(options.first, options.first + options.at_most)), options, rule


# Extra metrics and figures of the report of the default run.
DEFAULT_FIGURES = tuple(Choice(FIGURES[name].target) for name in OF_TRAINING)


def default_plan(params: Params) -> StudyPlan:
    """Return the default pipeline as a study: REALM and its warm start."""
    check_parts(params)
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
    for run in (*plan.trials, *plan.runs):
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
            StudyCell(
                c.name,
                c.title,
                c.system,
                json.loads(json.dumps(c.changes)),
                c.paper,
                {**c.points} if "axes" in plan.described else {},
            )
            for c in plan.cells
        ),
        seeds=plan.seeds,
        runs=_recorded(plan.runs),
        trials=_recorded(plan.trials),
        source="" if plan.source is None else os.path.relpath(plan.source, root),
        common=json.loads(json.dumps(plan.common)),
        **plan.described,
    )


def _recorded(runs: Iterable[PlannedRun]) -> tuple[StudyRun, ...]:
    return tuple(StudyRun(run.cell, run.seed, run.run_key, run.name, run.trial) for run in runs)


def check_parts(params: Params) -> None:
    """Refuse, before any work, a plug-in that fails when it is tried, or an unknown device."""
    for settings in phases(params.pretrain).values():
        check_masking(settings)
        check_refresh(settings.refresh)
    if params.launch.device not in DEVICES:
        from realm_lab.core.process import device_named  # torch takes seconds to import: only for rare names

        device_named(params.launch.device)


def _overlap(study: Study, one: Cell, two: Cell, base: dict[str, Any], common: Mapping[str, Any]) -> UserError:
    """Raise a UserError for two cells that are one run: their changes affect no stage of it, or params.yaml makes the
    same change."""
    first, second = base | one.changes, base | two.changes
    differs = [key for key in first if first[key] != second[key]]
    same = [key for key in common if {**one.overrides, **two.overrides}.get(key) == common[key]]
    if differs:
        shown = ", ".join(f"{key} is {show(first[key])} and {show(second[key])}" for key in differs)
        why = f"they differ in parameters that matter to no stage of the run ({shown}); delete one of them"
    elif same:
        why = f"params.yaml sets {same[0]} = {show(common[same[0]])} for every cell; empty that line"
    else:
        why = "they have identical parameters; delete one of them"
    place = setting(two.overrides, *differs) or study.reach(*("cells", two.name) if study.cells else ("axes",))
    return UserError(f"cells '{one.name}' and '{two.name}' are the same run: {why}", value=place)
