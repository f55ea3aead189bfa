"""Write the file of a study that a command line describes, `sweep --axis ... --name NAME`, into ROOT/experiments, to
keep and to run again."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from realm_lab.engine.params.load import load
from realm_lab.errors import UserError
from realm_lab.lab.plan import plan_study
from realm_lab.records.files import write_text
from realm_lab.records.study import check_study_name
from realm_lab.records.validation import cut
from realm_lab.records.yaml_file import parse_yaml, read_yaml


def write_axes(
    root: Path,
    name: str,
    axes: Sequence[str],
    seeds: int | None,
    params_path: Path | None,
    given: Mapping[str, Any],
    budget: str | None = None,
) -> tuple[Path, bool]:
    """Write the file of a study with all combinations of the values of axes; the baseline has the first value of each.

    `axes`: KEY=VALUE,VALUE each. `seeds`: the number of seeds 0, 1, ...; None: the parameters' seeds. `given`: values
    of --set and --preset. `budget`: take seeds until each cell is decided, within this device time. Returns the file,
    and true if it is new. UserError: a wrong axis or name, or the name of another study.
    """
    points: dict[str, list[Any]] = {}
    for text in axes:
        key, equals, values = map(str.strip, text.partition("="))
        if not (equals and key and values):
            raise UserError(f"--axis {cut(text)}: write it as KEY=VALUE,VALUE, for example pretrain.steps=100,200")
        if key in points or key in given:
            raise UserError(f"--axis {cut(text)}: '{key}' is given twice; keep one")
        points[key] = parse_yaml(f"[{values}]", f"--axis {cut(text)}")
    *others, last = points
    overrides = {key: value for key, value in given.items() if key not in ("preset", "seeds")}
    chosen = list(range(seeds)) if seeds else load(params_path or root / "params.yaml", given).seeds
    document = {
        "question": f"What do {', '.join(others)} and {last} change?" if others else f"What does {last} change?",
        **({"preset": given["preset"]} if "preset" in given else {}),
        "seeds": {"until": "decided", "within": budget} if budget else chosen,
        **({"set": overrides} if overrides else {}),
        "baseline": {key: values[0] for key, values in points.items()},
        "axes": points,
    }
    check_study_name(name, f"--name {cut(name)}", "choose another")
    path = root / "experiments" / f"{name}.yaml"
    if path.exists() and read_yaml(path) != document:
        remedy = f"choose another --name, or run it with `realm-lab sweep {name}`"
        raise UserError("is another study", remedy, path=path)
    if path.exists():
        return path, False
    writer, stream = YAML(typ="safe", pure=True), io.StringIO()
    writer.default_flow_style = None  # each list on one line
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.width = 4096
    writer.dump(json.loads(json.dumps(document)), stream)  # without shared objects, which would become aliases
    write_text(path, stream.getvalue())
    try:
        plan_study(path, root, params_path=params_path)
    except UserError as error:
        path.unlink()
        if error.path and Path(str(error.path)) != path:
            raise
        raise UserError(f"--axis: {error.problem}", parameter=error.parameter, remedy=error.remedy) from None
    return path, True
