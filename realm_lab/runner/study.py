"""A study as a file: experiments/NAME.yaml -> Study -> its cells, the baseline first: the named ones, or every
combination of the points of its axes. The keys are explained below and in docs/study_file.md."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, ValidationError, model_validator

from realm_lab.core.files import check_name, is_name
from realm_lab.core.plugins import Choice, ChoiceField, import_modules
from realm_lab.core.records import validation_line
from realm_lab.errors import UserError, suggestion
from realm_lab.params.load import (
    OPTIONS,
    Origin,
    Source,
    is_divided,
    is_option,
    is_part,
    laid_over,
    parameter_fields,
    preset_values,
    read_source,
    show,
    suggest_parameter,
)
from realm_lab.params.yaml_file import has_key, line_of, read_yaml
from realm_lab.reporting.published import published
from realm_lab.runner.launchers import LauncherSettings, LocalOptions, Part, SlurmOptions, no_setting
from realm_lab.runner.seeds import LIST, RULE, SeedList, SeedsOrRule, UntilDecided
from realm_lab.runner.space import Dimension, Space, Tuning
from realm_lab.systems.identity import DEFAULT_SYSTEMS
from realm_lab.systems.registry import CHANGES, system_of

DEFAULT_SYSTEM = DEFAULT_SYSTEMS[-1]  # of a cell that names none
IN_CELLS = "=,+"  # further characters in names of cells
Place = tuple[str | int, ...]


def _tag(name: str) -> str:
    """Accept the names that MLflow accepts, except the mirror's."""
    if not re.fullmatch(r"(?!realm\.|mlflow\.)[\w.\- :/]{1,250}", name):
        rules = "letters, digits and _ - . / : blank, and neither realm. nor mlflow. in front"
        raise ValueError(f"no name of a tag; write {rules}")
    return name


def _published(name: str) -> str:
    published(name)
    return name


class CellEntry(Part):
    title: str = ""
    """Name in tables and figures; empty: its changes, as `parameter = value`."""
    system: ChoiceField = Choice(DEFAULT_SYSTEM)
    """System that is trained and evaluated: a registered one, or `package.module:Class`; with options,
    `{name: dpr, steps: 300}`."""
    set: dict[str, Any] = {}
    """Parameters that this cell changes: dotted names, or sections within sections."""
    paper: Annotated[str, AfterValidator(_published)] | None = None
    """The published number that it corresponds to, such as `table2.realm`."""
    space: Annotated[Space, Field(min_length=1)] | None = None
    """The space that `tune` tries for this cell; empty: that of `tune`."""


