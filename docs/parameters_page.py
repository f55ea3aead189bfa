"""docs/parameters.md: every parameter with its values and its source, generated from the types."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from realm_lab.engine.params.load import is_section, parameter_fields
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.params.params_yaml import first_sentence, values_of_presets
from realm_lab.records.parameters import OPTIONS, show

PAGE = Path("docs") / "parameters.md"
WIDTH = 116
LONGEST_REST = 120  # of an explanation that is not folded
KINDS = {
    "integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "empty",
    "object": "names with values",
}  # fmt: skip
LIMITS = {
    "minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below",
    "multipleOf": "a multiple of",
}  # fmt: skip
PART = "[name or options](extending.md#how-a-part-is-named)"
INTRODUCTION = """\
# Parameters

*Generated from `realm_lab/engine/params/` by `make pages`; a test fails when this page is stale.*

The default in bold is the preset `paper`, which has the published value if there is one. Presets that differ follow it.
A value in `params.yaml` overrides the preset, and `--set KEY=VALUE` both. If one choice is `off`, `none` or `never`,
`false` means it. "Guu" is the REALM paper, "Lee" the ORQA paper, "code" the code released with them.
"""


def render_reference(options: Mapping[str, type[BaseModel]]) -> str:
    """The text of docs/parameters.md: the sections in the order of params.yaml, then the `options` of plug-ins, by the
    name of the section."""
    sections: dict[str, Any] = {"": Params}
    sections |= {key: field.annotation for key, field in parameter_fields().items() if is_section(key)}
    parts = [_part(name, kind) for name, kind in options.items()]
    first = {kind: key for key, kind in reversed(sections.items())}
    return "\n".join([INTRODUCTION, *(_section(key, kind, first[kind]) for key, kind in sections.items()), *parts])


def _section(key: str, kind: type[BaseModel], first: str) -> str:
    """A heading, a table with a row per parameter, and longer explanations folded below it. `first`: the first section
    of this kind, which explains the parameters of all."""
    known = {name: f"{key}.{name}".removeprefix(".") for name in kind.model_fields}
    names = [name for name, full in known.items() if full in parameter_fields() and not is_section(full)]
    about = kind.__doc__ or "" if key == first else f"As [`{first}`](#{first}.{names[0]})."
    lines = [f"## {key or 'Top level'}", "", *_wrapped(about), ""]
    if not names:
        return "\n".join(lines)
    schemas = kind.model_json_schema()["properties"]
    head = ("parameter", "meaning", "values", "default") if key == first else ("parameter", "default")
    rows, more = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"], []
    for name in names:
        full = known[name]
        meaning, rest = first_sentence(kind.model_fields[name].description or "") if key == first else ("", "")
        if len(rest) <= LONGEST_REST:
            meaning, rest = f"{meaning} {rest}".rstrip(), ""
        explained = (_cell(meaning), _cell(in_words(schemas[name]))) if key == first else ()
        row = (f'<a id="{full}"></a>`{full}`', *explained, _cell(_defaults(full)))
        rows.append(f"| {' | '.join(row)} |")
        if rest:
            more += [*_wrapped(f"- `{full}`: {rest}", "  ")]
    folded = ['<details markdown="1"><summary>More</summary>', "", *more, "", "</details>", ""]
    return "\n".join([*lines, *rows, "", *(folded if more else [])])


def _part(name: str, kind: type[BaseModel]) -> str:
    """A heading and a table with a row per option of a plug-in, which is `PARAMETER: NAME`."""
    parameter = name.partition(":")[0]
    lines = [f"## {name}", "", *_wrapped(kind.__doc__ or ""), "", "| option | meaning | values | default |"]
    lines.append("|---|---|---|---|")
    schemas = kind.model_json_schema()["properties"]
    for option, field in kind.model_fields.items():
        default = "" if field.is_required() else f"**{_spaced(show(field.get_default(call_default_factory=True)))}**"
        cells = (_cell(" ".join((field.description or "").split())), _cell(in_words(schemas[option])), _cell(default))
        lines.append(f"| `{parameter}.{option}` | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _defaults(key: str) -> str:
    """The default, and the presets that differ from it; options of systems have a separate page."""
    shown = values_of_presets()[key]
    if key == OPTIONS:
        return "[Systems](systems.md)"
    presets: dict[str, list[str]] = {}  # value other than the default -> its presets
    for preset, value in shown.items():
        if value != shown["paper"] and key != "preset":
            presets.setdefault(value, []).append(preset)
    others = (f"{'/'.join(names)} {_spaced(value)}" for value, names in presets.items())
    return " · ".join([f"**{_spaced(shown['paper'])}**", *others])


def _spaced(value: str) -> str:
    """A value that a narrow column can break at its commas; in braces as code, since braces may hold attributes."""
    spaced = value.replace(",", ", ").replace(",  ", ", ")
    return f"`{spaced}`" if spaced.startswith("{") else spaced


def in_words(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words: `integer from 1 to 50`."""
    if "anyOf" in schema:
        return ", or ".join(map(in_words, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        least, most = schema.get("minItems"), schema.get("maxItems")
        kind = f"list of {most}" if most and most == least else "list (not empty) of" if least else "list of"
        return f"{kind} {in_words(schema['items'])}"
    if "choice" in schema:
        return PART
    limits = (f"{words} {schema[name]:,.10g}" for name, words in LIMITS.items() if name in schema)
    return " ".join([KINDS[schema["type"]], *limits])


def _wrapped(text: str, indent: str = "") -> list[str]:
    words = " ".join(text.split())
    return textwrap.wrap(words, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
