"""Numbers that others have published, with their source: published.json, read by name such as `table2.realm`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

from realm_lab.core.files import read_json
from realm_lab.errors import UserError


class Published(NamedTuple):
    """One published system. `values` are shares (0 to 1), by our names of metrics; `baseline` is its table's."""

    source: str
    values: dict[str, float]
    baseline: dict[str, float]


@functools.cache
def published(name: str) -> Published:
    """The system `TABLE.SYSTEM`.

    Raises:
        UserError: not in the registry; the message lists what is.
    """
    tables = read_json(Path(__file__).with_name("published.json"))
    known = {f"{table}.{system}": (entry, system) for table, entry in tables.items() for system in entry["values"]}
    if name not in known:
        raise UserError(f"paper '{name}': no such published system; choose {', '.join(known)}")
    entry, system = known[name]
    return Published(entry["source"], entry["values"][system], entry["values"][entry["baseline"]])