class StudyFile(Part):
    """Common part of a study and a search: their keys, and errors that name file and line."""

    PARTS: ClassVar[dict[str, type[BaseModel]]] = {
        "launcher": LauncherSettings,
        "launcher.local": LocalOptions,
        "launcher.slurm": SlurmOptions,
    }  # the groups of keys in the file

    question: Annotated[str, Field(min_length=1)]
    """The question of the study, in one sentence; the report answers it."""
    preset: str | None = None
    """Preset of the parameters; empty: that of params.yaml."""
    set: dict[str, Any] = {}
    """Parameters of every cell, over those of params.yaml. `launch.*` may only be set here."""
    seeds: SeedList
    """One run of a trial for every seed; its value is their mean."""
    plugins: list[str] = []
    """Your modules that register plug-ins, besides those that params.yaml lists."""
    launcher: LauncherSettings = LauncherSettings()
    """Settings of launchers, `local` and `slurm`; `default` names the one that is used."""

    @model_validator(mode="before")
    @classmethod
    def _empty_parts(cls, values: Any) -> Any:
        """Accept empty keys: `realm:` with nothing below is a cell without changes; an empty `set:` sets nothing."""
        if not isinstance(values, dict):
            return values
        filled = {key: value for key, value in values.items() if value is not None}
        if isinstance(filled.get("cells"), dict):
            filled["cells"] = {name: {} if cell is None else cell for name, cell in filled["cells"].items()}
        return filled

    _path: Path = PrivateAttr(default=Path("study.yaml"))
    _document: Any = PrivateAttr(default_factory=dict)
    _common: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def name(self) -> str:
        return self._path.stem

    @property
    def path(self) -> Path:
        return self._path

    @property
    def common(self) -> dict[str, Any]:
        """The parameters that `set` changes in every cell, dotted name -> value."""
        return self._common

    def source(self, path: Path, preset: str | None) -> Source:
        """Read params.yaml with the preset of the study, or another, and with its plug-ins."""
        preset = preset or self.preset
        source = read_source(path, {"preset": preset} if preset else {})
        listed = [*(source.values.get("plugins") or []), *self.plugins]
        return source.under({"plugins": listed}) if self.plugins else source

    def origin(self, *keys: str | int, prefix: str = "") -> Origin:
        """Return a position in the file; `keys` lead to it as far as they exist."""
        return Origin(self._path, self._document, keys, prefix)

    def problem(self, message: str, *keys: str | int) -> UserError:
        """Return an error at a position in the file."""
        return self.origin(*keys).error(message, "")

    @contextmanager
    def at(self, *keys: str | int, prefix: str = "") -> Iterator[None]:
        """Attach this position of the file to a UserError raised inside."""
        try:
            yield
        except UserError as error:
            raise self.problem(f"{prefix}{error}", *keys) from None

    def choose(self, name: str, known: Collection[str], problem: str, *keys: str | int) -> None:
        """Refuse a name that is not in `known`, and suggest another."""
        if name not in known:
            raise self.problem(f"{problem}; {suggestion(name, known)}", *keys)

    def refuse_twice(self, values: list[Any], *keys: str) -> None:
        """Check that each value is listed once."""
        for place, value in enumerate(values):
            if value in values[:place]:
                raise self.problem(f"{'.'.join(keys)}: {show(value)} is listed twice; keep one", *keys, place)

    def read_from(self, path: Path, document: Any) -> None:
        """Attach the file to errors, and check the common part of studies and searches."""
        self._path, self._document = path, document
        with self.at("plugins"):
            import_modules("plugins", self.plugins)
        if self.preset is not None:
            with self.at("preset"):
                preset_values(self.preset, "")
        if isinstance(self.seeds, list):
            self.refuse_twice(self.seeds, "seeds")
        self._common = overrides_of(self, self.set, "set", launch=True)


class Study(StudyFile):
    PARTS: ClassVar[dict[str, type[BaseModel]]] = {
        **StudyFile.PARTS,
        "cells": CellEntry,
        "seeds": UntilDecided,
        "tune": Tuning,
    }

    seeds: SeedsOrRule  # type: ignore[assignment]
    """One run of each cell for every seed; at least six seeds are needed for significance, however many metrics and
    cells there are. Or `{until: decided, at_least: 4, at_most: 16}`: from the fourth seed on each cell takes one more
    until its first metric differs from the baseline's or is equivalent within `delta`, 16 at most (`at_most` is 6 or
    more: fewer seeds cannot be significant). `first` (0) is the first of them."""

    baseline: str | dict[str, Any]
    """The cell that the others are compared with: its name under `cells`, or, with `axes`, a point of every axis."""
    cells: dict[str, CellEntry] = {}
    """Named cells, each with its changes of the study's parameters."""
    axes: dict[str, list[Any] | dict[str, Any]] = {}
    """Instead of cells: run every combination of these axis values. Axis -> its points: a parameter with a list
    of values, or any name with named points, each with the parameters that it sets."""
    metrics: list[ChoiceField] = [Choice("exact_match"), Choice("recall_at_5"), Choice("retrieval_utility_end")]
    """Metrics to compare, the most important first: all cells in all of these are one family of tests. A custom metric
    is `package.module:NAME`: a function of the predictions, which may have options (`{name: ..., OPTION: VALUE}`), or a
    `Metric` that a system measures."""
    delta: dict[str, Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)]] = {}
    """Metric -> the largest difference that does not matter, in its unit and below its range: the report shows if a
    larger one is ruled out."""
    tune: Tuning | None = None
    """Tuning of every cell before the study's own seeds, with the same number of trials; empty: none."""
    not_run: dict[str, Annotated[str, Field(min_length=1)]] = {}
    """Cells deliberately left out -> the reason; a table of the report."""
    note: str = ""
    """A note for people, shown in MLflow under the question."""
    tags: dict[Annotated[str, AfterValidator(_tag)], str] = {}
    """Tags of the study and its runs in MLflow: name -> value."""
    on_finish: str = ""
    """Command or webhook (a URL) to call when the study ends; it gets the verdict as JSON."""
    figures: list[ChoiceField] = []
    """More figures: the name of one, or `package.module:function`, which is called with the StudyFrames of the study
    and its options, and returns a figure of matplotlib."""


