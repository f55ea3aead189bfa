"""Numbers that others have published, with their source: published.json, read by name such as `table2.realm`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

from realm_lab.errors import UserError
from realm_lab.records.files import read_json


class Published(NamedTuple):
    """One published system. `values` are shares (0 to 1) by the names of realm_lab's metrics. `baseline`: values of the
    baseline in the same table. `later`: values printed in later papers."""

    source: str
    values: dict[str, float]
    baseline: dict[str, float]
    later_source: str
    later: dict[str, float]


@functools.cache
def published(name: str) -> Published:
    """Return the system `TABLE.SYSTEM`. UserError: it is not in published.json; the message lists all names."""
    tables = read_json(Path(__file__).with_name("published.json"))
    known = {
        f"{table}.{system}": (entry, system)
        for table, entry in tables.items()
        for system in entry["values"] | entry.get("later", {})
    }
    if name not in known:
        raise UserError(f"paper '{name}': no such published system; choose {', '.join(known)}")
    entry, system = known[name]
    values, later = entry["values"], entry.get("later", {})
    printed = entry["source"], values.get(system, {}), values[entry["baseline"]]
    return Published(*printed, entry.get("later_source", ""), later.get(system, {}))
