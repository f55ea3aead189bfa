"""Count floating-point operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

T = TypeVar("T")
_ATEN = torch.ops.aten
_FORMULAS = flop_registry | {  # PyTorch's table lacks the attention of CPUs
    _ATEN._scaled_dot_product_flash_attention_for_cpu: flop_registry[_ATEN._scaled_dot_product_flash_attention],
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        _ATEN._scaled_dot_product_flash_attention_backward
    ],
}


class FlopCount(TorchDispatchMode):
    """Counts the operations of matrix products and attentions in a `with` block, forward and backward.

    The counts equal those of `torch.utils.flop_counter.FlopCounterMode`. FlopCounterMode may replace operators by
    others that round differently; here operators run unchanged. Not counted: LSTMs on the CPU, NumPy, FAISS, and
    `uncounted` blocks."""

    flop = 0
    times = 1.0


def _count(self: FlopCount, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    found = func(*args, **(kwargs or {}))
    if (formula := _FORMULAS.get(func.overloadpacket)) is not None:
        self.flop += round(FlopCount.times * formula(*args, **(kwargs or {}), out_val=found))
    return found


# Not in the class, where torch would wrap it: the wrapper imports the compiler, which takes as long as importing torch.
FlopCount.__torch_dispatch__ = _count  # type: ignore[assignment, method-assign]


@contextmanager
def counted(times: float) -> Iterator[None]:
    """Count every operation in the block `times` times, to include the parts of the work that other processes do."""
    before = FlopCount.times
    FlopCount.times = before * times
    try:
        yield
    finally:
        FlopCount.times = before


def uncounted() -> AbstractContextManager[None]:
    """Pause every `FlopCount`, for work whose operations are known without counting."""
    return counted(0)


def computed(recompute: bool, work: Callable[..., T], *given: Any) -> T:
    """Return the result of `work`. With `recompute` none of its activations are kept: the backward pass computes them
    again, with the same dropout. `FlopCount` counts the work once."""
    if not (recompute and torch.is_grad_enabled()):
        return work(*given)
    found: T = checkpoint(work, *given, use_reentrant=False, context_fn=lambda: (nullcontext(), uncounted()))
    return found
