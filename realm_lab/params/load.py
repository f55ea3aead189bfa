"""params.yaml -> Params: presets, overrides, and errors that name the line.

The types (parameters.py) hold the paper's values. A preset (presets/NAME.yaml) overrides some of them, and each
line of params.yaml that is not empty overrides the preset.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from realm_lab.core.plugins import Choice, import_modules
from realm_lab.core.records import Problem, contradictions_of, cut, problem_of
from realm_lab.errors import UserError, nearest, suggestion
from realm_lab.params.checkpoint import local, with_sizes
from realm_lab.params.parameters import Params
from realm_lab.params.yaml_file import line_of, parse_yaml, read_yaml

PRESETS = ("toy", "smoke", "real", "paper")
OPTIONS = "system_options"  # SYSTEM -> OPTION -> value
FLAG = "--set"
OWN_PRESETS = Path("presets")  # of a project, NAME.yaml
PRESET_FOLDER = Path(__file__).parent / "presets"


def load(path: Path | str = "params.yaml", overrides: Mapping[str, Any] | None = None) -> Params:
    """Read `path` on top of its preset, then `overrides` (dotted key -> value), and validate.

    UserError: one line naming the key, the nearest valid one, and the line of the file, or the override.
    """
    source = read_source(path, overrides)
    with source.blamed():
        return resolve(source.values)


class Origin(NamedTuple):
    """The origin of a value: a file, and the keys that lead to the value in its document, or a flag. `prefix` stands
    before errors about the value."""

    path: Path | str
    document: Any = None
    keys: Sequence[str | int] = ()
    prefix: str = ""

    def error(self, problem: str, parameter: str) -> UserError:
        line = line_of(self.document, self.keys)
        return UserError(f"{self.prefix}{problem}", parameter=parameter, path=self.path, line=line)


Layer = Mapping[str, Origin]  # dotted key -> who set it


class Source(NamedTuple):
    """Flat values (dotted key -> value), not validated yet. `layers`: the origins of those that no preset chose, those
    on top first; `otherwise` is the origin of the others."""

    values: dict[str, Any]
    layers: tuple[Layer, ...]
    otherwise: Origin

    def under(self, values: Mapping[str, Any], *layers: Layer, otherwise: Origin | None = None) -> Source:
        """Return this source with other `values` on top."""
        return Source(laid_over(self.values, values), (*layers, *self.layers), otherwise or self.otherwise)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Attach the origin to errors about parameters that are raised inside: of the first one that has an origin. A
        contradiction also shows the values that the preset chose."""
        try:
            yield
        except ValidationError as error:
            first = problem_of(error)
            found = self._explained(first)
            found.others = [self._explained(one) for one in contradictions_of(error) if one != first]
            raise found from None
        except UserError as error:
            raise self.placed(str(error), [error.parameter]) from None

    def _explained(self, found: Problem) -> UserError:
        text, location = found.text, found.location
        if found.is_contradiction:
            given, location = [key for layer in self.layers for key in layer], ()
            chosen = [name for name in found.parameters if not any(is_same_or_inside(name, key) for key in given)]
            notes = [f"{name} is {show(self.values[name])}" for name in chosen if name in self.values]
            text += f" (in preset '{self.values['preset']}', {', '.join(notes)})" if notes else ""
        return self.placed(text, found.parameters, location)

    def placed(self, problem: str, parameters: Sequence[str], location: Sequence[str | int] = ()) -> UserError:
        """Attach the origin to an error about `parameters`. `location` leads further into the value of the first."""
        places = [(one, name) for layer in self.layers for name in parameters if name for one in layer.items()]
        for (key, origin), name in places:
            if is_same_or_inside(name, key):
                path = f"{FLAG} {key}" if origin.path == FLAG and key != parameters[0] else origin.path
                further = location[key.count(".") + 1 :] if key == name else ()
                return origin._replace(path=path, keys=(*origin.keys, *further)).error(problem, key)
        return self.otherwise.error(problem, parameters[0])


