"""The MIPS index: every passage's embedding, bound to the corpus and the weights that made it; exact search."""

# Shapes: N passages, B queries, K results, D embedding size

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from realm_lab.core.process import autocast
from realm_lab.corpus.store import Passages
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.errors import UserError
from realm_lab.models.embedder import Embedder
from realm_lab.models.inputs import join, length_groups

SEARCH_CHUNK_SCORES = 1 << 25  # scores held at once: 128 MiB of float32
EMBED_CHUNK_ROWS = 8192


class IndexGeneration(NamedTuple):
    """One build of the index. `step` is the number of training steps behind its weights."""

    embeddings_ND: Tensor  # float32
    corpus_digest: str
    step: int


class SearchResult(NamedTuple):
    """Top passages of each query, best first; rows are -1 where too few were allowed."""

    rows_BK: Tensor  # int64
    scores_BK: Tensor  # float32, -inf where rows are -1


class Exclusion(NamedTuple):
    """What a query must not retrieve: its own passage, or every passage of its article."""

    forbidden_B: Tensor  # int64 passage rows or article numbers; -1 forbids nothing
    group_N: Tensor | None  # article number of each passage; None: rows are compared


@torch.no_grad()
def build_index(
    embedder: Embedder,
    passages: Passages,
    special: SpecialIds,
    *,
    corpus_digest: str,
    step: int,
    passage_length: int,
    token_budget: int,
    precision: str,
) -> IndexGeneration:
    """Embed every passage with the document tower, in groups of similar length."""
    device = next(embedder.parameters()).device
    training = embedder.training
    embedder.eval()
    embeddings_ND = torch.empty(len(passages), embedder.document_projection.out_features, device=device)
    for start in range(0, len(passages), EMBED_CHUNK_ROWS):
        rows = np.arange(start, min(start + EMBED_CHUNK_ROWS, len(passages)))
        embeddings_ND[rows] = embed_rows(embedder, passages, rows, special, passage_length, token_budget, precision)
    embedder.train(training)
    return IndexGeneration(embeddings_ND, corpus_digest, step)


def embed_rows(
    embedder: Embedder,
    passages: Passages,
    rows: np.ndarray,
    special: SpecialIds,
    passage_length: int,
    token_budget: int,
    precision: str,
) -> Tensor:
    """Embed_doc of some passages, [len(rows), D], in groups of similar length; row -1 is the null document,
    [CLS][SEP][SEP] (released code)."""
    device = next(embedder.parameters()).device
    empty = np.empty(0, np.int64)
    titles = [passages.titles[row] if row >= 0 else empty for row in rows]
    bodies = [passages.bodies[row] if row >= 0 else empty for row in rows]
    lengths = [min(passage_length, len(title) + len(body) + 3) for title, body in zip(titles, bodies, strict=True)]
    groups = length_groups(lengths, token_budget)
    parts = []
    for group in groups:
        batch = join([titles[i] for i in group], [bodies[i] for i in group], special, passage_length)
        with autocast(device, precision):
            parts.append(embedder.embed_documents(batch.to(device)))
    order = torch.from_numpy(np.argsort(np.concatenate(groups))).to(device)
    return torch.cat(parts)[order]


@torch.no_grad()
def search(index: IndexGeneration, query_BD: Tensor, count: int, exclude: Exclusion | None = None) -> SearchResult:
    """The `count` passages of largest inner product, exactly, in bounded memory; ties go to the lower row.

    A forbidden passage is never returned, even where fewer than `count` are left.
    """
    if not torch.isfinite(query_BD).all():
        raise UserError("the query embeddings are not finite: training has diverged; lower the learning rates")
    total = len(index.embeddings_ND)
    width = max(1, SEARCH_CHUNK_SCORES // max(1, len(query_BD)))
    best_scores, best_rows = [], []
    for start in range(0, total, width):
        chunk_ND = index.embeddings_ND[start : start + width]
        scores_BN = query_BD @ chunk_ND.T
        if exclude is not None:
            scores_BN = scores_BN.masked_fill(_is_forbidden(exclude, start, len(chunk_ND)), -torch.inf)
        kept = min(count, len(chunk_ND))
        scores, rows = _top(scores_BN, kept)
        best_scores.append(scores)
        best_rows.append(rows + start)
    scores_BC, rows_BC = torch.cat(best_scores, 1), torch.cat(best_rows, 1)
    by_row = rows_BC.argsort(dim=1)
    scores_BC, rows_BC = scores_BC.gather(1, by_row), rows_BC.gather(1, by_row)
    order = scores_BC.argsort(dim=1, descending=True, stable=True)[:, :count]
    scores_BK, rows_BK = scores_BC.gather(1, order), rows_BC.gather(1, order)
    return SearchResult(rows_BK.masked_fill(scores_BK == -torch.inf, -1), scores_BK)


def _top(scores_BN: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest scores of each row and their columns, in no order; of equal scores the lower columns.

    topk alone leaves it open which of several equal scores it keeps, so rows with a tie at the border are redone.
    """
    found = scores_BN.topk(min(count + 1, scores_BN.shape[1]), dim=1)
    scores_BK, columns_BK = found.values[:, :count], found.indices[:, :count]
    if found.values.shape[1] > count:
        tied = (found.values[:, count] == found.values[:, count - 1]).nonzero()[:, 0]
        if len(tied):
            least = found.values[tied, count - 1 : count]
            above, ties = scores_BN[tied] > least, scores_BN[tied] == least
            ties &= ties.cumsum(1) <= count - above.sum(1, keepdim=True)
            columns_BK[tied] = (above | ties).nonzero()[:, 1].view(-1, count)
            scores_BK = scores_BN.gather(1, columns_BK)
    return scores_BK, columns_BK


def _is_forbidden(exclude: Exclusion, start: int, length: int) -> Tensor:
    device = exclude.forbidden_B.device
    if exclude.group_N is None:
        group = torch.arange(start, start + length, device=device)
    else:
        group = exclude.group_N[start : start + length]
    return group[None, :] == exclude.forbidden_B[:, None]


def check_index(index: IndexGeneration, corpus_digest: str, passages: int) -> None:
    """Refuse an index of another corpus."""
    if index.corpus_digest != corpus_digest or len(index.embeddings_ND) != passages:
        raise UserError(
            f"the index holds {len(index.embeddings_ND)} passages of corpus {index.corpus_digest[:12]}, the corpus is "
            f"{corpus_digest[:12]} with {passages}; build the index again"
        )
