"""Runs of other tools as rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from realm_lab.errors import UserError


class Row(NamedTuple):
    """One run: its columns, and the file and line or the name to find it by."""

    values: Mapping[str, Any]
    where: str


Rows = Sequence[Row]


def rows_of(frame: Any) -> list[Row]:
    """A table in memory as rows. UserError: it is no table."""
    if hasattr(frame, "to_dicts"):  # polars
        found = frame.to_dicts()
    elif hasattr(frame, "to_dict"):
        found = frame.to_dict("records")
    elif isinstance(frame, Mapping):
        found = [dict(zip(frame, values, strict=True)) for values in zip(*frame.values(), strict=True)]
    else:
        found = frame
    rows = [row for row in found if isinstance(row, Mapping)] if isinstance(found, Collection) else []
    if not isinstance(found, Collection) or len(rows) < len(found):
        raise UserError(f"a {type(frame).__name__} is no table of runs", remedy="give a data frame or a list of dicts")
    return [Row(row, f"row {place}") for place, row in enumerate(rows)]