def read_source(path: Path | str, overrides: Mapping[str, Any] | None = None) -> Source:
    """Merge `path` with its preset and `overrides` (dotted key -> value); one of them may be the preset.

    A missing file counts as empty if the preset is among the overrides. Empty lines of the file are left to the preset.
    """
    path, overrides = Path(path), flatten(overrides or {})
    document = {} if overrides.get("preset") and not path.exists() else read_yaml(path)
    _check_names(document, document, path)
    for key in overrides:
        if not is_known(key):
            raise unknown_parameter(key, f"{FLAG} {cut(key)}")
    given = laid_over({key: value for key, value in flatten(document).items() if value is not None}, overrides)
    preset = given.setdefault("preset", "toy")
    below = preset_values(preset, "--preset" if "preset" in overrides else path)
    flags = dict.fromkeys(overrides, Origin(FLAG))
    lines = {key: Origin(path, document, key.split(".")) for key in given if key not in overrides}
    source = Source(with_sizes(laid_over(below, given), given), (flags, lines), Origin(path))
    listed = source.values.get("plugins")
    with source.blamed():
        import_modules("plugins", listed if isinstance(listed, list) else ())
    return source


def is_system_option(key: str) -> bool:
    """True for the dotted key `system_options.SYSTEM.OPTION`, which the system checks."""
    return key.startswith(f"{OPTIONS}.") and key.count(".") > 1


def part_of(key: str) -> str | None:
    """Return the parameter of the dotted key PARAMETER.OPTION, if it names a plug-in, which checks its options."""
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
    """Flat values with others on top. A plug-in that is named on top has none of the options below."""
    return {key: value for key, value in below.items() if part_of(key) not in above} | dict(above)


def resolve(flat: Mapping[str, Any]) -> Params:
    """Validate flat values (dotted key -> value) as parameters. Models of the Hub are fetched."""
    return Params(**nested({key: local(value) for key, value in flat.items()}))


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nest flat values into sections; a value for a whole section overrides any in it."""
    values: dict[str, Any] = {}
    for key in sorted(flat, key=lambda key: -key.count(".")):
        *parents, name = key.split(".")
        if is_system_option(key):  # SYSTEM may be a `package.module:Class`
            parents = [OPTIONS, ".".join(parents[1:])]
        inside = values
        for parent in parents:
            inside = inside.setdefault(parent, {})
        inside[name] = _with_options(flat[key], inside.get(name)) if is_part(key) else flat[key]
    for part in {part_of(key) for key in flat} - {None, *flat}:  # options of the part that is the default
        *parents, name = str(part).split(".")
        section = functools.reduce(dict.__getitem__, parents, values)
        section[name] = _with_options(parameter_fields()[str(part)].default.name, section[name])
    return values


def _with_options(value: Any, options: Mapping[str, Any] | None) -> Any:
    """Add options to a plug-in as it is written; other values stay unchanged, for their type to refuse."""
    if not options or not isinstance(value, str | dict):
        return value
    return ({"name": value} if isinstance(value, str) else value) | dict(options)


def preset_values(name: Any, source: Path | str = "params.yaml") -> dict[str, Any]:
    """Return the changes of preset `name` relative to the paper's defaults, flat: a built-in one, presets/NAME.yaml of
    the working folder, or the path of a file. UserError: there is none, or it has an unknown parameter."""
    if name in PRESETS:
        return dict(_preset_values(name))
    path = Path(name) if str(name).endswith(".yaml") else OWN_PRESETS / f"{name}.yaml"
    if not path.is_file():
        own = sorted(found.stem for found in OWN_PRESETS.glob("*.yaml"))
        raise UserError(f"unknown preset '{cut(str(name))}'; {suggestion(str(name), (*PRESETS, *own))}", path=source)
    document = read_yaml(path)
    _check_names(document, document, path)
    given = {key: value for key, value in flatten(document).items() if value is not None}
    base = given.get("preset", "paper")  # the built-in preset that this one changes
    if base not in PRESETS:
        raise UserError(f"unknown preset '{cut(str(base))}'; {suggestion(str(base), PRESETS)}", path=path)
    return laid_over(_preset_values(base), given) | {"preset": str(name)}


@functools.cache  # the files belong to the package
def _preset_values(name: str) -> dict[str, Any]:
    values = flatten(read_yaml(PRESET_FOLDER / f"{name}.yaml"))
    base = values.get("preset")  # the preset that this one changes
    return laid_over(_preset_values(base) if base else {}, values) | {"preset": name}


def beyond_preset(params: Params) -> dict[str, Any]:
    """Return differences from the preset, dotted name -> value, except seeds and launch settings."""
    given = {key: local(value) for key, value in preset_values(params.preset).items()}
    usual = laid_over(flatten(Params()), given)  # not validated: a preset may leave something out for params.yaml
    return {
        key: value for key, value in flatten(params).items()
        if value != usual.get(key, ...) and key not in ("seeds", "plugins") and not key.startswith("launch.")
    }  # fmt: skip


def flatten(params: BaseModel | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Parameters as one flat dictionary with dotted keys; each option of a system or of a plug-in has its own."""
    values = params.model_dump(mode="json") if isinstance(params, BaseModel) else params
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and is_part(name):
            flat |= {name if option == "name" else f"{name}.{option}": inner for option, inner in value.items()}
        elif isinstance(value, dict) and is_divided(name, prefix):
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def is_divided(key: str, above: str = "") -> bool:
    """True if a mapping below a dotted key holds several parameters. `above`: the enclosing section, with a dot."""
    if above.startswith(f"{OPTIONS}.") and above != f"{OPTIONS}.":
        return False  # an option of a system
    return key == OPTIONS or key not in parameter_fields() or is_section(key)


