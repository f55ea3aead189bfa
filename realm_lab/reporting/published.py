"""Numbers that others have published, with their source: published.json, read by name such as `table2.realm`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.core.files import read_json
from realm_lab.errors import UserError


class Published(NamedTuple):
    """One published system. `values` are shares (0 to 1), by our names of metrics; `baseline` is its table's."""

    name: str
    title: str
    source: str
    values: dict[str, float]
    baseline: dict[str, float]


def published(name: str) -> Published:
    """The system `TABLE.SYSTEM`.

    Raises:
        UserError: not in the registry; the message lists what is.
    """
    tables = _registry()
    table, _, system = name.partition(".")
    found = tables.get(table, {}).get("values", {})
    if system not in found:
        known = ", ".join(f"{table}.{system}" for table, entry in tables.items() for system in entry["values"])
        raise UserError(f"paper '{name}': no such published system; choose {known}")
    entry = tables[table]
    values = {key: float(value) for key, value in found[system].items() if key != "title"}
    baseline = {key: float(value) for key, value in found[entry["baseline"]].items() if key != "title"}
    return Published(name, found[system]["title"], entry["source"], values, baseline)


@functools.cache
def _registry() -> dict[str, Any]:
    registry: dict[str, Any] = read_json(Path(__file__).with_name("published.json"))
    return registry
