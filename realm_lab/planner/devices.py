"""The devices that a plan can be made for without having one: devices.json, each with its source."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import NamedTuple

from realm_lab.core.files import read_json
from realm_lab.errors import UserError

TABLE = Path(__file__).with_name("devices.json")


class Device(NamedTuple):
    """Peaks of one device, in SI units; `matrix_operations` a second by precision, None where it has no unit for it."""

    name: str
    matrix_operations: dict[str, float | None]
    memory_bytes: float
    bandwidth_bytes: float  # a second
    source: str

    def operations(self, precision: str) -> float:
        """Peak a second in a precision; a device without it is a UserError."""
        found = self.matrix_operations[precision]
        if found is None:
            raise UserError(
                f"--device {self.name}: it multiplies no {precision} matrices; add --set model.precision=float32, or "
                "choose another device"
            )
        return found


def devices() -> dict[str, Device]:
    """The table, by name."""
    return {
        name: Device(
            name,
            {kind: None if row[kind] is None else 1e12 * row[kind] for kind in ("bfloat16", "float32")},
            1e9 * row["memory"],
            1e9 * row["bandwidth"],
            row["source"],
        )
        for name, row in read_json(TABLE)["devices"].items()
    }


def find_device(name: str) -> Device:
    """A device of the table, in upper or lower case; an unknown one is a UserError with the nearest name."""
    known = devices()
    by_lower = {other.lower(): other for other in known}
    if name.lower() in by_lower:
        return known[by_lower[name.lower()]]
    [nearest] = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.0)
    raise UserError(
        f"--device {name}: not in the table; the nearest is '{by_lower[nearest]}', all are {', '.join(known)}; for "
        "another machine run `realm-lab bench` there and give its file with --calibration"
    )