File = TypeVar("File", bound=StudyFile)


def read_study_file(path: Path, model: type[File]) -> File:
    """Read a study or a search, check their common part, and import its plug-ins. UserError: one line with the file,
    the line, the fault and the remedy."""
    document = read_yaml(path)
    try:
        study = model(**json.loads(json.dumps(document, default=str)))  # as Python's own containers and scalars
    except ValidationError as error:
        raise _explained(error, path, document, model) from None
    study.read_from(path, document)
    return study


def overrides_of(study: StudyFile, given: Mapping[str, Any], *keys: str | int, launch: bool = False) -> dict[str, Any]:
    """Return dotted name -> value of a `set` or a point, with sections spelled out; `keys` lead to it in the file.
    UserError: an unknown parameter, a section without a value, or one that is not part of a run's identity."""
    found: dict[str, Any] = {}
    for name, value, place in _leaves(given, "", keys):
        _check_parameter(study, name, place, launch)
        if name in found:
            raise study.problem(f"parameter '{name}' is set twice; keep one", *place)
        found[name] = value
    return found


def _check_parameter(study: StudyFile, name: str, place: Place, launch: bool) -> None:
    if name in ("preset", "seeds"):
        raise study.problem(f"parameter '{name}' is no part of a cell; use the study's own key '{name}'", *place)
    if not launch and name.split(".")[0] == "launch":
        raise study.problem(
            f"parameter '{name}' changes no result, so no cell may change it; move it to the study's 'set'", *place
        )
    if is_option(name):
        return
    if name not in (known := _parameters()):
        raise study.problem(f"unknown parameter '{name}'; {suggest_parameter(name)}", *place)
    if known[name]:
        raise study.problem(f"'{name}' is a section; name a parameter in it, such as '{known[name]}'", *place)


@functools.cache
def _parameters() -> dict[str, str]:
    """Return every dotted name -> "" for a parameter, a parameter in it for a section."""
    names = parameter_fields()
    return {name: next((other for other in names if other.startswith(f"{name}.")), "") for name in names}


def _leaves(given: Mapping[str, Any], prefix: str, keys: Place) -> Iterator[tuple[str, Any, Place]]:
    """Yield (dotted name, value, keys) for everything in nested sections."""
    for key, value in given.items():
        name, place = f"{prefix}{key}", (*keys, key)
        is_section = _parameters().get(name) or name.partition(".")[0] == OPTIONS
        is_options = isinstance(value, dict) and is_part(name) and "name" not in value
        if is_options or (isinstance(value, dict) and value and is_section and is_divided(name, prefix)):
            yield from _leaves(value, f"{name}.", place)
        else:
            yield name, value, place


def _explained(error: ValidationError, path: Path, document: Any, model: type[StudyFile]) -> UserError:
    """Return an error about the first fault of a file, unknown keys before others."""
    problems = error.errors()
    problem = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
    inside, location = document, []
    given = [part for part in problem["loc"] if part not in (LIST, RULE)]
    for part in given:  # others than those in the file name the types of a union
        if has_key(inside, part):
            location.append(part)
            inside = inside[part]
    line = line_of(document, location)
    *above, key = map(str, given)
    group = model.PARTS.get(".".join(above)) or model.PARTS[above[0]] if above and above[0] in model.PARTS else model
    group = Dimension if "space" in above else group
    known = {field.alias or name: field for name, field in group.model_fields.items()}
    if problem["type"] == "extra_forbidden" and key in _parameters():
        return UserError(f"'{key}' is a parameter", "put it under 'set:'", path=path, line=line)
    if problem["type"] == "extra_forbidden":
        of = f" of {'.'.join(above)}" if above else ""
        remedy = (no_setting if group is SlurmOptions else suggestion)(key, known)
        return UserError(f"unknown key '{key}'{of}", remedy, path=path, line=line)
    if problem["type"] == "missing":
        meaning = " ".join((known[key].description or "").split())
        return UserError(f"'{'.'.join([*above, key])}' is missing", f"add it: {meaning}", path=path, line=line)
    return UserError(validation_line(error, location), path=path, line=line)


