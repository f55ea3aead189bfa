"""Measure energy if the machine counts it: RAPL for processors (Linux), NVML for NVIDIA devices."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path

RAPL = Path("/sys/class/powercap")


Counter = tuple[Callable[[], float], float]  # reads joules; starts again at zero when it reaches this number


class EnergyMeter:
    """Joules of this machine since the meter was made: all processors, and the devices that this process sees,
    whatever else runs on them. Read it at least once per wrap-around: RAPL's counter wraps within hours."""

    def __init__(self, device: str) -> None:
        self._counters = [*_processors(), *(_devices() if device.startswith("cuda") else [])]
        self._last = [read() for read, _ in self._counters]
        self._joules = 0.0

    def joules(self) -> float:
        """0 if nothing is counted."""
        for number, ((read, wraps_at), last) in enumerate(zip(self._counters, self._last, strict=True)):
            self._last[number] = now = read()
            self._joules += now - last if now >= last else now - last + wraps_at
        return self._joules


def _processors() -> list[Counter]:
    """Find packages of processors, with their cores and memory; most systems let only an administrator read them."""
    counters: list[Counter] = []
    for package in sorted(RAPL.glob("intel-rapl:[0-9]*")):
        if package.name.count(":") > 1:
            continue  # a part of a package
        try:
            wraps_at = _joules(package / "max_energy_range_uj")
            _joules(package / "energy_uj")
        except OSError:
            continue
        counters.append((partial(_joules, package / "energy_uj"), wraps_at))
    return counters


def _joules(path: Path) -> float:
    return int(path.read_text()) / 1e6


def _devices() -> list[Counter]:
    """Find NVIDIA devices, Volta or newer; the library comes with the driver."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    import torch  # here, for this module is read where torch is not

    library.nvmlInit_v2()
    counters: list[Counter] = []
    for number in range(torch.cuda.device_count()):
        name, handle = f"GPU-{torch.cuda.get_device_properties(number).uuid}".encode(), ctypes.c_void_p()
        library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle))
        counters.append((partial(_device_joules, library, handle), 0.0))
    return [counter for counter in counters if counter[0]()]


def _device_joules(library: ctypes.CDLL, handle: ctypes.c_void_p) -> float:
    """Joules since the driver was loaded; 0 if the device does not report them."""
    millijoules = ctypes.c_ulonglong()
    failed = library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
    return 0.0 if failed else millijoules.value / 1e3
