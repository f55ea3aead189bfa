"""Frozen language models, which a plug-in provides as readers of pre-training. No torch."""

from __future__ import annotations

from typing import Any

from realm_lab.records.plugins import Kind, Plugin

PARAMETER, CAUSAL = "pretrain.causal_checkpoint", "causal"
FROZEN_MODELS: Kind[Any] = Kind("frozen model", "Class")


def causal() -> Plugin[Any]:
    """Return the plug-in for `pretrain.causal_checkpoint`. UserError: none is installed."""
    return FROZEN_MODELS.find(PARAMETER, CAUSAL)
