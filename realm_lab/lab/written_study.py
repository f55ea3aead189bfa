"""Write the file of a study that a command line describes, `sweep --axis ... --name NAME`, into ROOT/experiments, to
keep and to run again."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from realm_lab.engine.params.load import load
from realm_lab.errors import UserError
from realm_lab.lab.plan import plan_study
from realm_lab.lab.progress import say
from realm_lab.records.files import write_text
from realm_lab.records.study import check_study_name
from realm_lab.records.validation import cut
from realm_lab.records.yaml_file import parse_yaml, read_yaml


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """`pretrain.steps=100,200` -> ("pretrain.steps", [100, 200]), the values read as YAML."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise UserError(f"--axis {cut(text)}: write it as KEY=VALUE,VALUE, for example pretrain.steps=100,200")
    return key.strip(), parse_yaml(f"[{values}]", f"--axis {cut(text)}")


def write_axes(
    root: Path,
    name: str,
    axes: Sequence[str],
    seeds: int | None,
    params_path: Path | None,
    given: Mapping[str, Any],
    budget: str | None = None,
) -> tuple[Path, bool]:
    """Write the file of every combination of the values of some axes; the baseline has the first of each.

    `axes`: KEY=VALUE,VALUE each. `seeds`: their number, 0, 1, ...; None: the parameters' seeds. `given`: the values of
    --set and --preset. `budget`: device time for seeds, as many as decide each cell. Returns the file, and true if it
    is new. UserError: an axis or name that is wrong, or that of another study.
    """
    points: dict[str, list[Any]] = {}
    for text in axes:
        key, values = parse_axis(text)
        if key in points or key in given:
            raise UserError(f"--axis {cut(text)}: '{key}' is given twice; keep one")
        points[key] = values
    *others, last = points
    document = {
        "question": f"What do {', '.join(others)} and {last} change?" if others else f"What does {last} change?",
        **_common(root, seeds, params_path, given),
        **({"seeds": {"until": "decided", "within": budget}} if budget else {}),
        "baseline": {key: values[0] for key, values in points.items()},
        "axes": points,
    }
    return _write(root, name, document, params_path, "--axis")


def _common(root: Path, seeds: int | None, params_path: Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the common part of the files: preset, seeds and `set`."""
    overrides = {key: value for key, value in given.items() if key not in ("preset", "seeds")}
    preset = {"preset": given["preset"]} if "preset" in given else {}
    chosen = list(range(seeds)) if seeds else load(params_path or root / "params.yaml", given).seeds
    return {**preset, "seeds": chosen, **({"set": overrides} if overrides else {})}


def _path(root: Path, name: str) -> Path:
    check_study_name(name, f"--name {cut(name)}", "choose another")
    return root / "experiments" / f"{name}.yaml"


@contextmanager
def in_use(path: Path, is_new: bool, is_kept: bool) -> Iterator[None]:
    """A study's file while it is used; one that is new and not kept is removed afterwards."""
    if is_new and is_kept:
        say(f"{path}: written; `realm-lab sweep {path.stem}` runs it again")
    try:
        yield
    finally:
        if is_new and not is_kept:
            path.unlink()


def _write(
    root: Path, name: str, document: Mapping[str, Any], params_path: Path | None, flag: str
) -> tuple[Path, bool]:
    """Write ROOT/experiments/NAME.yaml, and remove it if it cannot be planned: the fault is in `flag`."""
    path = _path(root, name)
    if is_new := not path.exists():
        write_text(path, _as_yaml(document))
        try:
            plan_study(path, root, params_path=params_path)
        except UserError as error:
            path.unlink()
            if error.path and Path(str(error.path)) != path:
                raise
            raise UserError(f"{flag}: {error.problem}", parameter=error.parameter, remedy=error.remedy) from None
    elif read_yaml(path) != document:
        raise UserError(
            "is another study", f"choose another --name, or run it with `realm-lab sweep {name}`", path=path
        )
    return path, is_new


def _as_yaml(document: Mapping[str, Any]) -> str:
    """Write keys in their order, each list on one line."""
    writer, text = YAML(typ="safe", pure=True), io.StringIO()
    writer.default_flow_style = None
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.width = 4096
    writer.dump(json.loads(json.dumps(document)), text)  # without shared objects, which would become aliases
    return text.getvalue()
