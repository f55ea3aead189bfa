"""Name and memory of a device, and the time that work takes on it."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import torch

from realm_lab.records import environment

CPU = torch.device("cpu")


def device_name(device: torch.device) -> str:
    """Return the name of a device for plans. A processor's name includes torch's number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} thread{'s' if threads > 1 else ''}"


def memory_bytes(device: torch.device) -> int:
    """Return the whole memory of a device, used or free."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)


def processor() -> str:
    """Return the name of the processor and its AVX-512 and bfloat16 instruction sets, if it has any."""
    name, flags = environment.processor()
    units = ", ".join(unit for unit in ("avx512f", "avx512_bf16", "amx_bf16") if unit in flags)
    return f"{name} ({units})" if units else name


def seconds_of(work: Callable[[], object], device: torch.device = CPU) -> float:
    """Return the wall-clock seconds of one call, including the work that it started on the device."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    started = time.perf_counter()
    work()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - started
