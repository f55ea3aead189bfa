"""Embed passages with the document tower: a whole corpus, or some rows."""

# Shapes: N passages, U chosen passages, D embedding size

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from realm_lab.engine.core.process import Ranks, autocast, ranks, shared_casts, sum_over_ranks_, to_device
from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.encoder import evaluating
from realm_lab.engine.models.inputs import join, length_groups
from realm_lab.engine.params.parameters import Params

EMBED_CHUNK_ROWS = 8192
ALL = Ranks(0, 1)  # no ranks to share with
EMPTY = np.empty(0, np.int64)


class Inputs(NamedTuple):
    """Settings of a pass through the embedder."""

    special: SpecialIds
    query_length: int  # wordpieces, specials included
    passage_length: int
    token_budget: int  # padded wordpieces at once
    precision: str

    @classmethod
    def of(cls, params: Params, special: SpecialIds) -> Inputs:
        """Take the settings from the parameters."""
        corpus, budget = params.corpus, params.launch.token_budget
        return cls(special, corpus.sentence_length, corpus.passage_length, budget, params.model.precision)


class Embedded:
    """Counter of the passages given to `embed_passages` in this process."""

    passages = 0


@torch.no_grad()
def embed_passages(
    embedder: Embedder,
    passages: Passages,
    rows_U: np.ndarray,
    inputs: Inputs,
    shared: bool = True,
    kept: slice = slice(None),
) -> Tensor:
    """Return Embed_doc of chosen passages with the document tower, without dropout, in groups of similar length, [U,
    D].

    If `shared`, the ranks divide the groups among them; the vectors have the same bits on every rank and for any number
    of ranks. Otherwise this process embeds all of them. Only the vectors of the slice `kept` are returned.
    """
    device = next(embedder.parameters()).device
    first, end, _ = kept.indices(len(rows_U))
    vectors_UD = torch.empty(end - first, embedder.document_projection.out_features, device=device)
    filled = 0
    for start in range(0, len(rows_U), EMBED_CHUNK_ROWS):
        chunk = slice(start, start + EMBED_CHUNK_ROWS)
        with evaluating(embedder), shared_casts(device):
            part_UD = embed_rows(embedder, passages, rows_U[chunk], inputs, ranks() if shared else ALL)
        if shared:
            sum_over_ranks_([part_UD])  # each rank has zeros except for its part: nothing is rounded
        kept_UD = part_UD[max(0, first - start) : max(0, end - start)]
        vectors_UD[filled : filled + len(kept_UD)] = kept_UD
        filled += len(kept_UD)
        Embedded.passages += len(part_UD)
    return vectors_UD


def embed_rows(embedder: Embedder, passages: Passages, rows_U: np.ndarray, inputs: Inputs, part: Ranks = ALL) -> Tensor:
    """Return Embed_doc of some passages, differentiable, [U, D]; row -1 is the null document, [CLS][SEP][SEP] (released
    code). `part`: a rank of several; only its groups of similar length are embedded, and the other vectors are 0."""
    device, longest = next(embedder.parameters()).device, inputs.passage_length
    titles = [passages.titles[row] if row >= 0 else EMPTY for row in rows_U]
    bodies = [passages.bodies[row] if row >= 0 else EMPTY for row in rows_U]
    lengths = [min(longest, len(title) + len(body) + 3) for title, body in zip(titles, bodies, strict=True)]
    groups = length_groups(lengths, inputs.token_budget)[part.rank :: part.size]
    parts = []
    for group in groups:
        batch = join([titles[i] for i in group], [bodies[i] for i in group], inputs.special, longest)
        with autocast(device, inputs.precision):
            parts.append(embedder.embed_documents(batch.to(device)))
    vectors_UD = torch.zeros(len(rows_U), embedder.document_projection.out_features, device=device)
    if not groups:  # more ranks than groups
        return vectors_UD
    return vectors_UD.index_copy(0, to_device(np.concatenate(groups), device), torch.cat(parts))
