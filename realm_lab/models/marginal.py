"""Reading many (query, candidate) pairs: p(y|z,x) of masked words for every candidate, in groups of similar length."""

# Shapes: B queries, K candidates, M masked positions, D hidden size

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from realm_lab.core.process import autocast
from realm_lab.corpus.store import Passages
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.models.inputs import join, length_groups
from realm_lab.models.reader import Reader


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
) -> Tensor:
    """log p(y_j|z,x) of every masked word under every candidate, float32 [B, K, M].

    `at_BM` are positions in the query's own wordpieces; a negative row reads no passage (the null document). The
    joined input has no title (section 3.2: z_body).
    """
    device = next(reader.parameters()).device
    batch, candidates = rows_BK.shape
    empty = np.empty(0, np.int64)
    flat_rows = rows_BK.reshape(-1)
    owners = np.repeat(np.arange(batch), candidates).tolist()
    bodies = [passages.bodies[row] if row >= 0 else empty for row in flat_rows]
    lengths = [min(max_length, len(queries[b]) + len(body) + 3) for b, body in zip(owners, bodies, strict=True)]
    groups = length_groups(lengths, token_budget)
    parts = []
    for group in groups:
        joined = join([queries[owners[i]] for i in group], [bodies[i] for i in group], special, max_length).to(device)
        owner = torch.tensor([owners[i] for i in group])
        at_NM, targets_NM = (at_BM[owner] + 1).to(device), targets_BM[owner].to(device)  # + 1: after [CLS]
        with autocast(device, precision):
            parts.append(reader.target_log_probs(reader.masked_hidden(joined, at_NM), targets_NM))
    order = torch.from_numpy(np.argsort(np.concatenate(groups))).to(device)
    return torch.cat(parts)[order].view(batch, candidates, -1)
