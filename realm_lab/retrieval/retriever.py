"""Candidates of a query: top passages, the null document, never the trivial candidate (section 3.4)."""

# Shapes: B queries, K candidates, L candidates before the ranking, U distinct documents, N passages, D embedding size

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from realm_lab.core.process import autocast
from realm_lab.corpus.store import Passages
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.models.embedder import Embedder
from realm_lab.models.inputs import join
from realm_lab.models.realm import retrieval_score
from realm_lab.retrieval.exact import ExactSearch
from realm_lab.retrieval.faiss_backends import FaissSearch, FaissSettings, measured_faiss
from realm_lab.retrieval.index import IndexGeneration, check_index, embed_passages, embed_rows
from realm_lab.retrieval.search import Exclusion, SearchBackend

NULL = -1  # row of the null document
ABSENT = -2  # row of a place that too small a corpus left empty


class Retriever:
    """Finds candidates in an index that may be stale, and scores them with the current weights (section 3.3)."""

    def __init__(
        self,
        embedder: Embedder,
        passages: Passages,
        special: SpecialIds,
        *,
        corpus_digest: str,
        query_length: int,
        passage_length: int,
        token_budget: int,
        precision: str,
        search_query: str = "fresh",
        backend: str = "exact",
        settings: FaissSettings | None = None,
    ):
        """`backend` and its `settings`: how the index is searched, see backends.py."""
        self.embedder, self.passages, self._special = embedder, passages, special
        self.corpus_digest, self._query_length, self._passage_length = corpus_digest, query_length, passage_length
        self._token_budget, self._precision, self._search_query = token_budget, precision, search_query
        self._backend, self._settings = backend, settings
        self.device = next(embedder.parameters()).device
        self._articles_N = torch.from_numpy(np.ascontiguousarray(passages.articles)).to(self.device, torch.int64)
        self.index: IndexGeneration | None = None
        self.backend: SearchBackend | None = None  # finds passages in it
        self.exact: ExactSearch | None = None  # finds the best passages in it; the same where the backend is exact
        self.snapshot: Embedder | None = None  # the weights behind the index; embeds queries when search is stale
        self.null_offset = 0.0  # added to the null document's score (calibration)

    @property
    def searches_stale(self) -> bool:
        """Whether queries are searched with the query tower behind the index, so that `adopt` wants its snapshot."""
        return self._search_query == "stale"

    def refresh(self, step: int) -> None:
        """Build the index from the current weights."""
        index = self.generation(self.embed_passages(), step)
        self.adopt(index, copy.deepcopy(self.embedder) if self.searches_stale else None)

    def generation(self, embeddings_ND: Tensor, step: int) -> IndexGeneration:
        """Embeddings of this corpus as an index."""
        return IndexGeneration(embeddings_ND, self.corpus_digest, step)

    def embed_passages(self, rows_U: np.ndarray | None = None, embedder: Embedder | None = None) -> Tensor:
        """Embed_doc of chosen passages (all of them) without dropout and gradient, [U, D]; the ranks share the work."""
        rows = np.arange(len(self.passages)) if rows_U is None else rows_U
        settings = (self._special, self._passage_length, self._token_budget, self._precision)
        return embed_passages(embedder or self.embedder, self.passages, rows, *settings)

    def adopt(self, index: IndexGeneration, snapshot: Embedder | None) -> None:
        """Use an index that was built elsewhere; one of another corpus is refused."""
        check_index(index, self.corpus_digest, len(self.passages))
        if self.index is None or index.embeddings_ND is not self.index.embeddings_ND:
            self._build_search(index.embeddings_ND)
        self.index = index
        self.snapshot = snapshot.requires_grad_(False).eval() if snapshot is not None else None

    def _build_search(self, embeddings_ND: Tensor) -> None:
        if self._backend == "exact":
            self.backend = self.exact = ExactSearch(embeddings_ND)
        else:
            self.exact = ExactSearch(embeddings_ND, half=False)  # it only measures: not worth a second copy
            self.backend = measured_faiss(self._backend, embeddings_ND, self._settings, exact=self.exact)

    @property
    def search_recall_at_8(self) -> float | None:
        """What an approximate backend finds of the exact top 8, measured when it was built; None: it is exact."""
        return self.backend.recall_at_8 if isinstance(self.backend, FaissSearch) else None

    def searching_exactly(self) -> Retriever:
        """A copy that searches exactly; its index is to be built."""
        other = copy.copy(self)
        other._backend, other.index, other.backend, other.exact, other.snapshot = "exact", None, None, None, None
        return other

    def embed_queries(self, queries: Sequence[np.ndarray], embedder: Embedder | None = None) -> Tensor:
        """Embed_input of wordpiece sequences, [B, D]."""
        with autocast(self.device, self._precision):
            batch = join(queries, None, self._special, self._query_length).to(self.device)
            return (embedder or self.embedder).embed_queries(batch)

    def search_queries(self, queries: Sequence[np.ndarray]) -> Tensor:
        """Query vectors for the search: of the index's own snapshot if stale, else of the current weights."""
        with torch.no_grad():
            return self.embed_queries(queries, self.snapshot)

    def find(
        self,
        query_BD: Tensor,
        count: int,
        *,
        null: bool,
        trivial: np.ndarray | None = None,
        by_article: bool = False,
        exactly: bool = False,
    ) -> np.ndarray:
        """Rows of `count` candidates each, int64 [B, K]: the null document first if wanted, then passages, best first.

        `trivial` holds each query's own passage (or -1), which, or whose whole article, is never returned; places
        that a small corpus leaves empty are ABSENT. `exactly`: whatever the backend.
        """
        backend = self.exact if exactly else self.backend
        assert backend is not None, "search before the index was built"
        exclude = None
        if trivial is not None:
            own_B = torch.from_numpy(np.asarray(trivial, np.int64)).to(self.device)
            if by_article:
                own_B = torch.where(own_B >= 0, self._articles_N[own_B.clamp(min=0)], own_B)
            exclude = Exclusion(own_B, self._articles_N if by_article else None)
        found = backend.search(query_BD, count - int(null), exclude).rows_BK.cpu().numpy()
        rows_BK = np.full((len(query_BD), count), ABSENT, np.int64)
        rows_BK[:, int(null) : int(null) + found.shape[1]] = np.where(found < 0, ABSENT, found)
        if null:
            rows_BK[:, 0] = NULL
        return rows_BK

    @torch.no_grad()
    def rerank(self, query_BD: Tensor, rows_BL: np.ndarray, count: int) -> np.ndarray:
        """The best `count` of the candidates that `find` returned, by the current weights without dropout.

        int64 [B, count]: the null document stays first and takes one place, then passages, best first, of equal
        scores the lower row; ABSENT is last.
        """
        assert count <= rows_BL.shape[1], "fewer candidates than are to be kept"
        null = int((rows_BL[:, :1] == NULL).any())
        training = self.embedder.training
        self.embedder.eval()
        score_BL = self.score(query_BD, rows_BL[:, null:]).double().cpu().numpy()
        self.embedder.train(training)
        score_BL[rows_BL[:, null:] == ABSENT] = -np.inf
        order_BL = np.lexsort((rows_BL[:, null:], -score_BL), axis=1) + null
        kept_BK = np.concatenate([np.zeros((len(rows_BL), null), np.int64), order_BL], axis=1)[:, :count]
        return np.take_along_axis(rows_BL, kept_BK, axis=1)

    def score(self, query_BD: Tensor, rows_BK: np.ndarray) -> Tensor:
        """f(x, z) with the current weights, differentiable in both towers, float32 [B, K]; ABSENT scores -1e4.

        Each distinct document of the batch is embedded once.
        """
        distinct, where = np.unique(np.where(rows_BK == ABSENT, NULL, rows_BK), return_inverse=True)
        where_BK = torch.from_numpy(where.reshape(rows_BK.shape)).to(self.device)
        score_BK = retrieval_score(query_BD, self._documents(distinct)[where_BK])
        rows = torch.from_numpy(rows_BK).to(self.device)
        score_BK = score_BK + self.null_offset * (rows == NULL)
        return score_BK.masked_fill(rows == ABSENT, -1.0e4)

    def _documents(self, rows_U: np.ndarray) -> Tensor:
        """Embed_doc of distinct rows, ascending, [U, D]; a learned null document is its vector, not encoded."""
        null_D = self.embedder.null_vector
        learned = null_D is not None and bool(rows_U[0] == NULL)
        vectors = [null_D[None].float()] if null_D is not None and learned else []
        encoded = rows_U[int(learned) :]
        if len(encoded):
            settings = (self._special, self._passage_length, self._token_budget, self._precision)
            vectors.append(embed_rows(self.embedder, self.passages, encoded, *settings))
        return torch.cat(vectors)

    def indexed_score(self, query_BD: Tensor, rows_BK: np.ndarray) -> Tensor:
        """f(x, z) with the index's frozen document vectors, [B, K] (fine-tuning, section 3.3)."""
        assert self.index is not None, "score before the index was built"
        rows = torch.from_numpy(rows_BK).to(self.device)
        score_BK = retrieval_score(query_BD, self.index.embeddings_ND[rows.clamp(min=0)])
        assert not (rows == NULL).any(), "the null document is not in the index"
        return score_BK.masked_fill(rows == ABSENT, -1.0e4)

    @torch.no_grad()
    def calibrate_null(
        self, queries: Sequence[np.ndarray], count: int, trivial: np.ndarray | None, by_article: bool = False
    ) -> float:
        """Shift the null document's score to the mean top-k score; returns the shift."""
        training = self.embedder.training
        self.embedder.eval()
        self.null_offset = 0.0
        query_BD = self.search_queries(queries)
        rows_BK = self.find(query_BD, count, null=True, trivial=trivial, by_article=by_article)
        score_BK = self.score(self.embed_queries(queries), rows_BK)
        self.embedder.train(training)
        real_BK = torch.from_numpy(rows_BK >= 0).to(score_BK.device)
        self.null_offset = float((score_BK[real_BK].mean() - score_BK[:, 0].mean()).item())
        return self.null_offset