class Cell(NamedTuple):
    """One cell of a study: the common part of all its runs. `overrides` are its settings over params.yaml, dotted name
    -> value, the study's `set` included. `changes`, known in a plan, are its differences from the baseline in the
    resolved parameters. `places`: the keys in the file that set each parameter."""

    name: str
    title: str
    system: str
    overrides: dict[str, Any]
    changes: dict[str, Any]
    paper: str | None = None
    places: Mapping[str, Place] = MappingProxyType({})
    points: Mapping[str, str] = MappingProxyType({})  # axis -> its point
    trial_of: str = ""  # the tuned cell that this one is a trial of


class Point(NamedTuple):
    """One point of an axis; `name` is its name in the file, `part` its part of a cell's name."""

    name: str
    part: str
    title: str
    overrides: dict[str, Any]
    place: Place


def cells_of(study: Study) -> list[Cell]:
    """Return all cells, the baseline first, then as in the file. UserError: a wrong baseline, name, title or axis."""
    if study.cells and study.axes:
        raise study.problem("a study has 'cells' or 'axes'; write the axes' points as cells", "axes")
    found = _combinations(study) if study.axes else _named_cells(study)
    titled: dict[str, str] = {}
    for cell in found:
        if cell.name in study.not_run:
            raise study.problem(f"not_run: '{cell.name}' is a cell, which is run; delete one", "not_run", cell.name)
        if (other := titled.setdefault(cell.title, cell.name)) != cell.name:
            cells = f"cells '{other}' and '{cell.name}'"
            raise study.problem(f"{cells} have the same title, '{cell.title}'; change one", "cells", cell.name)
    return [cell._replace(overrides=laid_over(study.common, cell.overrides)) for cell in found]


def changes_title(changes: Mapping[str, Any]) -> str:
    """`parameter = value, ...`; changes during pre-training with their step."""
    names, found = _short(changes), []
    for name, value in changes.items():
        if name == CHANGES and value:
            found += [f"{changes_title(change)} from step {step}" for step, change in value.items()]
        else:
            found.append(f"{names[name].replace('_', ' ')} = {show(value)}")
    return ", ".join(found)


def early_changes(document: Any) -> None:
    """Move the changes during pre-training to its steps 1, 2, ..., in place, for runs of few steps."""
    found = list(_changes_in(document))
    steps = sorted({int(step) for changes in found for step in changes})
    for changes in found:
        moved = {str(steps.index(int(step)) + 1): change for step, change in changes.items()}
        changes.clear()
        changes.update(moved)


def _changes_in(document: Any) -> Iterator[dict[str, Any]]:
    for key, value in document.items() if isinstance(document, dict) else ():
        if key.rpartition(".")[2] == "changes" and isinstance(value, dict):
            yield value
        else:
            yield from _changes_in(value)


def _short(names: Iterable[str]) -> dict[str, str]:
    """Return dotted name -> its last part, or the whole name if another ends in the same."""
    last = {name: name.rsplit(".", 1)[-1] for name in names}
    return {name: end if list(last.values()).count(end) == 1 else name for name, end in last.items()}


def _named_cells(study: Study) -> list[Cell]:
    if not isinstance(study.baseline, str):
        raise study.problem("baseline: points are for axes and there are none; name one of the cells", "baseline")
    if study.baseline not in study.cells:
        remedy = suggestion(study.baseline, study.cells) if study.cells else "add cells or axes"
        raise study.problem(f"baseline: '{study.baseline}' is no cell; {remedy}", "baseline")
    found = []
    for name in sorted(study.cells, key=lambda name: name != study.baseline):
        entry = study.cells[name]
        with study.at("cells", name):
            check_name(name, "cell", IN_CELLS)
        if entry.space and study.tune is None:
            raise study.problem(f"cell '{name}' has a space, and the study no 'tune'; add it", "cells", name, "space")
        with study.at("cells", name, "system", prefix=f"cell '{name}': "):
            system = system_of(entry.system.name)
        own = overrides_of(study, entry.set, "cells", name, "set")
        places: dict[str, Place] = {key: ("cells", name, "set", key) for key in own}
        for option, value in entry.system.options.items():
            key, place = f"{OPTIONS}.{entry.system.name}.{option}", ("cells", name, "system", option)
            if key in own:
                raise study.problem(f"parameter '{key}' is set twice; keep one", *place)
            own[key], places[key] = value, place
        titles = ["" if entry.system.name == DEFAULT_SYSTEM else system.title, changes_title(own)]
        title = entry.title or ", ".join(filter(None, titles)) or name
        found.append(Cell(name, title, entry.system.name, own, {}, entry.paper, places))
    return found


