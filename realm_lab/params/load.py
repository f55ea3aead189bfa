"""params.yaml -> Params: presets, overrides, and errors that name the line.

The types (parameters.py) hold the paper's values; a preset (presets/NAME.yaml) says what it changes, and a line of
params.yaml that is not empty changes it once more.
"""

from __future__ import annotations

import difflib
import functools
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from realm_lab.core.records import cut, validation_line
from realm_lab.errors import UserError
from realm_lab.params.checkpoint import with_sizes
from realm_lab.params.parameters import Params
from realm_lab.params.yaml_file import line_of, parse_yaml, read_yaml

PRESETS = ("toy", "smoke", "real", "paper")
PRESET_FOLDER = Path(__file__).parent / "presets"


def load(path: Path | str = "params.yaml", overrides: Mapping[str, Any] | None = None) -> Params:
    """Read `path`, lay it over its preset, then `overrides` (dotted key -> value); validate.

    UserError: one line naming the key, the nearest valid one, and the line of the file, or the override.
    """
    source = read_source(path, overrides)
    try:
        return Params(**source.values)
    except ValidationError as error:
        raise UserError(explain(error, source.path, source.document, overrides)) from None


class Source(NamedTuple):
    """A parameter file over its preset, nothing validated yet. `document` knows the lines of the file."""

    path: Path
    document: Any
    values: dict[str, Any]


def read_source(path: Path | str, overrides: Mapping[str, Any] | None = None) -> Source:
    """`path` over its preset, with `overrides` (dotted key -> value) on top; one of them may be the preset.

    A file that does not exist is one without a line where the preset is among the overrides.
    """
    path, overrides = Path(path), _spelled_out(overrides or {})
    document = {} if overrides.get("preset") and not path.exists() else read_yaml(path)
    _check_names(document, document, path)
    for key in overrides:
        if key not in parameter_fields():
            raise _unknown(f"--set {cut(key)}", key)
    given = lay_over(_without_empty(document), overrides)
    preset = given.get("preset", "toy")
    where: Path | str = "--preset" if "preset" in overrides else path
    values = _merge(preset_values(preset, where), given)
    values["preset"] = preset
    return Source(path, document, with_sizes(values, given))


def _spelled_out(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Sections among the overrides, such as pretrain={steps: 5}, as one override for each of their parameters."""
    given: dict[str, Any] = {}
    for key, value in overrides.items():
        given |= flatten(value, f"{key}.") if isinstance(value, dict) and is_section(key) else {key: value}
    return given


def lay_over(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of nested `values` with `overrides` (dotted key -> value) on top."""
    top: dict[str, Any] = {}
    for key, value in overrides.items():
        *parents, last = key.split(".")
        inside = top
        for parent in parents:
            inside = inside.setdefault(parent, {})
        inside[last] = value
    return _merge(values, top)


def preset_values(name: Any, source: Path | str = "params.yaml") -> dict[str, Any]:
    """What preset `name` changes relative to the paper's defaults."""
    if name not in PRESETS:
        near = difflib.get_close_matches(str(name), PRESETS, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise UserError(f"{source}: preset '{cut(str(name))}' is not one of {', '.join(PRESETS)}{hint}")
    values = _without_empty(read_yaml(PRESET_FOLDER / f"{name}.yaml"))
    base = values.pop("preset", None)  # the preset that this one changes
    return _merge(preset_values(base), values) if base else values


def flatten(params: BaseModel | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Parameters as one flat dictionary with dotted keys."""
    values = params.model_dump(mode="json") if isinstance(params, BaseModel) else params
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and f"{prefix}{key}" not in mappings():
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def parse_override(text: str) -> tuple[str, Any]:
    """`pretrain.steps=100` -> ("pretrain.steps", 100), the value read as YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {cut(text)}: write it as KEY=VALUE, for example pretrain.steps=100")
    return key.strip(), parse_yaml(value, f"--set {cut(text)}", "safe")


def explain(error: ValidationError, path: Path, document: Any, overrides: Mapping[str, Any] | None = None) -> str:
    """What pydantic found wrong, in one line: the file with its line, or the override, and the parameter."""
    problem = error.errors(include_url=False)[0]
    location = [str(part) for part in problem["loc"]]
    named = location
    if isinstance(problem.get("input"), dict | BaseModel):  # of a section: which of its parameters is meant?
        message = problem["msg"].removeprefix("Value error, ")
        named = [*location, *message.split()[0].strip(":,").split(".")]
    key = ".".join(location)
    line = line_of(document, named)
    where = f"{path}, line {line}" if line else str(path)
    for override in overrides or {}:
        if f"{'.'.join(named)}.".startswith(f"{override}."):
            where = f"--set {override}"
    about = f"parameter '{key}': " if key else ""
    return f"{where}: {about}{validation_line(error, location).removeprefix(f'{key}: ')}"


@functools.cache
def parameter_fields() -> dict[str, FieldInfo]:
    """Every valid dotted key in the order of params.yaml, a section before what is in it."""
    return dict(_walk(Params, ""))


def _walk(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}", field
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _walk(field.annotation, f"{prefix}{name}.")


def parameter_names() -> list[str]:
    """Every valid dotted key, sections included."""
    return list(parameter_fields())


def is_section(key: str) -> bool:
    """True for the dotted key of a section."""
    kind = parameter_fields()[key].annotation if key in parameter_fields() else None
    return isinstance(kind, type) and issubclass(kind, BaseModel)


@functools.cache
def mappings() -> frozenset[str]:
    """Dotted keys of the parameters whose value is a mapping of its own, with names that are nobody's here."""
    return frozenset(key for key, field in parameter_fields().items() if typing.get_origin(field.annotation) is dict)


def _check_names(section: Mapping[str, Any], document: Any, path: Path, above: Sequence[str] = ()) -> None:
    """Names, with or without a value, must be parameters; of a value for a section pydantic says what is wrong."""
    for name, value in section.items():
        location = [*above, str(name)]
        key = ".".join(location)
        where = f"{path}, line {line_of(document, location)}"
        if key not in parameter_fields():
            raise _unknown(where, key)
        if "." in str(name):
            lines = " ".join(f"{part}:" for part in str(name).split("."))
            raise UserError(f"{where}: '{cut(str(name))}' has to be nested, a section a line: {lines} VALUE")
        if isinstance(value, dict) and is_section(key):
            _check_names(value, document, path, location)


def _unknown(where: str, key: str) -> UserError:
    [near] = difflib.get_close_matches(cut(key, 200), parameter_fields(), n=1, cutoff=0.0)
    return UserError(f"{where}: unknown parameter '{cut(key)}'; the nearest valid one is '{near}'")


def show(value: Any) -> str:
    """A value as reports and the comments of params.yaml write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(show(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {show(item)}" for name, item in value.items()) + "}"
    return "none" if value is None else str(value) or '""'


def _without_empty(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Plain copy without empty (null) values and sections of nothing else: those are left to the preset."""
    kept: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            inside = _without_empty(value, f"{prefix}{key}.")
            if inside or not is_section(f"{prefix}{key}"):
                kept[key] = inside
        elif value is not None:
            kept[key] = value
    return kept


def _merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return merged
