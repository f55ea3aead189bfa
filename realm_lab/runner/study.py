"""A study as a file: experiments/NAME.yaml -> Study. What each key means is said below and in docs/studies.md."""

from __future__ import annotations

import difflib
import functools
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from realm_lab.errors import UserError
from realm_lab.metrics import CURVES, METRICS
from realm_lab.params.load import PRESETS, mappings, parameter_names
from realm_lab.params.yaml_file import line_of, read_yaml
from realm_lab.reporting.published import published
from realm_lab.runner.settings import LAUNCHERS, read_options
from realm_lab.systems.identity import DEFAULT_SYSTEMS
from realm_lab.systems.registry import system_of

DEFAULT_SYSTEM = DEFAULT_SYSTEMS[-1]  # of a cell that names none
Seeds = Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1)]


class Part(BaseModel):
    """A group of keys: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class CellEntry(Part):
    """One cell under `cells`."""

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
        """The file's name without its ending."""
        return self._path.stem

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def problem(self, message: str, *keys: str | int) -> UserError:
        """An error at a place of the file, which `keys` lead to as far as they are there."""
        line = place_of(self._document, keys)
        return UserError(f"{self._path}, line {line}: {message}" if line else f"{self._path}: {message}")

    def read_from(self, path: Path, document: Any) -> None:
        """Say which file it came from; then check what studies and searches have in common."""
        self._path, self._document = path, document
        if self.preset is not None and self.preset not in PRESETS:
            near = nearest(self.preset, PRESETS)
            raise self.problem(
                f"preset '{self.preset}' is not one of {', '.join(PRESETS)}; did you mean '{near}'?", "preset"
            )
        for place, seed in enumerate(self.seeds):
            if seed in self.seeds[:place]:
                raise self.problem(f"seeds: {seed} is named twice; name each seed once", "seeds", place)
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
    """The keys of a study file."""

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
    """Read and check a study file; what the cells are is checked by `plan_study`.

    Raises:
        UserError: one line with the file, the line, what is wrong there, and the remedy.
    """
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
    _check_keys(document, model, path, document, ())
    for key, part in parts.items():
        found = document.get(key)
        groups: dict[tuple[str, ...], Any] = {(key,): found} if key != "cells" else {}
        if key == "cells" and isinstance(found, dict):
            groups = {(key, str(name)): cell for name, cell in found.items()}
        for keys, group in groups.items():
            if isinstance(group, dict):
                _check_keys(group, part, path, document, keys)
    try:
        study = model(**_plain(document))
    except ValidationError as error:
        raise UserError(_explain(error.errors()[0], path, document)) from None
    study.read_from(path, document)
    return study


def overrides_of(study: StudyFile, given: Mapping[str, Any], *keys: str | int, launch: bool = False) -> dict[str, Any]:
    """Dotted name -> value of what a `set` or a point says, sections spelled out; `keys` lead to it in the file.

    Raises:
        UserError: an unknown parameter, a section without a value, or one that is no part of a run's identity.
    """
    found: dict[str, Any] = {}
    for name, value, place in _leaves(given, "", keys):
        _check_parameter(study, name, value, place, launch)
        if name in found:
            raise study.problem(f"parameter '{name}' is set twice; keep one", *place)
        found[name] = value
    return found


def nearest(name: str, known: Iterable[str]) -> str:
    """The name that `name` was probably meant to be, or "" when there are none."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)), "")


def place_of(document: Any, keys: Iterable[str | int]) -> int | None:
    """The 1-based line of a key or item of a YAML document, or of the nearest one above it."""
    line = None
    for key in keys:
        if isinstance(key, str):
            found = line_of(document, [key])
            inside = isinstance(document, dict) and key in document
        else:
            marks = getattr(document, "lc", None)
            inside = isinstance(document, list) and 0 <= key < len(document)
            found = marks.data[key][0] + 1 if inside and marks is not None and marks.data else None
        if not inside:
            break
        line, document = found or line, document[key]
    return line


def _check_keys(
    found: Mapping[str, Any], model: type[BaseModel], path: Path, document: Any, keys: tuple[str, ...]
) -> None:
    for key in found:
        if key not in model.model_fields:
            line = place_of(document, (*keys, str(key)))
            where = f"{path}, line {line}" if line else f"{path}"
            inside = f" of {'.'.join(keys)}" if keys else ""
            near = nearest(str(key), model.model_fields)
            raise UserError(f"{where}: unknown key '{key}'{inside}; the nearest valid one is '{near}'")


def chosen_by() -> list[str]:
    """The curves by which one value of a parameter can be better than another: measured on development data."""
    return [name for name, curve in CURVES.items() if curve.split == "dev" and curve.better == "up"]


def _check(study: Study) -> None:
    """What does not need the cells."""
    for place, metric in enumerate(study.metrics):
        if metric not in METRICS:
            near = nearest(metric, METRICS)
            raise study.problem(f"metrics: unknown metric '{metric}'; the nearest one is '{near}'", "metrics", place)
        if metric in study.metrics[:place]:
            raise study.problem(f"metrics: '{metric}' is named twice; name each once", "metrics", place)
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


def _plain(value: Any) -> Any:
    """YAML's containers and scalars as Python's own."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    for kind in (str, float):  # ruamel keeps the spelling in a type of its own
        if isinstance(value, kind):
            return kind(value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _inside(document: Any, location: Iterable[str | int]) -> list[str | int]:
    """The parts of pydantic's location that are in the file; others name the types of a union."""
    found: list[str | int] = []
    for part in location:
        is_item = isinstance(document, list) and isinstance(part, int) and part < len(document)
        if is_item or (isinstance(document, dict) and part in document):
            found.append(part)
            document = document[part]
    return found


def _explain(problem: Any, path: Path, document: Any) -> str:
    location = _inside(document, problem["loc"]) if problem["type"] != "missing" else list(problem["loc"])
    line = place_of(document, location)
    where = f"{path}, line {line}" if line else str(path)
    key = ".".join(str(part) for part in location)
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
        return f"{where}: '{key}' is missing; {remedies.get(key, 'add it')}"
    message = problem["msg"].removeprefix("Value error, ")
    given = problem.get("input")
    shown = f" (given: {given!r})" if not isinstance(given, dict | BaseModel) else ""
    return f"{where}: {key}: {message[0].lower()}{message[1:]}{shown}"
