"""Reading many (query, candidate) pairs: p(y|z,x) of masked words for every candidate, in groups of similar length."""

# Shapes: B queries, K candidates, M masked positions, N pairs of a group (or of all), P masked positions of all pairs

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from realm_lab.core.process import autocast
from realm_lab.corpus.store import Passages
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.models.inputs import Batch, join, length_groups
from realm_lab.models.reader import Reader

HEAD_ROWS = 2048  # masked positions that are scored at once: 240 MiB of float32 logits for 30,522 words


def read_candidates(
    reader: Reader,
    queries: Sequence[np.ndarray],
    at_BM: Tensor,
    targets_BM: Tensor,
    rows_BK: np.ndarray,
    passages: Passages,
    special: SpecialIds,
    *,
    max_length: int,
    token_budget: int,
    precision: str,
    is_masked_BM: Tensor | None = None,
    recompute: bool = False,
) -> Tensor:
    """log p(y_j|z,x) of every masked word under every candidate, float32 [B, K, M].

    `at_BM` are positions in the query's own wordpieces; a negative row reads no passage (the null document). The
    joined input has no title (section 3.2: z_body). A position where `is_masked_BM` is false is not scored: 0.
    With `recompute` no activation is held: the backward pass reads each group once more, with the same dropout.
    """
    device = next(reader.parameters()).device
    batch, candidates = rows_BK.shape
    empty = np.empty(0, np.int64)
    flat_rows = rows_BK.reshape(-1)
    owners = np.repeat(np.arange(batch), candidates).tolist()
    bodies = [passages.bodies[row] if row >= 0 else empty for row in flat_rows]
    lengths = [min(max_length, len(queries[b]) + len(body) + 3) for b, body in zip(owners, bodies, strict=True)]
    groups = length_groups(lengths, token_budget)

    def hidden(joined: Batch, at_NM: Tensor) -> Tensor:
        with autocast(device, precision):
            return reader.masked_hidden(joined, at_NM)

    def log_probs(hidden_PD: Tensor, targets_P: Tensor) -> Tensor:
        with autocast(device, precision):
            return reader.target_log_probs(hidden_PD, targets_P)

    def held(work: Callable[..., Tensor], *given: object) -> Tensor:
        if recompute and torch.is_grad_enabled():
            again: Tensor = checkpoint(work, *given, use_reentrant=False)
            return again
        return work(*given)

    parts = []
    for group in groups:
        joined = join([queries[owners[i]] for i in group], [bodies[i] for i in group], special, max_length).to(device)
        owner = torch.tensor([owners[i] for i in group])
        parts.append(held(hidden, joined, (at_BM[owner] + 1).to(device)))  # + 1: after [CLS]
    order = torch.from_numpy(np.argsort(np.concatenate(groups))).to(device)
    hidden_NMD = torch.cat(parts)[order]
    # The vocabulary is wide and a group has few masks: the head takes the masks of all groups together.
    targets_NM = targets_BM.repeat_interleave(candidates, 0).to(device)
    real_NM = torch.ones_like(targets_NM, dtype=torch.bool)
    if is_masked_BM is not None:
        real_NM = is_masked_BM.repeat_interleave(candidates, 0).to(device)
    pieces = zip(hidden_NMD[real_NM].split(HEAD_ROWS), targets_NM[real_NM].split(HEAD_ROWS), strict=True)
    found_P = torch.cat([held(log_probs, hidden_PD, targets_P) for hidden_PD, targets_P in pieces])
    return found_P.new_zeros(real_NM.shape).masked_scatter(real_NM, found_P).view(batch, candidates, -1)
