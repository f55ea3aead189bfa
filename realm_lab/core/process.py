"""Devices and threads of this process."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

import torch

from realm_lab.errors import UserError


def pick_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("parameter 'launch.device': cuda was asked for but torch sees no GPU; use auto or cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def limit_threads(threads: int) -> None:
    """Use `threads` cores in this process (0: leave as it is)."""
    if threads:
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """bfloat16 for matrix products where `precision` says so; scores, losses and weights stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
