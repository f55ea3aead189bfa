"""params.yaml and docs/parameters.md: every parameter with its values and its source, generated from the types.

`make pages` writes both.
"""

from __future__ import annotations

import functools
import json
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from realm_lab.engine.params.load import (
    PRESETS,
    flatten,
    is_part,
    is_section,
    nested,
    parameter_fields,
    part_of,
    preset_values,
    resolve,
)
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.params.sections import Optimiser
from realm_lab.records.files import write_text
from realm_lab.records.parameters import OPTIONS, show
from realm_lab.records.validation import cut
from realm_lab.records.yaml_file import parse_yaml

PAGE = Path("docs") / "parameters.md"
WIDTH = 116
LONGEST_COMMENT = 120
LONGEST_REST = 120  # of an explanation that is not folded
LONGEST_VALUE = 24  # of a preset's value in a comment of params.yaml
KINDS = {
    "integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "empty",
    "object": "names with values",
}  # fmt: skip
LIMITS = {
    "minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below",
    "multipleOf": "a multiple of",
}  # fmt: skip
PART = "[name or options](extending.md#how-a-part-is-named)"
FILE_HEAD = """\
# The parameters of realm_lab that are often changed. Choose a preset in the line below; an empty value means: as in the
# preset. A comment has the values of the presets toy · smoke · real · paper, or the one of all, and the meaning. Add a
# line for any other parameter of docs/parameters.md. (`make pages` renews this file and keeps what you fill in.)
"""
# Parameters that are seldom changed: params.yaml has a line for one if it is given a value.
SELDOM = frozenset(
    """
    corpus.files.dev_split corpus.files.drop_pages model.intermediate_size model.projection
    model.pictures model.train_word_embeddings warm_start.reader.related_fraction
    warm_start.reader.related_only_fraction warm_start.embedder.attempts warm_start.embedder.initial_encoder
    warm_start.embedder.query_scale warm_start.ict_cut pretrain.recurring_spans pretrain.changes finetune.answer_by
    pretrain.candidate_source pretrain.calibrate_null pretrain.causal_checkpoint
    pretrain.causal_form
    pretrain.reward pretrain.watch.interval_steps pretrain.watch.patience_steps
    finetune.max_span_wordpieces finetune.span_hidden_size finetune.softmax finetune.early_loss_candidates
    finetune.train_query_tower launch.micro_batch
    launch.recompute launch.compile launch.checkpoint_interval_seconds launch.log_interval_steps
    launch.token_budget launch.other_code streams.initialisation streams.order
    """.split()
)
INTRODUCTION = """\
# Parameters

*Generated from `realm_lab/engine/params/` by `make pages`; a test fails when this page is stale.*

The default in bold is the preset `paper`, which has the published value if there is one. Presets that differ follow it.
A value in `params.yaml` overrides the preset, and `--set KEY=VALUE` both. If one choice is `off`, `none` or `never`,
`false` means it. "Guu" is the REALM paper, "Lee" the ORQA paper, "code" the code released with them.
"""


@functools.cache
def _values() -> dict[str, dict[str, str]]:
    """Return dotted key -> preset -> its value, as shown."""
    params = {preset: resolve(preset_values(preset)) for preset in PRESETS}
    flat = {preset: _with_parts(values) | {OPTIONS: values.system_options} for preset, values in params.items()}
    return {key: {preset: show(flat[preset][key]) for preset in PRESETS} for key in flat["paper"]}


def _with_parts(params: Params) -> dict[str, Any]:
    """Flat parameters, each plug-in with its options as it is written."""
    parts: dict[str, Any] = {name: params for name in parameter_fields() if is_part(name)}
    return flatten(params) | {
        name: functools.reduce(getattr, name.split("."), all_).plain() for name, all_ in parts.items()
    }


