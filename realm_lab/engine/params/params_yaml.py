"""Make the text of params.yaml from the types, for `make pages` and `realm-lab init`."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

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
from realm_lab.records.parameters import OPTIONS, show
from realm_lab.records.validation import cut
from realm_lab.records.yaml_file import parse_yaml

LONGEST_COMMENT = 120
LONGEST_VALUE = 24  # of a preset's value in a comment
FILE_HEAD = """\
# The parameters of realm_lab that are often changed. Choose a preset in the line below; an empty value means: as in the
# preset. A comment has the values of the presets toy · smoke · real · paper, or one value if they agree, and the
# meaning. Add a line for any other parameter of docs/parameters.md. (`make pages` renews this file and keeps what you
# fill in.)
"""
# Parameters that are seldom changed: params.yaml has lines only for those that have a value in it.
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
    finetune.train_query_tower launch.spread_index launch.micro_batch
    launch.recompute launch.compile launch.checkpoint_interval_seconds launch.log_interval_steps
    launch.token_budget launch.other_code streams.initialisation streams.order
    """.split()
)


@functools.cache
def values_of_presets() -> dict[str, dict[str, str]]:
    """Return dotted key -> preset -> the parameter's value as text."""
    params = {preset: resolve(preset_values(preset)) for preset in PRESETS}
    flat = {preset: _with_parts(values) | {OPTIONS: values.system_options} for preset, values in params.items()}
    return {key: {preset: show(flat[preset][key]) for preset in PRESETS} for key in flat["paper"]}


def _with_parts(params: Params) -> dict[str, Any]:
    """Return flat parameters; the value of a plug-in includes its options, as in params.yaml."""
    parts: dict[str, Any] = {name: params for name in parameter_fields() if is_part(name)}
    return flatten(params) | {
        name: functools.reduce(getattr, name.split("."), all_).plain() for name, all_ in parts.items()
    }


def render_params_yaml(filled: Mapping[str, Any]) -> str:
    """Return the text of params.yaml: parameters with their values in `filled` (dotted keys), if any, and comments."""
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
    """Return a parameter's comment: the presets' values, and the first sentence of its docstring without brackets."""
    field = parameter_fields()[key]
    text = (field.annotation.__doc__ if is_section(key) else field.description) or ""
    meaning = re.sub(r" \([^()]*\)", "", first_sentence(text)[0]).rstrip(".")
    return meaning if is_section(key) or key == OPTIONS else f"{_spread(key)}: {meaning}"


def _spread(key: str) -> str:
    """Return the value of each preset, or one value if all are the same."""
    shown = [cut(value, LONGEST_VALUE) for value in values_of_presets()[key].values()]
    return shown[0] if len(set(shown)) == 1 else " · ".join(shown)


def _whole(filled: Mapping[str, Any]) -> dict[str, Any]:
    """Return the system options and the plug-ins of `filled`, each joined to one value from its separate keys."""
    found = {OPTIONS: nested(filled).get(OPTIONS)}
    for part in (name for name in parameter_fields() if is_part(name)):
        options = {key.rpartition(".")[2]: value for key, value in filled.items() if part_of(key) == part}
        name = filled.get(part)
        found[part] = ({"name": name} if name is not None else {}) | options if options else name
    return found


def renewed_params_yaml(text: str) -> str:
    """Write params.yaml again from the presets; its preset and the filled values are kept."""
    return render_params_yaml(flatten(parse_yaml(text, "params.yaml") or {}))


def first_sentence(text: str) -> tuple[str, str]:
    """The first sentence, and the rest."""
    first, *rest = re.split(r"(?<=[a-z0-9)\]`]\.) (?=[A-Z`\"(])", " ".join(text.split()), maxsplit=1)
    return first, " ".join(rest)
