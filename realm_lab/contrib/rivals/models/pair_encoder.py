"""Encode questions with passages by one Transformer: the [CLS] of [CLS] x [SEP] z [SEP], in groups of similar
length."""

# Shapes: N pairs (question, passage), D hidden size

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from realm_lab.core.process import autocast
from realm_lab.corpus.store import Passages
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.models.encoder import Encoder
from realm_lab.models.inputs import Batch, join, length_groups
from realm_lab.params.parameters import Params


class PairEncoder:
    """An encoder with the passages that it reads, without their titles, as the readers do."""

    def __init__(self, params: Params, encoder: Encoder, passages: Passages, special: SpecialIds):
        self.encoder, self._passages, self._special = encoder, passages, special
        self._longest = params.corpus.sentence_length + params.corpus.passage_length
        self._launch, self._precision = params.launch, params.model.precision
        self._device = next(encoder.parameters()).device

    def vectors(self, queries: Sequence[np.ndarray], rows: Sequence[int]) -> Tensor:
        """Return the vector of each question with its passage, float32 [N, D]; differentiable."""
        bodies = [self._passages.bodies[row] for row in rows]
        lengths = [min(self._longest, len(q) + len(body) + 3) for q, body in zip(queries, bodies, strict=True)]
        groups, parts = length_groups(lengths, self._launch.token_budget), []
        for group in groups:
            batch = join([queries[i] for i in group], [bodies[i] for i in group], self._special, self._longest)
            if self._launch.recompute and torch.is_grad_enabled():
                parts.append(checkpoint(self._first, batch.to(self._device), use_reentrant=False))
            else:
                parts.append(self._first(batch.to(self._device)))
        return torch.cat(parts)[torch.from_numpy(np.argsort(np.concatenate(groups))).to(self._device)]

    def _first(self, batch: Batch) -> Tensor:
        with autocast(self._device, self._precision):
            at_N1 = torch.zeros(len(batch.tokens_BL), 1, dtype=torch.int64, device=self._device)
            hidden_N1D: Tensor = self.encoder(*batch, at_N1)
            return hidden_N1D[:, 0].float()
