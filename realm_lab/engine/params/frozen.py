"""Frozen language models, which a plug-in provides as readers of pre-training. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from realm_lab.records.plugins import Kind, Plugin

PARAMETER, CAUSAL = "pretrain.causal_checkpoint", "causal"


class FrozenModel:
    """Functions that a plug-in provides for one kind of language model on disk."""

    @staticmethod
    def check(path: Path) -> None:
        """Raise a UserError if there is no such model. No weight is read."""
        raise NotImplementedError

    @staticmethod
    def check_positions(path: Path, passage_length: int, sentence_length: int) -> None:
        """Raise a UserError if the model has fewer positions than a prompt has wordpieces."""
        raise NotImplementedError

    @staticmethod
    def digest(path: Path) -> str:
        """Return the digest of the model's files. UserError: there is no such model."""
        raise NotImplementedError

    @staticmethod
    def reader(context: Any, passages: Any) -> Any:
        """Return the model that the parameters of `context` name, as a `FrozenReader` (models/candidate_reader.py)."""
        raise NotImplementedError


FROZEN_MODELS: Kind[type[FrozenModel]] = Kind("frozen model", "Class")


def causal() -> Plugin[type[FrozenModel]]:
    """Return the plug-in for `pretrain.causal_checkpoint`. UserError: none is installed."""
    return FROZEN_MODELS.find(PARAMETER, CAUSAL)