def render_params_yaml(filled: Mapping[str, Any]) -> str:
    """The text of params.yaml: its parameters with their values in `filled` (dotted keys), if any, and the presets'."""
    filled = {**filled, **_whole(filled)}
    lines = [f"{FILE_HEAD}preset: {filled.get('preset') or 'toy'}  # {' · '.join(PRESETS)}"]
    wanted = [key for key in parameter_fields() if filled.get(key) is not None or key not in SELDOM]
    for key in wanted:
        *parents, name = key.split(".")
        inside = [inner for inner in wanted if inner.startswith(f"{key}.")]
        if key == "preset" or _is_optimiser(".".join(parents)) or (is_section(key) and not inside):
            continue
        if not parents and (inside or lines[-1].startswith(" ")):
            lines.append("")
        value, comment = _filled(filled.get(key)), _comment(key)
        if _is_optimiser(key):
            fields = (f"{one.rpartition('.')[2]}:{_filled(filled.get(one)) or ' '}" for one in inside)
            value = f" {{{', '.join(fields)}}}"
            comment = f"learning rate {_spread(inside[0])}, warm-up {_spread(inside[1])}"
        lines.append(f"{'  ' * len(parents)}{name}:{value}  # {cut(comment, LONGEST_COMMENT)}")
    return "\n".join(lines) + "\n"


def _filled(value: Any) -> str:
    return "" if value is None else f" {json.dumps(value, ensure_ascii=False)}"


def _is_optimiser(key: str) -> bool:
    return is_section(key) and parameter_fields()[key].annotation is Optimiser


def _comment(key: str) -> str:
    """Return the presets' values of a parameter and the first sentence of its meaning, without its sources."""
    field = parameter_fields()[key]
    text = (field.annotation.__doc__ if is_section(key) else field.description) or ""
    meaning = re.sub(r" \([^()]*\)", "", _sentences(text)[0]).rstrip(".")
    return meaning if is_section(key) or key == OPTIONS else f"{_spread(key)}: {meaning}"


def _spread(key: str) -> str:
    """The value of each preset, or the one of all."""
    shown = [cut(value, LONGEST_VALUE) for value in _values()[key].values()]
    return shown[0] if len(set(shown)) == 1 else " · ".join(shown)


def _whole(filled: Mapping[str, Any]) -> dict[str, Any]:
    """Return values given in parts by `filled`: options of systems and of plug-ins."""
    found = {OPTIONS: nested(filled).get(OPTIONS)}
    for part in (name for name in parameter_fields() if is_part(name)):
        options = {key.rpartition(".")[2]: value for key, value in filled.items() if part_of(key) == part}
        name = filled.get(part)
        found[part] = ({"name": name} if name is not None else {}) | options if options else name
    return found


def renewed_params_yaml(text: str) -> str:
    """Write params.yaml again from the presets; its preset and the filled values are kept."""
    return render_params_yaml(flatten(parse_yaml(text, "params.yaml") or {}))


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
        meaning, rest = _sentences(kind.model_fields[name].description or "") if key == first else ("", "")
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


def _sentences(text: str) -> tuple[str, str]:
    """The first sentence, and the rest."""
    first, *rest = re.split(r"(?<=[a-z0-9)\]`]\.) (?=[A-Z`\"(])", " ".join(text.split()), maxsplit=1)
    return first, " ".join(rest)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _defaults(key: str) -> str:
    """The default, and the presets that differ from it; options of systems have a separate page."""
    shown = _values()[key]
    if key == OPTIONS:
        return "[Systems](systems.md)"
    presets: dict[str, list[str]] = {}  # of each other value
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


def write(root: Path, options: Mapping[str, type[BaseModel]]) -> None:
    """Write params.yaml and docs/parameters.md of a checkout, with the options of plug-ins."""
    file = root / "params.yaml"
    write_text(file, renewed_params_yaml(file.read_text(encoding="utf-8") if file.exists() else ""))
    write_text(root / PAGE, render_reference(options))
