"""Embedding passages with the document tower: all of a corpus, or some rows."""

# Shapes: N passages, U chosen passages, D embedding size

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from realm_lab.core.process import Ranks, autocast, ranks, shared_casts, sum_over_ranks_
from realm_lab.corpus.store import Passages
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.models.embedder import Embedder
from realm_lab.models.inputs import join, length_groups

EMBED_CHUNK_ROWS = 8192
ALL = Ranks(0, 1)  # no ranks to share with


class Embedded:
    """Counts the passages of whole corpora that this process has embedded; tests look at it."""

    passages = 0


@torch.no_grad()
def embed_passages(
    embedder: Embedder,
    passages: Passages,
    rows_U: np.ndarray,
    special: SpecialIds,
    passage_length: int,
    token_budget: int,
    precision: str,
    shared: bool = True,
) -> Tensor:
    """Embed_doc of chosen passages with the document tower, without dropout, in groups of similar length, [U, D].

    Where it is `shared`, the ranks share the groups out between them; the vectors have the same bits on each, and
    however many there are. Else this process embeds all, whatever the others do.
    """
    device = next(embedder.parameters()).device
    training = embedder.training
    embedder.eval()
    vectors_UD = torch.empty(len(rows_U), embedder.document_projection.out_features, device=device)
    for start in range(0, len(rows_U), EMBED_CHUNK_ROWS):
        chunk = slice(start, start + EMBED_CHUNK_ROWS)
        with shared_casts(device):
            settings = (special, passage_length, token_budget, precision)
            part_UD = embed_rows(embedder, passages, rows_U[chunk], *settings, ranks() if shared else ALL)
        if shared:
            sum_over_ranks_([part_UD])  # zeros but for each rank's own: nothing is rounded
        vectors_UD[chunk] = part_UD
        Embedded.passages += len(part_UD)
    embedder.train(training)
    return vectors_UD


def embed_rows(
    embedder: Embedder,
    passages: Passages,
    rows: np.ndarray,
    special: SpecialIds,
    passage_length: int,
    token_budget: int,
    precision: str,
    part: Ranks = ALL,
) -> Tensor:
    """Embed_doc of some passages, [len(rows), D], in groups of similar length; row -1 is the null document,
    [CLS][SEP][SEP] (released code). Of a `part`, only its share of the groups is embedded, the rest is 0."""
    device = next(embedder.parameters()).device
    empty = np.empty(0, np.int64)
    titles = [passages.titles[row] if row >= 0 else empty for row in rows]
    bodies = [passages.bodies[row] if row >= 0 else empty for row in rows]
    lengths = [min(passage_length, len(title) + len(body) + 3) for title, body in zip(titles, bodies, strict=True)]
    groups = length_groups(lengths, token_budget)
    own = groups[part.rank :: part.size]
    parts = []
    for group in own:
        batch = join([titles[i] for i in group], [bodies[i] for i in group], special, passage_length)
        with autocast(device, precision):
            parts.append(embedder.embed_documents(batch.to(device)))
    if part.size > 1:
        vectors_ND = torch.zeros(len(rows), embedder.document_projection.out_features, device=device)
        for group, part_ND in zip(own, parts, strict=True):
            vectors_ND[torch.from_numpy(group).to(device)] = part_ND
        return vectors_ND
    order = torch.from_numpy(np.argsort(np.concatenate(groups))).to(device)
    return torch.cat(parts)[order]
