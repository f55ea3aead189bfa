"""`realm-lab sweep --axis ...`: the file of a study that the command line describes."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from realm_lab.core.files import write_text
from realm_lab.core.records import cut
from realm_lab.errors import UserError
from realm_lab.params.load import load
from realm_lab.params.yaml_file import parse_yaml, read_yaml
from realm_lab.runner.plan import plan_study
from realm_lab.runner.sweep import say
from realm_lab.tracking.study_record import check_study_name


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """`pretrain.steps=100,200` -> ("pretrain.steps", [100, 200]), the values read as YAML."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise UserError(f"--axis {cut(text)}: write it as KEY=VALUE,VALUE, for example pretrain.steps=100,200")
    return key.strip(), parse_yaml(f"[{values}]", f"--axis {cut(text)}", "safe")


def write_axes_file(
    root: Path, name: str, axes: Sequence[str], seeds: int | None, params_path: Path | None, given: Mapping[str, Any]
) -> Path:
    """ROOT/experiments/NAME.yaml of every combination of the values of some axes; the baseline has the first of each.

    `axes`: KEY=VALUE,VALUE each. `seeds`: 0, 1, ..., so many; None: those of the parameters. `given`: what --set and
    --preset say. UserError: an axis or name that is wrong, or another study has the name.
    """
    check_study_name(name, f"--name {cut(name)}", "choose another")
    points: dict[str, list[Any]] = {}
    for text in axes:
        key, values = parse_axis(text)
        if key in points or key in given:
            raise UserError(f"--axis {cut(text)}: '{key}' is given twice; keep one")
        points[key] = values
    overrides = dict(given)
    preset = {"preset": overrides.pop("preset")} if "preset" in given else {}
    chosen = list(range(seeds)) if seeds else load(params_path or root / "params.yaml", preset).seeds
    *others, last = points
    document = {
        "question": f"What do {', '.join(others)} and {last} change?" if others else f"What does {last} change?",
        **preset,
        "seeds": chosen,
        **({"set": overrides} if overrides else {}),
        "baseline": {key: values[0] for key, values in points.items()},
        "axes": points,
    }
    path = root / "experiments" / f"{name}.yaml"
    if not path.exists():
        write_text(path, _as_yaml(document))
        try:
            plan_study(path, root, params_path=params_path)
        except UserError as error:
            path.unlink()
            raise UserError(f"--axis: {error.problem}", parameter=error.parameter, remedy=error.remedy) from None
        say(f"{path}: written; `realm-lab sweep {name}` runs it again")
    elif json.loads(json.dumps(read_yaml(path), default=str)) != document:
        raise UserError(f"{path}: is another study; choose another --name, or run it with `realm-lab sweep {name}`")
    return path


def _as_yaml(document: Mapping[str, Any]) -> str:
    """Keys in their order; a list is a line."""
    writer, text = YAML(typ="safe"), io.StringIO()
    writer.default_flow_style = None
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.width = 4096
    writer.dump(document, text)
    return text.getvalue()
