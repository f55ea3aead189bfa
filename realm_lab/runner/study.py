"""A study as a file: experiments/NAME.yaml -> Study. What each key means is said below and in docs/studies.md."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from realm_lab.core.records import validation_line
from realm_lab.errors import UserError
from realm_lab.metrics import CURVES, METRICS
from realm_lab.params.load import PRESETS, mappings, parameter_names, show
from realm_lab.params.yaml_file import read_yaml
from realm_lab.reporting.published import published
from realm_lab.runner.settings import LAUNCHERS, nearest, read_options
from realm_lab.systems.identity import DEFAULT_SYSTEMS
from realm_lab.systems.registry import system_of

DEFAULT_SYSTEM = DEFAULT_SYSTEMS[-1]  # of a cell that names none
Seeds = Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1)]


class Part(BaseModel):
    """A group of keys: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class CellEntry(Part):
    title: str = ""
    """What tables and figures call it; empty: what it changes, as `parameter = value`."""
    system: str = DEFAULT_SYSTEM
    """Which system is trained and evaluated: a registered one, or `package.module:Class`."""
    set: dict[str, Any] = {}
    """Parameters that this cell changes: dotted names, or sections within sections."""
    paper: str | None = None
    """The published number that it corresponds to, such as `table2.realm`."""


class Tune(Part):
    """The same small grid for every cell that pre-trains: the study is reported at each cell's best value as well."""

    parameter: str
    """A parameter of pre-training that no cell changes, such as `pretrain.retriever.learning_rate`."""
    values: Annotated[list[Any], Field(min_length=2)]
    """Its values; the one that the cells have anyway is one of them."""
    seeds: Seeds
    """Of the study's seeds, those that every value is run with; the best values are compared on them alone."""
    by: str = "cloze_exact_match"
    """A curve of pre-training, on dev entities: the best value has the highest mean over the seeds at the end of it."""


class StudyFile(Part):
    """What a study and a search have in common: their keys, and errors that name file and line."""

    question: Annotated[str, Field(min_length=1)]
    """What the study asks, in one sentence; the report answers it."""
    preset: str | None = None
    """Preset of the parameters; empty: that of params.yaml."""
    set: dict[str, Any] = {}
    """Parameters of every cell, over those of params.yaml. The only place for `launch.*`."""
    seeds: Seeds
    """One run of each cell for every seed. Six are the fewest with which a paired test can reach p < .05 twice over."""
    launcher: dict[str, Any] = {}
    """Settings of launchers: `inline`, `local` and `slurm`, each with its own; `default` names the one that is used."""

    @model_validator(mode="before")
    @classmethod
    def _empty_parts(cls, values: Any) -> Any:
        """`realm:` with nothing below is a cell that changes nothing; `set:` with nothing below sets nothing."""
        if not isinstance(values, dict):
            return values
        filled = {key: value for key, value in values.items() if value is not None}
        if isinstance(filled.get("cells"), dict):
            filled["cells"] = {name: {} if cell is None else cell for name, cell in filled["cells"].items()}
        return filled

    _path: Path = PrivateAttr(default=Path("study.yaml"))
    _document: Any = PrivateAttr(default_factory=dict)

    @property
    def name(self) -> str:
        return self._path.stem

    @property
    def path(self) -> Path:
        return self._path

    def problem(self, message: str, *keys: str | int) -> UserError:
        """An error at a place of the file, which `keys` lead to as far as they are there."""
        line = place_of(self._document, keys)
        return UserError(f"{self._path}, line {line}: {message}" if line else f"{self._path}: {message}")

    def choose(self, name: str, known: Collection[str], problem: str, *keys: str | int) -> None:
        """Refuse a name that is none of `known`, and say the nearest one."""
        if name not in known:
            raise self.problem(f"{problem}; the nearest one is '{nearest(name, known)}'", *keys)

    def refuse_twice(self, values: list[Any], *keys: str) -> None:
        """Each value of a list is there once."""
        for place, value in enumerate(values):
            if value in values[:place]:
                raise self.problem(f"{'.'.join(keys)}: {show(value)} is there twice; keep one", *keys, place)

    def read_from(self, path: Path, document: Any) -> None:
        """Say which file it came from; then check what studies and searches have in common."""
        self._path, self._document = path, document
        if self.preset is not None:
            self.choose(self.preset, PRESETS, f"preset '{self.preset}' is not one of {', '.join(PRESETS)}", "preset")
        self.refuse_twice(self.seeds, "seeds")
        for name, settings in self.launcher.items():
            chosen = settings if name == "default" else name
            if chosen not in LAUNCHERS:
                raise self.problem(f"unknown launcher '{chosen}'; choose {', '.join(LAUNCHERS)}", "launcher", name)
            if name != "default" and not isinstance(settings, dict):
                raise self.problem(f"launcher.{name} is a section of settings, not {settings!r}", "launcher", name)
            try:
                if name != "default":
                    read_options(name, settings)
            except UserError as error:
                inside = str(error).partition(":")[0].split(".")[2:]  # launcher.NAME.SETTING: ...
                raise self.problem(str(error), "launcher", name, *inside) from None
        overrides_of(self, self.set, "set", launch=True)


