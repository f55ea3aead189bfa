"""The probe of staleness: fixed queries, searched in the index as it is and in a fresh one."""

# Shapes: B queries, K candidates, P pool of passages, N passages, D embedding size

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from realm_lab.core.seeding import numpy_generator
from realm_lab.retrieval.retriever import Retriever
from realm_lab.retrieval.search import true_scores
from realm_lab.retrieval.staleness import Drift, drift
from realm_lab.training.reader_probe import evaluating

SAMPLED_PASSAGES = 128  # that a sampled look embeds whatever the index finds
DEPTH = 2  # times as many passages as are read: those that the index finds and a sampled look embeds
NO_PASSAGE = -1.0e4


class StalenessProbe:
    """What searching a fresh index would find for fixed queries, and how far the index in use is from it.

    `trivial` are the passages that the queries must not retrieve, as in training; `places` is how many are read.
    """

    def __init__(
        self,
        queries: Sequence[np.ndarray],
        trivial: np.ndarray | None,
        *,
        by_article: bool,
        places: int,
        passages: int,
        seed: int,
    ):
        self._queries, self._trivial, self._by_article, self._places = queries, trivial, by_article, places
        generator = numpy_generator(seed, "staleness-probe")
        self._sample = np.sort(generator.permutation(passages)[:SAMPLED_PASSAGES])

    @torch.no_grad()
    def exact(self, retriever: Retriever, fresh: Retriever) -> Drift:
        """Drift of the index of `retriever` from that of `fresh`, which the current weights made."""
        with evaluating(retriever.embedder):
            query_BD = retriever.embed_queries(self._queries)
            fresh_BK = self._find(fresh, query_BD, self._places)
            assert fresh.index is not None
            fresh_ND = fresh.index.embeddings_ND
            return self._drift(retriever, query_BD, fresh_BK, lambda rows: fresh_ND[torch.from_numpy(rows)])

    @torch.no_grad()
    def sampled(self, retriever: Retriever) -> tuple[Drift, np.ndarray]:
        """The same with few fresh vectors, and which passages were embedded for it: a fixed sample, and what the index
        finds, some way down. A fresh index is taken to find nothing outside of these: the overlap is never below the
        exact one, and the more above it the fewer passages were looked at."""
        with evaluating(retriever.embedder):
            query_BD = retriever.embed_queries(self._queries)
            deep_BK = self._find(retriever, self._searched(retriever, query_BD), self._places * DEPTH)
            pool_P = np.union1d(self._sample, deep_BK[deep_BK >= 0])
            fresh_PD = retriever.embed_passages(pool_P)

            def fresh_vectors(rows: np.ndarray) -> Tensor:
                return fresh_PD[torch.from_numpy(np.searchsorted(pool_P, rows))]

            score_BP = (query_BD.double() @ fresh_PD.double().T).cpu().numpy()
            score_BP[self._forbidden(retriever, pool_P)] = -np.inf
            order_BK = np.argsort(-score_BP, axis=1, kind="stable")[:, : self._places]
            there_BK = np.isfinite(np.take_along_axis(score_BP, order_BK, axis=1))
            fresh_BK = np.where(there_BK, pool_P[order_BK], -1)
            return self._drift(retriever, query_BD, fresh_BK, fresh_vectors), pool_P

    def _find(self, retriever: Retriever, query_BD: Tensor, count: int) -> np.ndarray:
        count = min(count, len(retriever.passages))
        # What an approximate search misses is no staleness.
        return retriever.find(
            query_BD, count, null=False, trivial=self._trivial, by_article=self._by_article, exactly=True
        )

    def _searched(self, retriever: Retriever, query_BD: Tensor) -> Tensor:
        return retriever.search_queries(self._queries) if retriever.searches_stale else query_BD

    def _forbidden(self, retriever: Retriever, rows_P: np.ndarray) -> np.ndarray:
        """Which passages a query must not find, bool [B, P]."""
        if self._trivial is None:
            return np.zeros((len(self._queries), len(rows_P)), bool)
        own_B1 = np.asarray(self._trivial, np.int64)[:, None]
        if self._by_article:
            articles = np.asarray(retriever.passages.articles)
            return np.asarray((articles[rows_P][None] == articles[own_B1.clip(min=0)]) & (own_B1 >= 0))
        return np.asarray(rows_P[None] == own_B1)

    def _drift(
        self, retriever: Retriever, query_BD: Tensor, fresh_BK: np.ndarray, fresh: Callable[[np.ndarray], Tensor]
    ) -> Drift:
        assert retriever.index is not None
        indexed_ND = retriever.index.embeddings_ND
        searched_BD = self._searched(retriever, query_BD)
        stale_BK = self._find(retriever, searched_BD, self._places)
        indexed_BK = _scores(searched_BD, stale_BK, lambda rows: indexed_ND[torch.from_numpy(rows)])
        current_BK = _scores(query_BD, stale_BK, fresh)
        return drift(stale_BK, fresh_BK, indexed_BK, current_BK, _scores(query_BD, fresh_BK, fresh))


def _scores(query_BD: Tensor, rows_BK: np.ndarray, vectors: Callable[[np.ndarray], Tensor]) -> Tensor:
    """f(x, z), [B, K]; NO_PASSAGE where the row is negative."""
    there_BK = rows_BK >= 0
    query_M = torch.from_numpy(np.nonzero(there_BK)[0]).to(query_BD.device)
    vectors_MD = vectors(rows_BK[there_BK]).to(query_BD)
    score_M = true_scores(query_BD, vectors_MD, query_M, torch.arange(len(vectors_MD), device=query_BD.device))
    score_BK = torch.full(rows_BK.shape, NO_PASSAGE, device=query_BD.device)
    score_BK[torch.from_numpy(there_BK).to(query_BD.device)] = score_M
    return score_BK
