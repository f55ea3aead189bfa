"""params.yaml -> Params: presets, overrides, and errors that name the line.

The types (parameters.py) hold the paper's values. A preset (presets/NAME.yaml) overrides some of them, and each
key of params.yaml that has a value overrides the preset. A package of plug-ins may add options of its systems to the
built-in preset NAME, by a file presets/NAME.yaml in the folder of its plug-in module.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from realm_lab.engine.params.checkpoint import local, with_sizes
from realm_lab.engine.params.parameters import Params
from realm_lab.errors import UserError, Written, like, nearest, suggestion, written
from realm_lab.records.parameters import OPTIONS, is_system_option, show
from realm_lab.records.plugins import Choice, files_of_plugins, import_modules
from realm_lab.records.validation import cut, faults_of
from realm_lab.records.yaml_file import parse_yaml, reach, read_yaml

PRESETS = ("toy", "smoke", "real", "paper")
FLAG = "--set"
OWN_PRESETS = Path("presets")  # a project's folder of presets, NAME.yaml
PRESET_FOLDER = Path(__file__).parent / "presets"


def load(path: Path | str = "params.yaml", overrides: Mapping[str, Any] | None = None) -> Params:
    """Read `path` on top of its preset, then `overrides` (dotted key -> value), and validate.

    UserError: one line with the key, the nearest valid key, and the line of the file, or the override.
    """
    values = read_values(path, overrides)
    with parameter_errors(values):
        return resolve(values)


def read_values(path: Path | str, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Merge `path` with its preset and `overrides` (dotted key -> value), which may name the preset.

    Returns flat values (dotted key -> value), not validated yet. Each value carries the file or flag and the line where
    it was written, unless it comes from a built-in preset. A missing file counts as empty if the preset is among the
    overrides. The preset sets each key that has no value in the file or the overrides.
    """
    path, flags = Path(path), from_flags(overrides or {})
    document = written({}, path) if flags.get("preset") and not path.exists() else read_yaml(path)
    _check_names(document)
    given = laid_over({key: value for key, value in flatten(document).items() if value is not None}, flags)
    given.setdefault("preset", written("toy", path))
    name = like(str(given["preset"]), reach(given, "preset"))  # true and false carry no line, but their key does
    values = laid_over(preset_values(name), given)
    with parameter_errors(values):
        listed = values.get("plugins")
        modules = listed if isinstance(listed, list) else []
        import_modules("plugins", (name for name in modules if isinstance(name, str)))
        values = with_sizes(values, given)
    return values