class Study(StudyFile):
    baseline: str | dict[str, Any]
    """The cell that the others are compared with: its name under `cells`, or, with `axes`, a point of every axis."""
    cells: dict[str, CellEntry] = {}
    """Named cells. Each says what it changes in the study's parameters."""
    axes: dict[str, list[Any] | dict[str, Any]] = {}
    """In the place of cells, every combination of the points of some axes. Axis -> its points: a parameter with a list
    of values, or any name with named points, each of which says which parameters it sets."""
    metrics: list[str] = ["exact_match", "recall_at_5", "retrieval_utility_end"]
    """What is compared, the most important first."""
    figures: list[str] = []
    """Figures of the study's own, `package.module:function`: called with its StudyFrames, it returns a figure."""
    tune: Tune | None = None
    """A grid that is searched for each cell, so that the study is reported at each cell's best value as well."""


File = TypeVar("File", bound=StudyFile)


def load_study(path: Path | str) -> Study:
    """Read and check a study file; what the cells are is checked by `plan_study`. UserError: one line with the file,
    the line, what is wrong there, and the remedy."""
    study = read_study_file(Path(path), Study, {"tune": Tune, "cells": CellEntry})
    _check(study)
    return study


def read_study_file(path: Path, model: type[File], parts: Mapping[str, type[Part]]) -> File:
    """A study or a search; `parts`: the keys that hold groups of keys, or named groups (`cells`)."""
    if not path.is_file():
        near = nearest(path.stem, sorted(other.stem for other in path.parent.glob("*.yaml")))
        remedy = f"did you mean {path.with_name(f'{near}.yaml')}?" if near else "name a file, experiments/NAME.yaml"
        raise UserError(f"{path}: no such study; {remedy}")
    document = read_yaml(path)
    try:
        study = model(**json.loads(json.dumps(document, default=str)))  # as Python's own containers and scalars
    except ValidationError as error:
        raise UserError(_explain(error, path, document, {"": model, **parts})) from None
    study.read_from(path, document)
    return study


def overrides_of(study: StudyFile, given: Mapping[str, Any], *keys: str | int, launch: bool = False) -> dict[str, Any]:
    """Dotted name -> value of what a `set` or a point says, sections spelled out; `keys` lead to it in the file.
    UserError: an unknown parameter, a section without a value, or one that is no part of a run's identity."""
    found: dict[str, Any] = {}
    for name, value, place in _leaves(given, "", keys):
        _check_parameter(study, name, value, place, launch)
        if name in found:
            raise study.problem(f"parameter '{name}' is set twice; keep one", *place)
        found[name] = value
    return found


def place_of(document: Any, keys: Iterable[str | int]) -> int | None:
    """The 1-based line of a key or item of a YAML document, or of the nearest one above it."""
    line = None
    for key in keys:
        if not _has(document, key):
            break
        marks = getattr(document, "lc", None)
        if marks is not None and key in (marks.data or {}):
            line = marks.data[key][0] + 1
        document = document[key]
    return line


def _has(document: Any, key: str | int) -> bool:
    if isinstance(document, list):
        return isinstance(key, int) and key < len(document)
    return isinstance(document, dict) and key in document


def chosen_by() -> list[str]:
    """The curves by which one value of a parameter can be better than another: measured on development data."""
    return [name for name, curve in CURVES.items() if curve.split == "dev" and curve.better == "up"]


