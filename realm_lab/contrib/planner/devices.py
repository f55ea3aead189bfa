"""The table of known GPUs (devices.json, each with its source)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from realm_lab.errors import UserError, suggestion
from realm_lab.records.files import read_json

TABLE = Path(__file__).with_name("devices.json")


class Device(NamedTuple):
    """Peaks of one device, in SI units. `matrix_operations`: per second, by precision; None if it is not supported."""

    name: str
    matrix_operations: dict[str, float | None]
    memory_bytes: float
    bandwidth_bytes: float  # per second
    source: str

    def operations(self, precision: str) -> float:
        """Return the peak operations per second in a precision. UserError: the device does not support it."""
        found = self.matrix_operations[precision]
        if found is None:
            remedy = "add --set model.precision=float32, or choose another device"
            raise UserError(f"--device {self.name}: it multiplies no {precision} matrices; {remedy}")
        return found


def find_device(name: str) -> Device:
    """Find a device in the table, ignoring case; an unknown one is a UserError with the nearest name."""
    rows = read_json(TABLE)["devices"]
    known = {known.lower(): known for known in rows}
    if name.lower() not in known:
        raise UserError(
            f"--device {name}: not in the table; {suggestion(name, rows)} "
            "(for another machine, run `realm-lab plan --measure` there and copy runs/bench.json)"
        )
    row = rows[known[name.lower()]]
    peaks = {kind: row[kind] and 1e12 * row[kind] for kind in ("float32", "bfloat16")}
    return Device(known[name.lower()], peaks, 1e9 * row["memory"], 1e9 * row["bandwidth"], row["source"])
