"""This machine: what its device is called, its best matrix product, and how fast it reads its memory."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import torch
from torch.nn import functional

# Rows, inner size, columns: the feed-forward and the query-key-value products of a small model, and a large square.
PRODUCTS = ((1024, 384, 1536), (1024, 1536, 384), (1024, 384, 1152), (2048, 2048, 2048))
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ATTEMPTS = 5
READ_BYTES = 1 << 28
CPU = torch.device("cpu")


def device_name(device: torch.device) -> str:
    """The name under which a device is planned for; of a processor, with the cores that are used."""
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
    """Name of the processor and what it has for bfloat16."""
    information = Path("/proc/cpuinfo")
    if not information.exists():
        return platform.processor() or platform.machine()
    lines = [line.partition(":") for line in information.read_text().splitlines()]
    values = {key.strip(): value.strip() for key, _, value in lines}
    units = [unit for unit in ("avx512f", "avx512_bf16", "amx_bf16") if unit in values.get("flags", "").split()]
    return f"{values.get('model name', platform.machine())} ({', '.join(units)})"


def matrix_peak(precision: str, least_seconds: float = 0.1, device: torch.device = CPU) -> dict[str, float]:
    """Best GFLOP/s of torch's matrix product at each size of PRODUCTS, and the best of all under `best`."""
    kind = PRECISIONS[precision]
    generator = torch.Generator().manual_seed(0)
    found: dict[str, float] = {}
    for rows, inner, columns in PRODUCTS:
        left = torch.randn(rows, inner, generator=generator).to(device, kind)
        right = torch.randn(columns, inner, generator=generator).to(device, kind)
        seconds = best_seconds(partial(functional.linear, left, right), least_seconds, device)
        found[f"{rows}x{inner}x{columns}"] = 2e-9 * rows * inner * columns / seconds
    return found | {"best": max(found.values())}


def read_rate(device: torch.device = CPU, size_bytes: int = READ_BYTES) -> float:
    """Bytes a second of reading memory once from end to end."""
    numbers = torch.ones(size_bytes // 4, device=device)
    return size_bytes / best_seconds(numbers.sum, 0.0, device)


def best_seconds(work: Callable[[], object], least_seconds: float, device: torch.device = CPU) -> float:
    """Seconds of one call of `work`, best of ATTEMPTS runs of at least `least_seconds`."""
    repeats, best = 1, float("inf")
    work()
    for _ in range(ATTEMPTS):
        while True:
            taken = seconds_of(partial(_repeat, work, repeats), device)
            if taken >= least_seconds:
                break
            repeats *= 2
        best = min(best, taken / repeats)
    return best


def seconds_of(work: Callable[[], object], device: torch.device = CPU) -> float:
    """Wall-clock seconds of one call, to the end of what it started on the device."""
    _finish(device)
    started = time.perf_counter()
    work()
    _finish(device)
    return time.perf_counter() - started


def _repeat(work: Callable[[], object], repeats: int) -> None:
    for _ in range(repeats):
        work()


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