def _check(study: Study) -> None:
    study.refuse_twice(study.metrics, "metrics")
    for place, metric in enumerate(study.metrics):
        study.choose(metric, METRICS, f"metrics: unknown metric '{metric}'", "metrics", place)
    for place, name in enumerate(study.figures):
        module, colon, function = name.partition(":")
        try:
            is_there = bool(colon and function) and importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            is_there = False
        if not is_there:
            message = f"figures: '{name}' is no function that can be imported; write package.module:function"
            raise study.problem(message, "figures", place)
    for name, cell in study.cells.items():
        overrides_of(study, cell.set, "cells", name, "set")
        try:
            system_of(cell.system)
        except UserError as error:
            raise study.problem(f"cell '{name}': {error}", "cells", name, "system") from None
        try:
            if cell.paper is not None:
                published(cell.paper)
        except UserError as error:
            raise study.problem(f"cell '{name}': {error}", "cells", name, "paper") from None


def _check_parameter(study: StudyFile, name: str, value: Any, place: tuple[str | int, ...], launch: bool) -> None:
    if name == "preset":
        raise study.problem("parameter 'preset' is not set here; use the study's own key 'preset'", *place)
    if name == "seeds":
        raise study.problem("parameter 'seeds' is no part of a cell; use the study's own key 'seeds'", *place)
    if not launch and name.split(".")[0] == "launch":
        raise study.problem(
            f"parameter '{name}' changes no result, so no cell may change it; move it to the study's 'set'", *place
        )
    if name not in (known := _parameters()):
        near = nearest(name, known)
        raise study.problem(f"unknown parameter '{name}'; the nearest valid one is '{near}'", *place)
    if known[name]:
        raise study.problem(f"'{name}' is a section; name a parameter in it, such as '{known[name]}'", *place)
    if isinstance(value, dict) and name not in mappings():
        raise study.problem(f"parameter '{name}' is a value, not a section; write it as {name}: VALUE", *place)


@functools.cache
def _parameters() -> dict[str, str]:
    """Every dotted name -> "" for a parameter, a parameter in it for a section."""
    names = parameter_names()
    return {name: next((other for other in names if other.startswith(f"{name}.")), "") for name in names}


def _leaves(
    given: Mapping[str, Any], prefix: str, keys: tuple[str | int, ...]
) -> Iterator[tuple[str, Any, tuple[str | int, ...]]]:
    """(dotted name, value, place) of everything in nested sections."""
    for key, value in given.items():
        name, place = f"{prefix}{key}", (*keys, key)
        if isinstance(value, dict) and value and _parameters().get(name):
            yield from _leaves(value, f"{name}.", place)
        else:
            yield name, value, place


def _explain(error: ValidationError, path: Path, document: Any, models: Mapping[str, type[BaseModel]]) -> str:
    """The first thing wrong, unknown keys before others; `models` are those of the file ("") and of its parts."""
    problems = error.errors()
    problem = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
    inside, location = document, []
    for part in problem["loc"]:  # others than those in the file name the types of a union
        if _has(inside, part):
            location.append(part)
            inside = inside[part]
    line = place_of(document, location)
    where = f"{path}, line {line}" if line else str(path)
    if problem["type"] == "extra_forbidden":
        *above, key = map(str, problem["loc"])
        near = nearest(key, models[above[0] if above else ""].model_fields)
        group = f" of {'.'.join(above)}" if above else ""
        return f"{where}: unknown key '{key}'{group}; the nearest valid one is '{near}'"
    if problem["type"] == "missing":
        remedies = {
            "question": "say in a sentence what the study asks",
            "seeds": "list the seeds, such as [0, 1, 2, 3, 4, 5]",
            "space": "say which parameters to search, NAME: {low: ..., high: ...} or {choices: [...]}",
            "baseline": "name the cell that the others are compared with",
            "tune.parameter": "name the parameter, such as pretrain.retriever.learning_rate",
            "tune.values": "list the values that every cell is run at",
            "tune.seeds": "list the seeds of the study that each value is run with",
        }
        key = ".".join(map(str, problem["loc"]))
        return f"{where}: '{key}' is missing; {remedies.get(key, 'add it')}"
    return f"{where}: {validation_line(error, location)}"
