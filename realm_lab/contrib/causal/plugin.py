"""Registers the language models that `pretrain.causal_checkpoint` names; an entry point of `realm_lab.plugins`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from realm_lab.contrib.causal import files
from realm_lab.engine.params.frozen import CAUSAL, FROZEN_MODELS

if TYPE_CHECKING:
    from realm_lab.contrib.causal.likelihoods import CausalReader
    from realm_lab.engine.corpus.store import Passages
    from realm_lab.engine.systems.context import Context


@FROZEN_MODELS.register(CAUSAL)
class Causal:
    """A causal language model on the disk."""

    check = staticmethod(files.check)
    check_positions = staticmethod(files.check_positions)
    digest = staticmethod(files.digest_of)

    @staticmethod
    def reader(context: Context, passages: Passages) -> CausalReader:
        """Return the model that the parameters name, as a reader of these passages."""
        from realm_lab.contrib.causal.likelihoods import causal_reader

        return causal_reader(context, passages)