def from_flags(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides (dotted key -> value) as flat values. Overrides that come from no file or flag count as flags
    --set. UserError: an unknown parameter."""
    found = {}
    for key, value in flatten(overrides).items():
        flag = "--preset" if key == "preset" else f"{FLAG} {cut(key)}"
        name, value = (key, value) if isinstance(key, Written) else (written(key, flag), written(value, flag))
        if not is_known(name):
            raise unknown_parameter(name)
        found[name] = value
    return found


def setting(values: Mapping[str, Any], *names: str) -> str | None:
    """Return the key in `names` that was set last. If none was set, return the last of the set keys that contain one of
    `names` or lie in it; None if a built-in preset has chosen all values."""
    keys = [key for key in values if isinstance(key, Written)]
    near = [key for key in keys if any(name and is_same_or_inside(name, key) for name in names)]
    return next(reversed([key for key in near if key in names] or near), None)


@contextmanager
def parameter_errors(values: Mapping[str, Any], source: Any = None, prefix: str = "") -> Iterator[None]:
    """Add a line to an error raised inside the block: the line where flat `values` set its parameter, else the line of
    the written value `source` (default: the preset). A contradiction also shows the values that a preset chose.
    `prefix` starts the text of errors in the file of `source`."""
    try:
        yield
        return
    except ValidationError as error:
        faults = [(text + _chosen(values, names), names, location) for text, names, location in faults_of(error)]
    except UserError as error:
        if error.path and not error.parameter:
            raise
        text = "; ".join(filter(None, (error.problem, error.remedy))) if error.is_placed else str(error)
        faults = [(text, (error.parameter,), ())]
    source = reach(values, "preset") if source is None else source
    found = []
    for text, names, location in faults:
        key = setting(values, *names)
        there = source if key is None else reach(values, key, *location[key.count(".") + 1 :])
        shown = prefix if there.path == source.path else ""
        found.append(UserError(f"{shown}{text}", parameter=key or names[0], value=there))
    found[0].others = found[1:]
    raise found[0] from None


def _chosen(values: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return in brackets the values of `names` that a built-in preset has chosen; "" if there are none."""
    chosen = [name for name in names if name in values and setting(values, name) is None]
    notes = ", ".join(f"{name} is {show(values[name])}" for name in chosen)
    return f" (in preset '{values['preset']}', {notes})" if notes else ""


def part_of(key: str) -> str | None:
    """Return PARAMETER of a key PARAMETER.OPTION if PARAMETER names a plug-in, which checks the option; else None."""
    above = key.rpartition(".")[0]
    return above if is_part(above) else None


def is_part(key: str) -> bool:
    """True for the dotted key of a parameter that names a plug-in."""
    return key in parameter_fields() and parameter_fields()[key].annotation is Choice


def is_option(key: str) -> bool:
    """True for the dotted key of an option, which the plug-in or the system checks."""
    return is_system_option(key) or part_of(key) is not None


def is_known(key: str) -> bool:
    """True for the dotted key of a section, of a parameter, or of an option."""
    return key in parameter_fields() or is_option(key)


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two sets of flat values; those `above` win and come last. If `above` names the plug-in of a parameter, the
    options of this parameter in `below` are dropped."""
    return {key: value for key, value in below.items() if not {key, part_of(key)} & above.keys()} | dict(above)


def resolve(flat: Mapping[str, Any]) -> Params:
    """Validate flat values (dotted key -> value) as parameters. Models of the Hub are fetched."""
    return Params(**nested({key: local(value) for key, value in flat.items()}))


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nest flat values into sections; a value for a whole section replaces the values inside it."""
    values: dict[str, Any] = {}
    for key in sorted(flat, key=lambda key: -key.count(".")):
        *parents, name = key.split(".")
        if is_system_option(key):  # SYSTEM may be a `package.module:Class`
            parents = [OPTIONS, ".".join(parents[1:])]
        inside = values
        for parent in parents:
            inside = inside.setdefault(parent, {})
        inside[name] = _with_options(flat[key], inside.get(name)) if is_part(key) else flat[key]
    for part in {part_of(key) for key in flat} - {None, *flat}:  # options that are given for a default plug-in
        *parents, name = str(part).split(".")
        with suppress(TypeError):  # validation refuses a section that is no mapping
            section = functools.reduce(dict.__getitem__, parents, values)
            section[name] = _with_options(parameter_fields()[str(part)].default.name, section[name])
    return values


def _with_options(value: Any, options: Mapping[str, Any] | None) -> Any:
    """Add options to a plug-in, written as a name or a mapping; validation refuses any other value later."""
    if not options or not isinstance(value, str | dict):
        return value
    return ({"name": value} if isinstance(value, str) else value) | dict(options)


def preset_values(name: Any) -> dict[str, Any]:
    """Return the flat values that preset `name` changes in the paper's defaults. `name`: a built-in preset, NAME of
    presets/NAME.yaml in the working folder, or the path of a file. UserError: no such preset, or an unknown
    parameter."""
    if name in PRESETS:
        return dict(_preset_values(name))
    path = Path(name) if str(name).endswith(".yaml") else OWN_PRESETS / f"{name}.yaml"
    if not path.is_file():
        names = sorted(found.stem for found in OWN_PRESETS.glob("*.yaml"))
        raise UserError(f"unknown preset '{cut(str(name))}'; {suggestion(str(name), (*PRESETS, *names))}", value=name)
    document = read_yaml(path)
    _check_names(document)
    given = {key: value for key, value in flatten(document).items() if value is not None}
    base = given.get("preset", "paper")  # the built-in preset that this one changes
    if base not in PRESETS:
        raise UserError(f"unknown preset '{cut(str(base))}'; {suggestion(str(base), PRESETS)}", value=base)
    return laid_over(_preset_values(base), given) | {"preset": str(name)}


@functools.cache  # the files belong to installed packages
def _preset_values(name: str) -> dict[str, Any]:
    values = copy.deepcopy(flatten(read_yaml(PRESET_FOLDER / f"{name}.yaml")))  # without lines: it has no errors
    base = values.get("preset")  # the preset that this one changes
    found = dict(_preset_values(base)) if base else {}
    for path in files_of_plugins(f"presets/{name}.yaml"):
        found |= flatten({OPTIONS: read_yaml(path)})
    return laid_over(found, values) | {"preset": name}


def beyond_preset(params: Params) -> dict[str, Any]:
    """Return differences from the preset, dotted name -> value, except seeds and launch settings."""
    given = {key: local(value) for key, value in preset_values(params.preset).items()}
    usual = laid_over(flatten(Params()), given)  # not validated: a preset may leave something out for params.yaml
    return {
        key: value for key, value in flatten(params).items()
        if value != usual.get(key, ...) and key not in ("seeds", "plugins") and not key.startswith("launch.")
    }  # fmt: skip


def flatten(params: BaseModel | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return parameters as one flat dictionary with dotted keys; each option of a system or of a plug-in has a separate
    key."""
    values = params.model_dump(mode="json") if isinstance(params, BaseModel) else params
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = dotted(prefix, key)
        if isinstance(value, dict) and is_part(name):
            flat |= {name if option == "name" else dotted(f"{name}.", option): one for option, one in value.items()}
        elif isinstance(value, dict) and is_divided(name, prefix):
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def dotted(prefix: str, key: str) -> str:
    """Return a dotted key with the file and line of its last part."""
    name: str = like(f"{prefix}{key}", key)
    return name


def is_divided(key: str, above: str = "") -> bool:
    """True if a mapping under a dotted key holds several parameters. `above`: the enclosing section and a final dot."""
    if above.startswith(f"{OPTIONS}.") and above != f"{OPTIONS}.":
        return False  # an option of a system
    return key == OPTIONS or key not in parameter_fields() or is_section(key)


def parse_override(text: str, flag: str = "--set", example: str = "pretrain.steps=100") -> tuple[str, Any]:
    """`pretrain.steps=100` -> ("pretrain.steps", 100), the value read as YAML. `flag` is the flag that it came from."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"write it as KEY=VALUE, for example {example}", path=f"{flag} {cut(text)}")
    name = key.strip()
    return name, copy.deepcopy(parse_yaml(value, f"{flag} {cut(text)}", name))  # without lines


def chosen(flag: str, text: str) -> Choice:
    """Read a plug-in that a flag names, `NAME` or `{name: NAME, OPTION: VALUE}`. UserError: it is neither."""
    try:
        return Choice.read(text if text[:1] != "{" else parse_yaml(text, f"{flag} {cut(text)}"))
    except UserError:
        raise
    except ValueError as error:
        raise UserError(error, path=f"{flag} {cut(text)}") from None


def is_inside(name: str, key: str) -> bool:
    """True if a dotted key is `key`, or in the section `key`."""
    return f"{name}.".startswith(f"{key}.")


def is_same_or_inside(name: str, key: str) -> bool:
    """True if two dotted keys are equal, or one is a section that contains the other."""
    return is_inside(name, key) or is_inside(key, name)


@functools.cache
def parameter_fields() -> dict[str, FieldInfo]:
    """Return every valid dotted key in the order of params.yaml, a section before its contents."""
    return dict(_walk(Params, ""))


def _walk(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}", field
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _walk(field.annotation, f"{prefix}{name}.")


def is_section(key: str) -> bool:
    """True for the dotted key of a section."""
    kind = parameter_fields()[key].annotation if key in parameter_fields() else None
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _check_names(section: Mapping[str, Any], above: str = "") -> None:
    """Check that all names, with or without a value, are parameters; pydantic checks the value of a section."""
    for name, value in section.items():
        key = dotted(above, name)
        if key not in parameter_fields():
            raise unknown_parameter(key)
        if "." in name:
            lines = " ".join(f"{part}:" for part in name.split("."))
            problem = f"'{cut(name)}' has to be nested, one section per line: {lines} VALUE"
            raise UserError(problem, parameter=key, value=key)
        if isinstance(value, dict) and is_section(key):
            _check_names(value, f"{key}.")


def unknown_parameter(key: str) -> UserError:
    """Return an error about an unknown dotted key of a file or a flag."""
    remedy = suggest_parameter(cut(key, 200))
    return UserError(f"unknown parameter '{cut(key)}'", remedy, parameter=key, value=key)


def suggest_parameter(key: str) -> str:
    """Return the remedy for an unknown dotted key: the closest parameter, or the parameters of its section."""
    known, (section, _, last) = list(parameter_fields()), key.rpartition(".")
    if section and not is_section(section):
        return suggestion(key, known if nearest(key, known) else [name for name in known if "." not in name])
    ends = [name.rpartition(".")[2] for name in known]
    there = [name for name in known if name.rpartition(".")[0] == section]
    is_end = not section and last in ends  # the exact name of parameters, whose section was left out
    if not is_end and (near := nearest(last, [name.rpartition(".")[2] for name in there])):
        return f"did you mean '{section}{'.' * bool(section)}{near}'?"
    if not section and (end := nearest(last, ends)):
        there = [name for name in known if name.rpartition(".")[2] == end]
    return f"did you mean '{there[0]}'?" if len(there) == 1 else suggestion("", there)
