"""Time of a step: the profiler's operators by purpose, and the lines where the host waits."""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # keeps torch's profiler from printing; read on import

import torch
from torch.profiler import ProfilerActivity, profile

import realm_lab
from realm_lab.engine.core.device import CPU, seconds_of

PACKAGE = f"{Path(realm_lab.__file__).parent}/"

# Group -> parts of operator names; the first group that fits wins.
GROUPS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::linear", "aten::matmul"),
    "attention": ("aten::bmm", "aten::baddbmm", "scaled_dot_product", "aten::_softmax", "aten::div"),
    "vocabulary log-softmax": ("log_softmax", "logsumexp", "aten::exp", "aten::gather", "aten::scatter"),
    "GELU": ("gelu",),
    "LayerNorm": ("layer_norm",),
    "optimiser": ("adamw", "linalg_vector_norm", "foreach", "clip"),
    "embedding tables": ("embedding", "aten::fill_", "aten::zero_", "to_dense", "coalesce", "index"),
    "casts and copies": ("aten::copy_", "aten::_to_copy", "aten::clone", "aten::cat", "aten::empty"),
    "additions and sums": ("aten::add", "aten::sum", "aten::mul", "aten::sub"),
    "search": ("aten::topk", "aten::sort"),
}
REST = "other operators"


def grouped_profile(
    work: Callable[[], object], device: torch.device = CPU, trace: Path | None = None
) -> dict[str, float]:
    """Shares of the wall-clock time of one call of `work` by group, largest first; time without an operator is Python.
    On a device the time of each operator's kernels counts, and the rest is `device idle`. `trace`: a file for all
    events, for chrome://tracing (.gz: compressed)."""
    work()
    on_host = device.type == "cpu"
    kinds = [ProfilerActivity.CPU] if on_host else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=kinds) as recorded:
        wall_seconds = seconds_of(work, device)
    if trace:
        recorded.export_chrome_trace(str(trace))
    seconds = dict.fromkeys([*GROUPS, REST], 0.0)
    for event in recorded.key_averages():
        spent = event.self_cpu_time_total if on_host else event.self_device_time_total
        if on_host or event.device_type.name == "CPU":  # with the kernels that it started
            seconds[group_of(event.key)] += spent * 1e-6
    shares = {name: value / wall_seconds for name, value in seconds.items()}
    shares["Python" if on_host else "device idle"] = max(0.0, 1.0 - sum(shares.values()))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def waits(work: Callable[[], object], device: torch.device) -> dict[str, int]:
    """Count the waits of the host for a CUDA device in one call of `work`, by the line of the package that waits."""
    found: Counter[str] = Counter()

    def note(*given: object, **named: object) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        found[f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno} {frame.f_code.co_name}"] += 1

    if device.type == "cuda":
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = note
            torch.cuda.set_sync_debug_mode("warn")
            try:
                work()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    return dict(found.most_common())


def group_of(operator: str) -> str:
    """The group of an operator."""
    fitting = (name for name, parts in GROUPS.items() if any(part in operator for part in parts))
    return next(fitting, REST)
