"""Count waits of the host for the device: reading a number, copies to or from it, and operators of unknown size."""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import realm_lab

PACKAGE = str(Path(realm_lab.__file__).parent)
SIZED_BY_VALUES = {"aten.nonzero", "aten.masked_select", "aten._unique2", "aten.equal", "aten.bincount"}


class Waits(TorchDispatchMode):
    """Counts waits by the line in the package that caused them: `engine/training/pretrain.py train_step: number`.

    kinds: `number` (item, tolist, float, a condition), `to host`, `from host` (copies that block), `size` (the shape of
    a result depends on values). A copy with `non_blocking` does not wait; to the device this holds only for pinned
    memory: CUDA copies other memory to a buffer first, and may wait for the device to do so.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        kind = _kind(str(function.overloadpacket), args, kwargs, result)
        if kind:
            self.found[f"{_place()}: {kind}"] += 1
        return result


def _kind(name: str, args: Any, kwargs: Any, result: Any) -> str:
    source = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if name == "aten._to_copy" and source is not None:
        return _copy(source, result, kwargs.get("non_blocking", False))
    if name == "aten.copy_" and isinstance(args[1], torch.Tensor):
        return _copy(args[1], args[0], len(args) > 2 and args[2])
    if source is None or source.is_cpu:
        return ""
    if name in ("aten.index", "aten.index_put", "aten.index_put_"):
        chosen = [index for index in args[1] if index is not None]
        if any(index.dtype in (torch.bool, torch.uint8) for index in chosen):
            return "size"
        return "from host" if any(index.is_cpu and index.dim() for index in chosen) else ""
    if name == "aten.repeat_interleave" and kwargs.get("output_size") is None:
        return "size"
    return "number" if name == "aten._local_scalar_dense" else "size" * (name in SIZED_BY_VALUES)


def _copy(source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> str:
    if source.is_cpu == target.is_cpu or (non_blocking and (target.is_cpu or source.is_pinned())):
        return ""
    return "to host" if target.is_cpu else "from host"


def _place() -> str:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(PACKAGE):
            return f"{path.removeprefix(PACKAGE + '/')} {frame.f_code.co_name}"
        frame = frame.f_back
    return "the backward pass"
