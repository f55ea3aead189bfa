"""params.yaml -> Params: presets, overrides, the generated params.yaml, and errors that name the line.

The types (parameters.py) hold the paper's values; a preset (presets/NAME.yaml) says what it changes, and a line of
params.yaml that is not empty changes it once more.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from pydantic import BaseModel, ValidationError

from realm_lab.core.records import cut, validation_line
from realm_lab.errors import UserError
from realm_lab.params.parameters import Params
from realm_lab.params.yaml_file import line_of, parse_yaml, read_yaml

PRESETS = ("toy", "smoke", "real", "paper")
PRESET_FOLDER = Path(__file__).parent / "presets"


def load(path: Path | str = "params.yaml", overrides: Mapping[str, Any] | None = None) -> Params:
    """Read `path`, lay it over its preset, then `overrides` (dotted key -> value); validate.

    Raises:
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
    _check_names(document, path)
    for key in overrides:
        if key not in _names():
            near = nearest_name(key)
            raise UserError(f"--set {cut(key)}: unknown parameter '{cut(key)}'; the nearest valid one is '{near}'")
    given = lay_over(_without_empty(document), overrides)
    preset = given.get("preset", "toy")
    where: Path | str = "--preset" if "preset" in overrides else path
    values = _merge(preset_values(preset, where), given)
    values["preset"] = preset
    return Source(path, document, values)


def _spelled_out(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Sections among the overrides, such as pretrain={steps: 5}, as one override for each of their parameters."""
    given: dict[str, Any] = {}
    for key, value in overrides.items():
        given |= flatten(value, f"{key}.") if isinstance(value, dict) and _names().get(key) else {key: value}
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
    return _without_empty(read_yaml(PRESET_FOLDER / f"{name}.yaml"))


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


def parameter_names() -> list[str]:
    """Every valid dotted key, sections included."""
    return list(_names())


def nearest_name(key: str) -> str:
    """The valid dotted key that was probably meant."""
    return difflib.get_close_matches(cut(key, 200), _names(), n=1, cutoff=0.0)[0]


@functools.cache
def mappings() -> frozenset[str]:
    """Dotted keys of the parameters whose value is a mapping of its own, with names that are nobody's here."""
    return frozenset(key for key, annotation in _walk(Params, "") if typing.get_origin(annotation) is dict)


@functools.cache
def _names() -> dict[str, bool]:
    """Every dotted key -> whether it is a section."""
    return {key: _is_section(annotation) for key, annotation in _walk(Params, "")}


def _is_section(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _walk(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}", field.annotation
        if _is_section(field.annotation):
            yield from _walk(field.annotation, f"{prefix}{name}.")  # type: ignore[arg-type]


def _check_names(document: Mapping[str, Any], path: Path) -> None:
    """Names, with or without a value, must be parameters; of a value for a section pydantic says what is wrong."""
    waiting: list[tuple[list[str], Any]] = [([], document)]
    while waiting:
        above, section = waiting.pop()
        for name, value in section.items():
            location = [*above, str(name)]
            key = ".".join(location)
            where = f"{path}, line {line_of(document, location)}"
            if "." in str(name) and key in _names():
                lines = " ".join(f"{part}:" for part in str(name).split("."))
                raise UserError(f"{where}: '{cut(str(name))}' has to be nested, a section a line: {lines} VALUE")
            if key not in _names():
                near = nearest_name(key)
                raise UserError(f"{where}: unknown parameter '{cut(key)}'; the nearest valid one is '{near}'")
            if isinstance(value, dict) and _names()[key]:
                waiting.append((location, value))


def render_params_yaml(preset: str = "toy") -> str:
    """The text of params.yaml: every parameter, empty (= the preset decides), with each preset's value beside it."""
    resolved = {name: flatten(Params(**preset_values(name) | {"preset": name})) for name in PRESETS}
    lines = [
        "# The parameters of realm_lab. Choose a preset in the next line; an empty value means: as the preset says.",
        "# The comment shows each preset's value. What each means: docs/parameters.md. (This file is generated by",
        "# `make params` and checked by a test; the values that you fill in are kept.)",
        f"preset: {preset}  # {' · '.join(PRESETS)}",
    ]
    _render(Params, "", 0, resolved, lines)
    return "\n".join(lines) + "\n"


def renewed_params_yaml(text: str) -> str:
    """params.yaml written again from the presets: its preset and the values filled in are kept."""
    filled = flatten(parse_yaml(text, "params.yaml", "safe") or {})
    parents: list[str] = []
    lines = []
    for line in render_params_yaml(filled.get("preset") or "toy").splitlines():
        parameter = re.match(r"( *)(\w+):(?=  #)", line)
        if parameter:
            parents = [*parents[: len(parameter[1]) // 2], parameter[2]]
            value = filled.get(".".join(parents))
            if value is not None:
                line = f"{parameter[0]} {json.dumps(value, ensure_ascii=False)}{line[parameter.end() :]}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _render(section: type[BaseModel], prefix: str, depth: int, resolved: dict[str, dict], lines: list[str]) -> None:
    for name, field in section.model_fields.items():
        key = f"{prefix}{name}"
        inner = field.annotation
        if key == "preset":
            continue
        if _is_section(inner):
            first_sentence = re.match(r".*?(\.(?= [A-Z`]|$)|$)", " ".join((inner.__doc__ or "").split()))
            lines.extend([""] if depth == 0 else [])
            lines.append(f"{'  ' * depth}{name}:  # {first_sentence[0] if first_sentence else ''}")
            _render(inner, f"{key}.", depth + 1, resolved, lines)
            continue
        values = {preset: show(flat[key]) for preset, flat in resolved.items()}
        is_same = len(set(values.values())) == 1
        comment = values["toy"] if is_same else " · ".join(f"{preset} {value}" for preset, value in values.items())
        if depth == 0:
            lines.append("")
        lines.append(f"{'  ' * depth}{name}:  # {comment}")


def show(value: Any) -> str:
    """A value as the comments of params.yaml write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(show(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {show(item)}" for name, item in value.items()) + "}"
    return str(value)


def _without_empty(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Plain copy without empty (null) values and sections of nothing else: those are left to the preset."""
    kept: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            inside = _without_empty(value, f"{prefix}{key}.")
            if inside or not _names()[f"{prefix}{key}"]:
                kept[key] = inside
        elif value is not None:
            kept[key] = list(value) if isinstance(value, list) else value
    return kept


def _merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return merged
