"""Where the time of a step goes: the profiler's operators by what they are for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # read when torch is loaded: no lines of its own on standard error

from torch.profiler import ProfilerActivity, profile

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


def grouped_profile(work: Callable[[], object]) -> dict[str, float]:
    """Share of the wall-clock time of one call of `work` by group, largest first; what no operator has is Python."""
    work()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        started = time.perf_counter()
        work()
        wall_seconds = time.perf_counter() - started
    seconds = dict.fromkeys([*GROUPS, REST], 0.0)
    for event in recorded.key_averages():
        seconds[group_of(event.key)] += event.self_cpu_time_total * 1e-6
    shares = {name: value / wall_seconds for name, value in seconds.items()}
    shares["Python"] = max(0.0, 1.0 - sum(shares.values()))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def group_of(operator: str) -> str:
    """The group of an operator."""
    fitting = (name for name, parts in GROUPS.items() if any(part in operator for part in parts))
    return next(fitting, REST)
