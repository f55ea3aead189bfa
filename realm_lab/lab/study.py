"""Read a study's file, experiments/NAME.yaml, as a Study with its cells, the baseline first. Cells are named, or all
combinations of the points of axes. A StudyPlan is a study as it is planned. docs/study_file.md explains the keys."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, ValidationError, model_validator

from realm_lab.engine.params.load import (
    dotted,
    from_flags,
    is_divided,
    is_known,
    is_part,
    is_section,
    laid_over,
    parameter_fields,
    read_values,
    setting,
    unknown_parameter,
)
from realm_lab.engine.systems.identity import DEFAULT_SYSTEMS
from realm_lab.engine.systems.registry import system_of
from realm_lab.errors import UserError, Written, like, placed, suggestion
from realm_lab.evidence.report.published import published
from realm_lab.lab.launchers import LAUNCHERS, LauncherSettings, LocalOptions, Part, SlurmOptions, no_setting
from realm_lab.lab.rules.seeds import LIST, RULE, SeedCounts, SeedList, SeedsOrRule
from realm_lab.lab.rules.space import Dimension, Space, Tuning
from realm_lab.records.files import check_name, is_name
from realm_lab.records.metrics import CURVES
from realm_lab.records.parameters import CHANGES, OPTIONS, show
from realm_lab.records.plugins import Choice, ChoiceField, Plugin, import_modules, import_plugins
from realm_lab.records.run import Run
from realm_lab.records.study import Criterion, StudyCell, StudyRecord
from realm_lab.records.validation import validation_line
from realm_lab.records.yaml_file import has_key, reach, read_yaml

DEFAULT_SYSTEM = DEFAULT_SYSTEMS[-1]  # of a cell that names none
IN_CELLS = "=,+"  # further characters in names of cells
CELL = "trial-{:03}"  # the name of a trial in a search
Given = dict[Any, Any]  # parameters of a file, whose names and values keep their line


def _tag(name: str) -> str:
    """Accept names of MLflow tags, except those that MLflow or the mirror writes."""
    if not re.fullmatch(r"(?!realm\.|mlflow\.)[\w.\- :/]{1,250}", name):
        rules = "letters, digits and _ - . / : blank, and neither realm. nor mlflow. in front"
        raise ValueError(f"no name of a tag; write {rules}")
    return name


class CellEntry(Part):
    title: str = ""
    """Name in tables and figures; empty: its changes, as `parameter = value`."""
    system: ChoiceField = Choice(DEFAULT_SYSTEM)
    """System that is trained and evaluated: a registered one, or `package.module:Class`; with options,
    `{name: dpr, steps: 300}`."""
    set: Given = {}
    """Parameters that this variant changes: dotted names, or sections within sections."""
    paper: Annotated[str, AfterValidator(lambda name: published(name) and name)] | None = None
    """The published number that it corresponds to, such as `table2.realm`."""
    space: Annotated[Space, Field(min_length=1)] | None = None
    """The space of this variant in tuning; empty: `tune.space`."""


class StudyFile(Part):
    """The keys that the files of a study and of a search share."""

    PARTS: ClassVar[dict[str, type[BaseModel]]] = {
        "launcher": LauncherSettings,
        "launcher.local": LocalOptions,
        "launcher.slurm": SlurmOptions,
    }  # the groups of keys in the file

    question: Annotated[str, Field(min_length=1)]
    """The question of the study, in one sentence; the report answers it."""
    preset: str | None = None
    """Preset of the parameters; empty: that of params.yaml."""
    set: Given = {}
    """Parameters of every variant, over those of params.yaml. `launch.*` may only be set here."""
    seeds: SeedList
    """One run of a trial for every seed; the trial's value is the mean."""
    plugins: list[str] = []
    """Your modules that register plug-ins, besides those that params.yaml lists."""
    launcher: LauncherSettings = LauncherSettings()
    """`default` names the launcher, `local` and `slurm` have settings: `{default: slurm, slurm: {partition: gpu}}`."""

    @model_validator(mode="before")
    @classmethod
    def _empty_parts(cls, values: Mapping[str, Any]) -> Any:
        """Accept empty keys: `realm:` with nothing below is a cell without changes; an empty `set:` sets nothing."""
        filled = {key: value for key, value in values.items() if value is not None}
        if isinstance(filled.get("cells"), dict):
            filled["cells"] = {name: {} if cell is None else cell for name, cell in filled["cells"].items()}
        return filled

    _path: Path = PrivateAttr(default=Path("study.yaml"))

    @property
    def name(self) -> str:
        return self._path.stem

    @property
    def path(self) -> Path:
        return self._path

    @functools.cached_property
    def common(self) -> dict[str, Any]:
        """The parameters that `set` changes in every cell, dotted name -> value. UserError: an unknown one."""
        return overrides_of(self.set, launch=True)

    def below(self, path: Path, overrides: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the flat values of params.yaml, with the preset and the plug-ins of the study, and separately the flat
        `overrides` of the command line, which override all others. UserError: a parameter that --set may not change."""
        flags = from_flags(overrides)
        if "seeds" in flags:
            problem = "change 'seeds' in the file, or give --seeds N to `sweep`"
            raise UserError(problem, value=setting(flags, "seeds"))
        chosen = {key: flags.pop(key) for key in [*flags] if key == "preset"}
        of_file = {like("preset", self.preset): self.preset} if self.preset else {}
        values = read_values(path, chosen or of_file)
        listed = [*(values.get("plugins") or []), *self.plugins]
        return laid_over(values, {"plugins": listed}) if self.plugins else values, flags


class Study(StudyFile):
    PARTS: ClassVar[dict[str, type[BaseModel]]] = {
        **StudyFile.PARTS,
        "cells": CellEntry,
        "tune": Tuning,
    }

    seeds: SeedsOrRule  # type: ignore[assignment]
    """One run of each variant for every seed; fewer than six cannot be significant. Or `{until: decided, at_least:
    4, at_most: 16}`: seeds until each variant is decided (docs/statistics.md; `at_most` is 6 or more), from `first`
    (0) on, perhaps `within: 2 h`. A custom rule is `{until: package.module:function, ...}`."""

    baseline: str | dict[str, Any]
    """The variant that the others are compared with: its name under `cells`, or, with `axes`, a point of every axis."""
    cells: dict[str, CellEntry] = {}
    """Named variants, each with its changes of the study's parameters."""
    axes: dict[Any, list[Any] | Given] = {}
    """Instead of `cells`: run every combination of these axis values. Axis -> its points: a parameter with a list
    of values, or any name with named points, each with the parameters that it sets."""
    metrics: list[ChoiceField] = [Choice("exact_match"), Choice("recall_at_5"), Choice("retrieval_utility_end")]
    """Metrics to compare, the most important first. A custom one is `package.module:NAME`: a function of the
    predictions, or a `Metric` that a system measures."""
    delta: dict[str, Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)]] = {}
    """Metric -> the largest difference that does not matter, in its unit."""
    declared: Criterion = ""
    """Criterion of each variant: `same sign` on all seeds, `significant` or `equivalent`; empty: none."""
    tune: Tuning | None = None
    """Tuning of every variant before the study's own seeds, with the same number of trials; empty: none."""
    not_run: dict[str, Annotated[str, Field(min_length=1)]] = {}
    """Variants deliberately left out -> the reason; a table of the report."""
    note: str = ""
    """A note for people, shown in MLflow under the question."""
    tags: dict[Annotated[str, AfterValidator(_tag)], str] = {}
    """Tags of the study and its runs in MLflow: name -> value."""
    figures: list[ChoiceField] = []
    """More figures: the name of one, or `package.module:function`."""
    sections: list[ChoiceField] = []
    """More sections of the report: the name of one, or `package.module:Class`."""

    def settings(self, cell: StudyCell, common: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a cell, which override params.yaml. UserError: the cell and `common` (--set) both set
        a parameter."""
        for key in common:
            if key in cell.overrides:
                message = f"variant '{cell.name}' changes '{key}', which --set {key} would undo; leave it out"
                raise UserError(message, value=setting(cell.overrides, key))
        return laid_over(laid_over(self.common, cell.overrides), common)

    def written(self, cell: StudyCell) -> Any:
        """Return the name of a cell with its line in the file, or the axes if the cell is a combination of points."""
        return next((name for name in self.cells if name == cell.name), self.axes)


class Pruning(Part):
    """Rule for stopping a trial early: by the metric, or by the retrieval utility if the metric is not a curve."""

    after_steps: Annotated[int, Field(ge=1)]
    """Steps of pre-training that every trial may do; after them, every evaluation decides."""
    percentile: Annotated[float, Field(gt=0.0, lt=100.0)] = 50.0
    """A trial ends if its best value so far is worse than this percentile of complete trials at the same step."""
    min_trials: Annotated[int, Field(ge=1)] = 4
    """At least this many other trials must be complete, and have reached that step."""


class Search(StudyFile):
    """The keys of a search file, besides those of StudyFile: question, preset, set, seeds, plugins, launcher."""

    PARTS: ClassVar[dict[str, type[BaseModel]]] = {**StudyFile.PARTS, "pruning": Pruning}

    space: Annotated[Space, Field(min_length=1)]
    """Parameter -> `{low, high}`, with `log: true` or a `step` if wanted, or `{choices: [...]}`. The parameters as they
    are, the first trial and baseline, must lie in it."""
    metric: str = "retrieval_utility"
    """The quantity to maximise, a mean over the seeds, measured on development data: a curve of
    pre-training (its last value), or a result such as `exact_match_dev`."""
    trials: Annotated[int, Field(ge=1)] = 20
    """Number of trials, including the baseline, pruned and failed ones."""
    parallel: Annotated[int, Field(ge=1)] = 1
    """Number of trials at a time."""
    pruning: Pruning | None = None
    """Rule for stopping a trial early; empty: never."""

    @property
    def curve(self) -> str:
        """The curve of pre-training used for pruning."""
        return self.metric if self.metric in CURVES else "retrieval_utility"

    def as_data(self, baseline: Mapping[str, Any]) -> dict[str, Any]:
        """Return the search as plain data. `baseline`: the values of the searched parameters before the search."""
        return {
            "name": self.name,
            "question": self.question,
            "metric": self.metric,
            "seeds": list(self.seeds),
            "source": self.path.name,
            "space": {name: dimension.model_dump(exclude_defaults=True) for name, dimension in self.space.items()},
            "baseline": dict(baseline),
        }


@dataclass(frozen=True)
class CellSpace:
    """The space of a cell. `start`: the cell's values before tuning, which are the first trial. `make` returns the run
    of a trial for each seed, by the values of the trial. UserError: no valid combination."""

    cell: str
    space: Mapping[str, Dimension]
    start: Mapping[str, Any]
    make: Callable[[Mapping[str, Any]], tuple[Run, ...]]

    def key(self, values: Mapping[str, Any]) -> str:
        """Return the key of the last stage of a trial. Trials with equal keys are one trial."""
        return [*self.make(values)[0].keys().values()][-1]

    def error(self, problem: object, value: object = None) -> UserError:
        """Return an error about the space, or about a `value` of the file that does not fit it."""
        of = f"variant '{self.cell}': " if self.cell else ""
        return UserError(f"{of}{problem}", value=value if isinstance(value, Written) else self.space)


@dataclass(frozen=True)
class StudyPlan:
    """A study as it is planned, without results. `design` is its record without runs. `runs` has a run for every cell
    and every seed that the study may take, with the values that tuning chose; `wanted` (wanted.py) picks from these.
    """

    design: StudyRecord
    runs: tuple[Run, ...]
    launcher: LauncherSettings = field(default_factory=LauncherSettings)
    rule: Plugin[SeedCounts] | None = None  # chooses how many seeds are taken; None: all are
    tuning: Tuning | None = None  # its trials run before the runs of the study
    spaces: tuple[CellSpace, ...] = ()  # of the cells that are tuned or searched
    search: Search | None = None  # its runs are the trials of one cell
    choose: Callable[[Mapping[str, Any]], StudyPlan] | None = None  # cell -> chosen values -> the study with these

    @property
    def name(self) -> str:
        return self.design.name

    @property
    def cells(self) -> tuple[StudyCell, ...]:
        """Its cells, the baseline first; a search has none."""
        return self.design.cells

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds that it may take."""
        return self.design.seeds

    @property
    def baseline(self) -> StudyCell:
        """The cell that all others are compared with."""
        return self.cells[0]

    def of(self, cell: str) -> list[Run]:
        return [run for run in self.runs if run.cell == cell]

    def record(
        self, runs: Iterable[Run], trials: Iterable[Run] = (), tuning: Mapping[str, Any] | None = None
    ) -> StudyRecord:
        """Return its study.json with these runs; nothing is written."""
        runs = [*runs]
        taken = {run.seed for run in runs}
        seeds = tuple(seed for seed in self.seeds if not self.rule or not taken or seed in taken)
        cells = tuple(replace(cell, overrides={}) for cell in self.cells)
        return replace(
            self.design, cells=cells, seeds=seeds, runs=tuple(runs), trials=tuple(trials), tuning=dict(tuning or {})
        )


def read_study_file(path: Path) -> Study | Search:
    """Read a study, or a search if the file has a space, check the part common to both, and import plug-ins. UserError:
    one line with the file, the line, the fault and the remedy."""
    document = read_yaml(path)
    model = Search if "space" in document else Study
    try:
        study = model(**document)
    except ValidationError as error:
        raise _explained(error, document, model) from None
    study._path = path
    import_plugins()  # installed ones first, so that the study's modules cannot take their names
    import_modules("plugins", study.plugins)
    LAUNCHERS.choose("launcher.default", study.launcher.default)
    tune = study.tune if isinstance(study, Study) else None
    for key, given in {"seeds": study.seeds, "tune.seeds": tune.seeds if tune else []}.items():
        seeds = given if isinstance(given, list) else []
        for position, seed in enumerate(seeds):
            if seed in seeds[:position]:
                raise UserError(f"{key}: {seed} is listed twice; keep one", value=seed)
    return study


def overrides_of(given: Mapping[str, Any], launch: bool = False) -> dict[str, Any]:
    """Return dotted name -> value for each parameter of a `set` or a point, also inside sections. UserError: an unknown
    parameter, a section without a value, or a parameter that no cell may set."""
    found: dict[str, Any] = {}
    for name, value in _leaves(given, ""):
        if name in ("preset", "seeds"):
            problem = f"parameter '{name}' is no part of a variant; use the study's own key '{name}'"
        elif not launch and name.split(".")[0] == "launch":
            problem = f"parameter '{name}' changes no result, so no variant may change it; move it to the study's 'set'"
        elif not is_known(name):
            raise unknown_parameter(name)
        elif is_section(name):
            inside = next(other for other in parameter_fields() if other.startswith(f"{name}."))
            problem = f"'{name}' is a section; name a parameter in it, such as '{inside}'"
        elif name in found:
            problem = f"parameter '{name}' is set twice; keep one"
        else:
            found[name] = value
            continue
        raise UserError(problem, value=name)
    return found


def _leaves(given: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of each parameter in nested sections."""
    for key, value in given.items():
        name = dotted(prefix, key)
        is_divisible = is_section(name) or name.partition(".")[0] == OPTIONS
        is_options = isinstance(value, dict) and is_part(name) and "name" not in value
        if is_options or (isinstance(value, dict) and value and is_divisible and is_divided(name, prefix)):
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _explained(error: ValidationError, document: Any, model: type[StudyFile]) -> UserError:
    """Return an error about the first fault of a file, unknown keys before others."""
    problems = error.errors()
    problem = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
    inside, location = document, []
    given = [part for part in problem["loc"] if part not in (LIST, RULE)]
    for part in given:  # some are names of types, which pydantic adds for a union
        if has_key(inside, part):
            location.append(part)
            inside = inside[part]
    source = reach(document, *location)
    *above, key = map(str, given)
    group = model.PARTS.get(".".join(above)) or model.PARTS[above[0]] if above and above[0] in model.PARTS else model
    group = Dimension if "space" in above else group
    known = {field.alias or name: field for name, field in group.model_fields.items()}
    if problem["type"] == "extra_forbidden" and key in parameter_fields():
        return UserError(f"'{key}' is a parameter", "put it under 'set:'", value=source)
    if problem["type"] == "extra_forbidden":
        of = f" of {'.'.join(above)}" if above else ""
        remedy = (no_setting if group is SlurmOptions else suggestion)(key, known)
        return UserError(f"unknown key '{key}'{of}", remedy, value=source)
    if problem["type"] == "missing":
        meaning = " ".join((known[key].description or "").split())
        return UserError(f"'{'.'.join([*above, key])}' is missing", f"add it: {meaning}", value=source)
    return UserError(validation_line(error, location), value=source)


def cells_of(study: Study) -> list[StudyCell]:
    """Return all cells, the baseline first, then as in the file. UserError: a wrong baseline, name, title or axis."""
    if study.cells and study.axes:
        raise UserError("a study has either 'cells' or 'axes'; write the axes' points as cells", value=study.axes)
    found = _combinations(study) if study.axes else _named_cells(study)
    titled: dict[str, str] = {}
    for cell in found:
        for name in study.not_run:
            if name == cell.name:
                raise UserError(f"not_run: '{name}' is a variant, which is run; delete one", value=name)
        if (other := titled.setdefault(cell.title, cell.name)) != cell.name:
            problem = f"variants '{other}' and '{cell.name}' have the same title, '{cell.title}'; change one"
            raise UserError(problem, value=study.written(cell))
    return found


def changes_title(changes: Mapping[str, Any]) -> str:
    """Return `parameter = value, ...`; changes during pre-training end in `from step N`."""
    names, found = _short(changes), []
    for name, value in changes.items():
        if name == CHANGES and value and isinstance(value, dict) and all(isinstance(of, dict) for of in value.values()):
            found += [f"{changes_title(change)} from step {step}" for step, change in value.items()]
        else:
            found.append(f"{names[name].replace('_', ' ')} = {show(value)}")
    return ", ".join(found)


def _short(names: Iterable[str]) -> dict[str, str]:
    """Return dotted name -> its last part, or the whole name if another has the same last part."""
    last = {name: name.rsplit(".", 1)[-1] for name in names}
    return {name: end if list(last.values()).count(end) == 1 else name for name, end in last.items()}


def _named_cells(study: Study) -> list[StudyCell]:
    if not isinstance(study.baseline, str):
        problem = "baseline: points are for axes and there are none; name one of the variants"
        raise UserError(problem, value=study.baseline)
    if study.baseline not in study.cells:
        problem = f"baseline: '{study.baseline}' is no variant"
        raise UserError(problem, "add cells or axes", value=study.baseline, known=study.cells)
    found = []
    for name in sorted(study.cells, key=lambda name: name != study.baseline):
        entry = study.cells[name]
        check_name(name, "variant", IN_CELLS)
        if entry.space and study.tune is None:
            problem = f"variant '{name}' has a space, and the study no 'tune'; add it"
            raise UserError(problem, value=entry.space)
        chosen, overrides = entry.system, overrides_of(entry.set)
        for option, value in chosen.options.items():
            key = like(f"{OPTIONS}.{chosen.name}.{option}", option)
            if key in overrides:
                raise UserError(f"parameter '{key}' is set twice; keep one", value=key)
            overrides[key] = value
        with placed(chosen.name, f"variant '{name}': "):
            system = system_of(chosen.name)
        titles = ["" if chosen.name == DEFAULT_SYSTEM else system.title, changes_title(overrides)]
        title = entry.title or ", ".join(filter(None, titles)) or name
        found.append(StudyCell(name, title, chosen.name, {}, entry.paper, overrides=overrides))
    return found


def value_in_name(value: str) -> str:
    """Write a value as part of a cell's name: custom code without its module, `{name: span, share: 0.3}` as
    `span+share=0.3`."""
    if is_name(f"_{value}", "=+"):
        return value
    plain = re.sub(r"[\w.]+:(?=\w)", "", value.removeprefix("{name: ")).replace(": ", "=").replace(", ", "+")
    return re.sub(r"[^\w.=+-]", "", plain)


def _points(study: Study, axis: str) -> dict[str, StudyCell]:
    """Return name in the file -> cell for the points of an axis: values of a parameter, or named points with their
    settings."""
    given = study.axes[axis]
    if not given:
        raise UserError(f"axis '{axis}' has no points", "list some, or delete it", value=axis)
    found: dict[str, StudyCell] = {}
    for key, value in enumerate(given) if isinstance(given, list) else given.items():
        is_named, source = isinstance(key, str), reach(given, key)
        name = str(key) if is_named else show(value)
        if is_named != isinstance(value, dict) and not (isinstance(value, dict) and "name" in value):
            raise UserError(f"axis '{axis}': list values, or name points that set some, NAME: {{...}}", value=source)
        overrides = overrides_of(value if is_named else {like(axis, source): value})
        if is_named:
            part, title = name, name.replace("_", " ")
        else:
            title = changes_title(overrides)
            part = f"{_short(study.axes)[axis]}={value_in_name(name)}"
        if name in found or any(overrides == other.overrides for other in found.values()):
            raise UserError(f"axis '{axis}': point '{name}' is listed twice", "keep one", value=source)
        if any(part == other.name for other in found.values()):
            remedy = "name the points: NAME: {PARAMETER: VALUE}"
            raise UserError(f"axis '{axis}': two points would be called '{part}'", remedy, value=source)
        points = {axis: value_in_name(name)} if len(study.axes) > 1 else {}
        found[name] = StudyCell(part, title, DEFAULT_SYSTEM, {}, None, points, overrides)
    return found


def _combinations(study: Study) -> list[StudyCell]:
    """Return a cell for every combination of a point of each axis, the baseline first."""
    points, found = {axis: _points(study, axis) for axis in study.axes}, list[StudyCell]()
    if isinstance(study.baseline, str):
        remedy = f"with axes, name a point of each: {{{', '.join(f'{axis}: ...' for axis in points)}}}"
        raise UserError(f"baseline: '{study.baseline}' is no variant", remedy, value=study.baseline)
    named = dict[str, StudyCell]()
    for axis, value in study.baseline.items():
        if axis not in points:
            raise UserError(f"baseline: '{axis}' is no axis", value=axis, known=points)
        if (name := show(value)) not in points[axis]:
            problem = f"baseline: '{name}' is no point of axis '{axis}'"
            raise UserError(problem, value=like(name, axis), known=points[axis])
        named[axis] = points[axis][name]
    for axis in points:
        if axis not in named:
            raise UserError(f"baseline: no point of axis '{axis}'", "add one", value=study.baseline)
    baseline = tuple(named[axis] for axis in points)
    others = (chosen for chosen in itertools.product(*(one.values() for one in points.values())) if chosen != baseline)
    for chosen in (baseline, *others):
        overrides: dict[str, Any] = {}
        for key, value in (pair for point in chosen for pair in point.overrides.items()):
            if key in overrides:
                raise UserError(f"two axes both set '{key}'; merge them into one axis", value=key)
            overrides[key] = value
        name = ",".join(point.name for point in chosen)
        if not is_name(name, IN_CELLS):
            remedy = "name its points with letters, digits and . _ = , + - only: NAME: {PARAMETER: VALUE}"
            raise UserError(f"axes: '{name}' cannot name a variant", remedy, value=study.axes)
        title = ", ".join(point.title for point in chosen)
        at = {axis: name for point in chosen for axis, name in point.points.items()}
        found.append(StudyCell(name, title, DEFAULT_SYSTEM, {}, None, at, overrides))
    return found
