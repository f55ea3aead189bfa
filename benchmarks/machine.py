"""The machine: its best matrix products, its description, and how timings are summarised."""

from __future__ import annotations

import datetime
import platform
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from realm_lab.planner.machine import PRECISIONS, matrix_peak, processor

COLUMNS = ("per_second", "slowest", "fastest", "reference_is_faster_by", "at_least", "at_most")


def peaks(tiny: bool) -> dict[str, dict[str, float]]:
    """matrix_peak of both precisions."""
    return {precision: matrix_peak(precision, 0.01 if tiny else 0.1) for precision in PRECISIONS}


def description(threads: int) -> dict[str, Any]:
    """Date, processor and versions, for the record."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": processor(),
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def summary(seconds: Sequence[float], items: int, reference: Sequence[float]) -> dict[str, float]:
    """Median items a second over the repetitions, with the slowest and the fastest, and how much faster `reference` is.

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
    """What both benchmarks print: machine, sizes, peak, paths and profile."""
    peak = {precision: found["best"] for precision, found in result["peak_gflops_per_second"].items()}
    rows = [[name, *(path[key] for key in (*COLUMNS, "fraction_of_peak"))] for name, path in result["paths"].items()]
    faster = ["realm_lab bfloat16 is faster by", "at least", "at most"]
    header = [f"path, {unit}/s", "median", "slowest", "fastest", *faster, "fraction of peak"]
    return [
        f"{result['machine']}",
        f"{result['sizes']}",
        f"matrix products, GFLOP/s: {peak['float32']:.0f} in float32, {peak['bfloat16']:.0f} in bfloat16",
        table(header, rows),
        table(["of realm_lab bfloat16", "share"], [[name, f"{part:.1%}"] for name, part in result["profile"].items()]),
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lines of a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 100 else _whole(value)


def _whole(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float) else str(value)