def value_in_name(value: str) -> str:
    """Write a value as part of a cell's name: custom code by its name, `{name: span, share: 0.3}` as
    `span+share=0.3`."""
    if is_name(f"_{value}", "=+"):
        return value
    plain = re.sub(r"[\w.]+:(?=\w)", "", value.removeprefix("{name: ")).replace(": ", "=").replace(", ", "+")
    return re.sub(r"[^\w.=+-]", "", plain)


def _baseline_points(study: Study, points: Mapping[str, Sequence[Point]]) -> tuple[Point, ...]:
    if isinstance(study.baseline, str):
        remedy = f"with axes, name a point of each: {{{', '.join(f'{axis}: ...' for axis in points)}}}"
        raise study.problem(f"baseline: '{study.baseline}' is no cell; {remedy}", "baseline")
    for axis in study.baseline:
        study.choose(axis, points, f"baseline: '{axis}' is no axis", "baseline", axis)
    chosen = []
    for axis, there in points.items():
        if axis not in study.baseline:
            raise study.problem(f"baseline: no point of axis '{axis}'; add one", "baseline")
        named, wanted = {point.name: point for point in there}, show(study.baseline[axis])
        study.choose(wanted, named, f"baseline: '{wanted}' is no point of axis '{axis}'", "baseline", axis)
        chosen.append(named[wanted])
    return tuple(chosen)


def _points(study: Study, axis: str) -> list[Point]:
    """Return the points of an axis: values of a parameter, or names with their settings."""
    given = study.axes[axis]
    if not given:
        raise study.problem(f"axis '{axis}' has no points; list some, or delete it", "axes", axis)
    found: list[Point] = []
    for key, value in enumerate(given) if isinstance(given, list) else given.items():
        place: Place = ("axes", axis, key)
        is_named = isinstance(key, str)
        if is_named != isinstance(value, dict) and not (isinstance(value, dict) and "name" in value):
            raise study.problem(f"axis '{axis}': list values, or name points that set some, NAME: {{...}}", *place)
        overrides = overrides_of(study, value if is_named else {axis: value}, *place)
        if is_named:
            point = Point(str(key), str(key), str(key).replace("_", " "), overrides, place)
        else:
            part = f"{_short(study.axes)[axis]}={value_in_name(show(value))}"
            point = Point(show(value), part, changes_title(overrides), overrides, place)
        if any(point.name == other.name or point.overrides == other.overrides for other in found):
            raise study.problem(f"axis '{axis}': point '{point.name}' is listed twice; keep one", *place)
        if any(point.part == other.part for other in found):
            remedy = "name the points: NAME: {PARAMETER: VALUE}"
            raise study.problem(f"axis '{axis}': two points would be called '{point.part}'; {remedy}", *place)
        found.append(point)
    return found


def _combinations(study: Study) -> list[Cell]:
    points = {axis: _points(study, axis) for axis in study.axes}
    baseline = _baseline_points(study, points)
    others = (chosen for chosen in itertools.product(*points.values()) if chosen != baseline)
    return [_combined(study, chosen) for chosen in (baseline, *others)]


def _combined(study: Study, chosen: Sequence[Point]) -> Cell:
    """Return the cell of a point of each axis."""
    places: dict[str, Place] = {}
    overrides: dict[str, Any] = {}
    for point in chosen:
        for key in point.overrides.keys() & overrides.keys():
            raise study.problem(f"two axes both set '{key}'; merge them into one axis", *point.place)
        overrides |= point.overrides
        places |= dict.fromkeys(point.overrides, point.place)
    name = ",".join(point.part for point in chosen)
    if not is_name(name, IN_CELLS):
        remedy = "name its points with letters, digits and . _ = , + - only: NAME: {PARAMETER: VALUE}"
        raise study.problem(f"axes: '{name}' cannot name a cell; {remedy}", "axes")
    title = ", ".join(point.title for point in chosen)
    points = {axis: value_in_name(point.name) for axis, point in zip(study.axes, chosen, strict=True)}
    return Cell(name, title, DEFAULT_SYSTEM, overrides, {}, None, places, points=points)