def parse_override(text: str, flag: str = "--set", example: str = "pretrain.steps=100") -> tuple[str, Any]:
    """`pretrain.steps=100` -> ("pretrain.steps", 100), the value read as YAML. `flag` is the flag that it came from."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"write it as KEY=VALUE, for example {example}", path=f"{flag} {cut(text)}")
    return key.strip(), parse_yaml(value, f"{flag} {cut(text)}", "safe", key.strip())


def chosen(flag: str, text: str) -> Choice:
    """Read a plug-in that a flag names, `NAME` or `{name: NAME, OPTION: VALUE}`. UserError: it is neither."""
    try:
        return Choice.read(text if text[:1] != "{" else parse_yaml(text, f"{flag} {cut(text)}", "safe"))
    except UserError:
        raise
    except ValueError as error:
        raise UserError(error, path=f"{flag} {cut(text)}") from None


def measuring(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat parameters of measurements during pre-training, which are not in its key."""
    names = (f"evaluate.{name}" for name in ("interval_steps", "cloze_sentences", "questions"))
    found = {name: parameters[name] for name in names if name in parameters}
    return found | {name: value for name, value in parameters.items() if name.startswith("pretrain.watch.")}


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


def _check_names(section: Mapping[str, Any], document: Any, path: Path, above: Sequence[str] = ()) -> None:
    """Check that all names, with or without a value, are parameters; pydantic checks the value of a section."""
    for name, value in section.items():
        location = [*above, str(name)]
        key = ".".join(location)
        line = line_of(document, location)
        if key not in parameter_fields():
            raise unknown_parameter(key, path, line)
        if "." in str(name):
            lines = " ".join(f"{part}:" for part in str(name).split("."))
            problem = f"'{cut(str(name))}' has to be nested, a section a line: {lines} VALUE"
            raise UserError(problem, parameter=key, path=path, line=line)
        if isinstance(value, dict) and is_section(key):
            _check_names(value, document, path, location)


def unknown_parameter(key: str, path: object, line: int | None = None) -> UserError:
    """Return an error about an unknown dotted key of a file or a flag."""
    remedy = suggest_parameter(cut(key, 200))
    return UserError(f"unknown parameter '{cut(key)}'", remedy, parameter=key, path=path, line=line)


def suggest_parameter(key: str) -> str:
    """Return the remedy for an unknown dotted key: the closest parameter, or those of its section."""
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


def show(value: Any) -> str:
    """Format a value for reports and the comments of params.yaml."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(show(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {show(item)}" for name, item in value.items()) + "}"
    return "none" if value is None else str(value) or '""'
