"""The machine: its best matrix products, its description, and how timings are summarised."""

from __future__ import annotations

import datetime
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from realm_lab.engine.core.device import CPU, device_name, processor, seconds_of

# Rows, inner size, columns: the feed-forward and the query-key-value products of a small model, and a large square.
PRODUCTS = ((1024, 384, 1536), (1024, 1536, 384), (1024, 384, 1152), (2048, 2048, 2048))
LARGE_PRODUCTS = ((16384, 768, 3072), (8192, 8192, 8192))  # large enough for a GPU
COPIED_BYTES = 1 << 31
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ATTEMPTS = 5
COMPETITOR = "import os; os.nice(19)\nwhile True: pass"
COLUMNS = ("per_second", "slowest", "fastest", "reference_is_faster_by", "at_least", "at_most")


def peaks(tiny: bool, only: str | None = None, device: torch.device = CPU) -> dict[str, dict[str, float]]:
    """Precision -> its `matrix_peak`: float32, and bfloat16 unless `only` is float32."""
    precisions = ["float32"] if only == "float32" else PRECISIONS  # emulated bfloat16 products take minutes
    return {precision: matrix_peak(precision, 0.01 if tiny else 0.1, device) for precision in precisions}


def matrix_peak(precision: str, least_seconds: float, device: torch.device = CPU) -> dict[str, float]:
    """Best GFLOP/s of torch's matrix product at each size of PRODUCTS (on a GPU of LARGE_PRODUCTS too), and `best`."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, float] = {}
    for rows, inner, columns in PRODUCTS if device.type == "cpu" else PRODUCTS + LARGE_PRODUCTS:
        left = torch.randn(rows, inner, generator=generator).to(device, PRECISIONS[precision])
        right = torch.randn(columns, inner, generator=generator).to(device, PRECISIONS[precision])
        seconds = best_seconds(partial(functional.linear, left, right), least_seconds, device)
        found[f"{rows}x{inner}x{columns}"] = 2e-9 * rows * inner * columns / seconds
    return found | {"best": max(found.values())}


def bandwidth(tiny: bool, device: torch.device = CPU) -> float:
    """Bytes per second that are read and written while a tensor is copied within the device's memory."""
    source = torch.zeros((COPIED_BYTES >> 8 if tiny else COPIED_BYTES) // 4, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / best_seconds(partial(target.copy_, source), 0.0, device)


def best_seconds(work: Callable[[], object], least_seconds: float = 0.0, device: torch.device = CPU) -> float:
    """Seconds of one call of `work`: the best of 1 + ATTEMPTS timings of about `least_seconds` or more."""

    def seconds(repeats: int) -> float:
        return seconds_of(lambda: [work() for _ in range(repeats)], device)

    repeats = 1
    while (taken := seconds(repeats)) < least_seconds:
        repeats *= 2
    return min([taken, *(seconds(repeats) for _ in range(ATTEMPTS))]) / repeats


@contextmanager
def competing(wanted: bool) -> Iterator[None]:
    """If `wanted`, another process computes meanwhile, on one core and at nice 19."""
    if not wanted:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", COMPETITOR]) as process:
        try:
            yield
        finally:
            process.kill()


def measured(
    paths: Mapping[str, Callable[[int], float]], repetitions: int, once: Sequence[str] = ()
) -> dict[str, list[float]]:
    """Seconds of each path in each repetition, one path after the other; those in `once` only in the first. A path
    takes the number of the repetition and returns its seconds. Progress goes to standard error."""
    seconds: dict[str, list[float]] = {name: [] for name in paths}
    started = time.monotonic()
    for number in range(repetitions):
        for name, path in paths.items():
            if number and name in once:
                continue
            seconds[name].append(path(number))
            line = f"{time.monotonic() - started:5.0f} s: repetition {number + 1} of {repetitions}, {name}"
            print(f"{line}: {seconds[name][-1]:.2f} s", file=sys.stderr, flush=True)
    return seconds


def description(threads: int, device: torch.device = CPU) -> dict[str, Any]:
    """Date, processor, device and versions, for the record."""
    found = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": processor(),
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    return found if device.type == "cpu" else found | {"device": device_name(device)}


def peak_gibibytes(device: torch.device) -> float | None:
    """The most device memory that tensors have had in this process; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None


def summary(seconds: Sequence[float], items: int, reference: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest items per second of the repetitions, and how many times as fast `reference` is.

    The comparison is made within each repetition, on the same items and in the same minute; its median counts.
    """
    rates = [items / taken for taken in seconds]
    faster = [taken / least for taken, least in zip(seconds, reference, strict=False)]
    return {
        "per_second": statistics.median(rates),
        "slowest": min(rates),
        "fastest": max(rates),
        "runs": len(rates),
        "reference_is_faster_by": statistics.median(faster),
        "at_least": min(faster),
        "at_most": max(faster),
    }


def report(result: dict[str, Any], unit: str) -> list[str]:
    """Parts of the text of `embedding` and `pretraining_step`: machine, sizes, matrix peak, paths and profile."""
    peak = {precision: found["best"] for precision, found in result["peak_gflops_per_second"].items()}
    rows = [[name, *(path[key] for key in (*COLUMNS, "fraction_of_peak"))] for name, path in result["paths"].items()]
    ours = next(iter(result["paths"]))  # all others are compared with it
    faster = [f"{ours} is faster by", "at least", "at most"]
    header = [f"path, {unit}/s", "median", "slowest", "fastest", *faster, "fraction of peak"]
    return [
        f"{result['machine']}",
        f"{result['sizes']}",
        "matrix products, GFLOP/s: " + ", ".join(f"{found:.0f} in {precision}" for precision, found in peak.items()),
        table(header, rows),
        table([f"of {ours}", "share"], [[name, f"{part:.1%}"] for name, part in result["profile"].items()]),
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lines of a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 100 else _whole(value)


def _whole(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float) else str(value)
