"""The retriever: an embedder, a corpus and its index. It finds passages, and computes f(x, z) with current weights."""

# Shapes: B queries, K candidates, U distinct documents, N passages, D embedding size

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from realm_lab.engine.core.process import autocast, ranks, share, to_device
from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.inputs import join
from realm_lab.engine.models.realm import retrieval_score
from realm_lab.engine.retrieval.embeddings import Embeddings
from realm_lab.engine.retrieval.exact import ExactSearch
from realm_lab.engine.retrieval.index import Inputs, embed_passages, embed_rows
from realm_lab.engine.retrieval.rows import ABSENT, NO_SCORE, NULL
from realm_lab.engine.retrieval.search import Exclusion, IndexGeneration, MakeSearch, Matrix, SearchBackend
from realm_lab.engine.retrieval.spread import SpreadRows, free_shares

RANKED_AT_ONCE = 1 << 21  # pairs of a query and a passage, compared at once by `rank`


class Retriever:
    """Finds passages in an index that may be stale, and scores them with the current weights (section 3.3).

    With `stale_queries` (pretrain.search_query: stale) the index keeps the weights that made it, and their query tower
    embeds the queries to search with. `approximate` constructs a search other than the exact one (approximate.py). With
    `spread`, each rank holds a share of the index (spread.py).
    """

    def __init__(
        self,
        embedder: Embedder,
        passages: Passages,
        inputs: Inputs,
        *,
        stale_queries: bool = False,
        approximate: MakeSearch | None = None,
        spread: bool = False,
    ):
        self.embedder, self.passages, self.inputs = embedder, passages, inputs
        self.stale_queries, self._approximate = stale_queries, approximate
        self._spread = spread and ranks().size > 1
        self.device = next(embedder.parameters()).device
        self.articles_N = to_device(np.array(passages.articles, np.int64), self.device)
        self.index: IndexGeneration | None = None
        self.snapshot: Embedder | None = None  # the embedder that made the index, if queries are stale
        self.query_map_DD: Tensor | None = None  # from current query vectors to those of the index (index_map.py)
        self.null_offset = 0.0  # added to the null document's score (calibration)
        self._search: SearchBackend | None = None
        self._exact: ExactSearch | SpreadRows | None = None  # the same object as _search if that is exact

    def searching_exactly(self) -> Retriever:
        """Return a copy that searches exactly and with current queries; its index must still be built."""
        other = copy.copy(self)
        other.stale_queries, other._approximate = False, None
        other.index, other.snapshot, other._search, other._exact = None, None, None, None
        other.query_map_DD = None
        return other

    # The index

    def refresh(self, step: int) -> None:
        """Build the index from the current weights."""
        index = IndexGeneration(self.embed_index(), step)
        self.adopt(index, copy.deepcopy(self.embedder) if self.stale_queries else None)

    def adopt(self, index: IndexGeneration, snapshot: Embedder | None = None) -> None:
        """Search an index of this corpus from now on. `snapshot`: the embedder that made it, for stale queries."""
        assert len(index.embeddings_ND) == len(self.passages)
        if self.index is None or index.embeddings_ND is not self.index.embeddings_ND:
            if isinstance(index.embeddings_ND, SpreadRows):
                self._search = self._exact = index.embeddings_ND
            elif self._approximate is None:
                self._search = self._exact = ExactSearch(index.embeddings_ND)
            else:
                self._exact = ExactSearch(index.embeddings_ND, torch.float32)  # for measurements: no reduced copy
                self._search = self._approximate(index.embeddings_ND, self._exact)
        self.index, self.query_map_DD = index, None
        self.snapshot = snapshot.requires_grad_(False).eval() if snapshot is not None else None

    def held(self, vectors_ND: Tensor | Embeddings) -> Matrix:
        """Return the vectors of all passages as this rank holds them for an index: all, or a share."""
        if not self._spread:
            return vectors_ND.to(self.device) if isinstance(vectors_ND, Tensor) else vectors_ND.as_tensor(self.device)
        free_shares()
        share_nD = vectors_ND[share(len(vectors_ND))].to(self.device, copy=True)
        return SpreadRows(share_nD, len(vectors_ND), self.articles_N)

    @property
    def search_recall_at_8(self) -> float | None:
        """Recall of an approximate search against the exact top 8, measured when it was built; None: exact search."""
        return self._search.recall_at_8 if self._search is not None else None

    # Embedding

    def embed_queries(self, queries: Sequence[np.ndarray], embedder: Embedder | None = None) -> Tensor:
        """Return Embed_input of wordpiece sequences, [B, D]."""
        with autocast(self.device, self.inputs.precision):
            batch = join(queries, None, self.inputs.special, self.inputs.query_length).to(self.device)
            return (embedder or self.embedder).embed_queries(batch)

    @torch.no_grad()
    def search_queries(self, queries: Sequence[np.ndarray], current_BD: Tensor | None = None) -> Tensor:
        """Return query vectors to search with, [B, D]. If there is a map, they are current vectors (`current_BD`, if
        given), mapped to the index; else, if queries are stale, vectors of the index's query tower; else
        current vectors."""
        if self.query_map_DD is not None:
            return (self.embed_queries(queries) if current_BD is None else current_BD.detach()) @ self.query_map_DD
        if self.snapshot is None and current_BD is not None:
            return current_BD.detach()
        return self.embed_queries(queries, self.snapshot)

    def embed_passages(self, rows_U: np.ndarray) -> Tensor:
        """Return Embed_doc of chosen passages without dropout and gradient, [U, D]; ranks share the work."""
        return embed_passages(self.embedder, self.passages, rows_U, self.inputs)

    def embed_index(self, embedder: Embedder | None = None) -> Matrix:
        """Return Embed_doc of all passages, by the current document tower or another one; ranks share the work."""
        total = len(self.passages)
        if self._spread:
            free_shares()
        kept = share(total) if self._spread else slice(None)
        texts = self.passages, np.arange(total), self.inputs
        vectors_nD = embed_passages(embedder or self.embedder, *texts, kept=kept)
        return SpreadRows(vectors_nD, total, self.articles_N) if self._spread else vectors_nD

    # Searching

    def find(self, query_BD: Tensor, count: int, exclude: Exclusion | None = None, exactly: bool = False) -> np.ndarray:
        """Return rows of the `count` passages of largest inner product in the index, best first, int64 [B, count].

        Forbidden rows (`exclude`) are never returned; missing results of a small corpus are ABSENT. `exactly`: use
        exact search whatever the backend.
        """
        search = self._exact if exactly else self._search
        assert search is not None, "search before the index was built"
        found_BK = search.search(query_BD, count, exclude).rows_BK.cpu().numpy()
        rows_BK = np.full((len(query_BD), count), ABSENT, np.int64)
        rows_BK[:, : found_BK.shape[1]] = np.where(found_BK < 0, ABSENT, found_BK)
        return rows_BK

    @torch.no_grad()
    def rank(self, query_BD: Tensor, rows_B: np.ndarray, exclude: Exclusion | None = None) -> np.ndarray:
        """Return the 1-based rank of one passage per query among all that `exclude` allows, int64 [B]."""
        assert self.index is not None, "rank before the index was built"
        own_B1 = to_device(np.asarray(rows_B, np.int64)[:, None], self.device)
        own_score_B1 = self.indexed_score(query_BD, own_B1.cpu().numpy())
        place_B = torch.ones(len(query_BD), dtype=torch.int64, device=self.device)
        width = max(1, RANKED_AT_ONCE // len(query_BD))
        for start in range(0, len(self.passages), width):
            vectors_nD = self.index.embeddings_ND[start : start + width].to(self.device)
            rows_n = torch.arange(start, start + len(vectors_nD), device=self.device)
            better_Bn = (query_BD @ vectors_nD.T > own_score_B1) & (rows_n != own_B1)
            if exclude is not None:
                group_n = rows_n if exclude.group_N is None else exclude.group_N[rows_n]
                better_Bn &= group_n != exclude.forbidden_B[:, None]
            place_B += better_Bn.sum(1)
        return place_B.cpu().numpy()

    # Scores

    def score(self, query_BD: Tensor, rows_BK: np.ndarray) -> Tensor:
        """Return f(x, z) with the current weights, differentiable in both towers, float32 [B, K]; NO_SCORE for ABSENT.

        Each distinct document of the batch is embedded once.
        """
        distinct, where = np.unique(np.where(rows_BK == ABSENT, NULL, rows_BK), return_inverse=True)
        where_BK = to_device(where.reshape(rows_BK.shape), self.device)
        score_BK = retrieval_score(query_BD, self.embed_documents(distinct)[where_BK])
        rows = to_device(rows_BK, self.device)
        score_BK = score_BK + self.null_offset * (rows == NULL)
        return score_BK.masked_fill(rows == ABSENT, NO_SCORE)

    def embed_documents(self, rows_U: np.ndarray) -> Tensor:
        """Return Embed_doc of distinct rows, ascending, [U, D]; a learned null document is a vector and not encoded."""
        null_D = self.embedder.null_vector
        learned = null_D is not None and bool(rows_U[0] == NULL)
        vectors = [null_D[None].float()] if null_D is not None and learned else []
        encoded = rows_U[int(learned) :]
        if len(encoded):
            vectors.append(embed_rows(self.embedder, self.passages, encoded, self.inputs))
        return torch.cat(vectors)

    def indexed_score(self, query_BD: Tensor, rows_BK: np.ndarray) -> Tensor:
        """Return f(x, z) with the index's frozen document vectors, [B, K] (fine-tuning, section 3.3)."""
        assert self.index is not None, "score before the index was built"
        assert not (rows_BK == NULL).any(), "the null document is not in the index"
        rows = to_device(rows_BK, self.device)
        score_BK = retrieval_score(query_BD, self.index.embeddings_ND[rows.clamp(min=0)])
        return score_BK.masked_fill(rows == ABSENT, NO_SCORE)
