"""Devices: the table (devices.json, each with its source), and measurable properties of this machine's device."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from realm_lab.errors import UserError, suggestion
from realm_lab.records import environment
from realm_lab.records.files import read_json

TABLE = Path(__file__).with_name("devices.json")
CPU = torch.device("cpu")


class Device(NamedTuple):
    """Peaks of one device, in SI units; `matrix_operations` per second by precision, None if it has no unit for it."""

    name: str
    matrix_operations: dict[str, float | None]
    memory_bytes: float
    bandwidth_bytes: float  # a second
    source: str

    def operations(self, precision: str) -> float:
        """Return the peak per second in a precision; a device without it is a UserError."""
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
            "(for another machine, run `realm-lab bench` there and copy runs/bench.json)"
        )
    row = rows[known[name.lower()]]
    peaks = {kind: row[kind] and 1e12 * row[kind] for kind in ("float32", "bfloat16")}
    return Device(known[name.lower()], peaks, 1e9 * row["memory"], 1e9 * row["bandwidth"], row["source"])


def device_name(device: torch.device) -> str:
    """Return the name of a device in plans; for a processor, with the number of used cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} thread{'s' if threads > 1 else ''}"


def memory_bytes(device: torch.device) -> int:
    """All memory of a device."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)


def processor() -> str:
    """Return the name of the processor and its bfloat16 instructions."""
    name, flags = environment.processor()
    return f"{name} ({', '.join(unit for unit in ('avx512f', 'avx512_bf16', 'amx_bf16') if unit in flags)})"


def seconds_of(work: Callable[[], object], device: torch.device = CPU) -> float:
    """Measure wall-clock seconds of one call, to the end of the work that it started on the device."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    started = time.perf_counter()
    work()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - started
