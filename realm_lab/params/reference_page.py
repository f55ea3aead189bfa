"""docs/parameters.md: every parameter with its type, its values and its source, generated from the types.

`python -m realm_lab.params.reference_page` (`make params`) writes it, and params.yaml with it.
"""

from __future__ import annotations

import textwrap
import types
import typing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from realm_lab.core.files import write_text
from realm_lab.params.load import PRESETS, flatten, preset_values, renewed_params_yaml, show
from realm_lab.params.parameters import Params

PAGE = Path("docs") / "parameters.md"
WIDTH = 116
KINDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}
INTRODUCTION = """\
# Parameters

Generated from `realm_lab/params/` by `make params`; a test fails when it is stale. Each entry says what the
parameter may be, its default, which is the paper's value wherever the paper has one (preset `paper`), and where another
preset differs. A line of `params.yaml` that is not empty goes before the preset, and `--set KEY=VALUE` before both.
"Guu" is the REALM paper, "Lee" the ORQA paper, "code" what was released with them.
"""


class Entry(NamedTuple):
    """One parameter at one place."""

    key: str
    field: FieldInfo


class Group(NamedTuple):
    """A section of parameters, or one that stands in several places."""

    type: type[BaseModel]
    keys: tuple[str, ...]  # dotted keys of the places, "" for the top


def render_reference() -> str:
    """The text of docs/parameters.md."""
    flat = {name: flatten(Params(**preset_values(name) | {"preset": name})) for name in PRESETS}
    pages = [INTRODUCTION, *(_section(group, flat) for group in groups())]
    return "\n".join(pages)


def groups() -> list[Group]:
    """The sections in the order of params.yaml; one that stands in several places comes once, at the end."""
    found = list(_walk(Params, ""))
    often = Counter(kind for kind, _ in found)
    single = [Group(kind, (key,)) for kind, key in found if often[kind] == 1]
    several = [Group(kind, tuple(key for other, key in found if other is kind)) for kind in often if often[kind] > 1]
    return single + several


def entries(group: Group) -> list[tuple[str, list[Entry]]]:
    """Names of the group's own parameters, each with its places."""
    return [
        (name, [Entry(f"{key}.{name}".removeprefix("."), field) for key in group.keys])
        for name, field in group.type.model_fields.items()
        if not _is_section(field.annotation)
    ]


def in_words(annotation: Any, limits: list[Any]) -> str:
    """A type in words: `whole number, 1 to 50`."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        inner, *more = parts
        metadata = [limit for part in more for limit in getattr(part, "metadata", [part])]
        return in_words(inner, [*metadata, *limits])
    if origin in (typing.Union, types.UnionType):
        return ", or ".join("empty" if part is type(None) else in_words(part, limits) for part in parts)
    if origin is Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin is list:
        least, most = _limit(limits, "min_length"), _limit(limits, "max_length")
        kind = f"list of {most}" if most and most == least else "list (not empty) of" if least else "list of"
        return f"{kind} {in_words(parts[0], [])}"
    if origin is dict:
        return "names with values"
    low, above = _limit(limits, "ge"), _limit(limits, "gt")
    high, below = _limit(limits, "le"), _limit(limits, "lt")
    said = KINDS[annotation]
    if above is not None and high is not None:
        return f"{said}, above {above:g}, at most {high:g}"
    if low is not None and (high is not None or below is not None):
        return f"{said}, {low:g} to {high:,.10g}" if below is None else f"{said}, {low:g} to below {below:g}"
    if low is not None or above is not None:
        return f"{said}, at least {low:g}" if above is None else f"{said}, above {above:g}"
    return said


def _limit(limits: list[Any], name: str) -> Any:
    return next((getattr(limit, name) for limit in limits if getattr(limit, name, None) is not None), None)


def _walk(section: type[BaseModel], key: str) -> Iterator[tuple[type[BaseModel], str]]:
    yield section, key
    for name, field in section.model_fields.items():
        if _is_section(field.annotation):
            yield from _walk(field.annotation, f"{key}.{name}".removeprefix("."))  # type: ignore[arg-type]


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _section(group: Group, flat: dict[str, dict[str, Any]]) -> str:
    shared = len(group.keys) > 1
    title = group.type.__name__ if shared else group.keys[0] or "Top level"
    lines = [f"## {title}", "", *_wrapped(group.type.__doc__ or "", ""), ""]
    if shared:
        lines += [*_wrapped(f"The same parameters stand in {', '.join(f'`{key}`' for key in group.keys)}.", ""), ""]
    for name, places in entries(group):
        first = places[0]
        kind = in_words(first.field.annotation, first.field.metadata)
        said = f"- `{name}`: {kind}." if shared else f"- `{first.key}`: {kind}. {_values(first.key, flat)}"
        lines += _wrapped(said, "  ")
        lines += [f"  {line}" for line in _wrapped(first.field.description or "", "")]
        lines += [f"  - `{place.key}`: {_values(place.key, flat)}" for place in places if shared]
    return "\n".join(lines) + "\n"


def _values(key: str, flat: dict[str, dict[str, Any]]) -> str:
    default = show(flat["paper"][key])
    others = [f"{name} {show(values[key])}" for name, values in flat.items() if show(values[key]) != default]
    return f"Default **{default}**" + (f"; {', '.join(others)}." if others and key != "preset" else ".")


def _wrapped(text: str, indent: str) -> list[str]:
    words = " ".join(text.split())
    return textwrap.wrap(words, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def write(root: Path) -> None:
    """Write params.yaml and docs/parameters.md of a checkout."""
    file = root / "params.yaml"
    write_text(file, renewed_params_yaml(file.read_text(encoding="utf-8") if file.exists() else ""))
    write_text(root / PAGE, render_reference())


if __name__ == "__main__":
    write(Path.cwd())
