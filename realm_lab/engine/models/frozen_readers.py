"""Readers of passages that a plug-in brings and pre-training never trains. No torch.

One is called with (context, passages) and returns a `FrozenReader` (candidate_reader.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from realm_lab.records.plugins import Kind, Plugin

PARAMETER, CAUSAL = "pretrain.causal_checkpoint", "causal"
FROZEN_READERS: Kind[Callable[..., Any]] = Kind("frozen reader", "function", "context, passages")


def causal_reader() -> Plugin[Callable[..., Any]]:
    """Return the reader that is a causal language model. UserError: no installed plug-in has it."""
    return FROZEN_READERS.find(PARAMETER, CAUSAL)
