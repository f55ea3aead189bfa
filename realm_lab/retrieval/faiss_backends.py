"""Approximate search by FAISS, inner product: the only file that imports faiss.

FAISS proposes passages; what is forbidden is taken out of more than enough of them, and the rest get their true score
(search.true_scores), so that an approximate backend can miss a passage but never misjudge or misplace one.
"""

# Shapes: N passages, T training rows, B queries, K results, F fetched, D embedding size

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import faiss
import numpy as np
import torch
from torch import Tensor

from realm_lab.core.process import to_device
from realm_lab.errors import UserError
from realm_lab.retrieval.search import (
    Best,
    Exclusion,
    Forbidden,
    Matrix,
    SearchBackend,
    SearchResult,
    checked_queries,
    true_scores,
)

FACTORY = {
    "faiss_flat": "Flat",
    "ivf_flat": "IVF{nlist},Flat",
    "ivf_pq": "IVF{nlist},PQ{M}x{nbits}",
    "hnsw": "HNSW{M},Flat",
    "sq8": "SQ8",
}  # as faiss.index_factory reads it
OVERFETCH = {"faiss_flat": 2, "ivf_flat": 2, "ivf_pq": 16, "hnsw": 2, "sq8": 4}
ADDED_ROWS = 1 << 16  # given to FAISS at once
ROWS_A_LIST = 39  # FAISS asks for as many training rows a centroid, and uses at most 256
SAMPLE_QUERIES, SAMPLE_NOISE, RECALL_COUNT = 256, 0.5, 8


def with_defaults(kind: str, options: Mapping[str, int], total: int, size: int) -> dict[str, int]:
    """All options of a kind of index over `total` vectors of `size` numbers, by FAISS's names."""
    nlist = options.get("nlist") or max(1, min(round(4 * math.sqrt(total)), total // ROWS_A_LIST))
    parts = max(part for part in range(1, max(1, size // 4) + 1) if size % part == 0)
    defaults = {
        "nlist": nlist,
        "nprobe": min(nlist, max(8, nlist // 16)),
        "M": parts if kind == "ivf_pq" else 32,
        "nbits": max(1, min(8, int(math.log2(max(2, total / 4))))),
        "efConstruction": 200,
        "efSearch": 128,
        "overfetch": OVERFETCH[kind],
    }
    return defaults | dict(options)


class FaissSearch:
    """A FAISS index of one kind over a matrix of embeddings (which it needs for true scores)."""

    recall_at_8: float | None = None

    def __init__(
        self,
        kind: str,
        embeddings_ND: Matrix,
        options: Mapping[str, int],
        seed: int = 0,
        exact: SearchBackend | None = None,
    ):
        """Train and fill the index; beside `exact`, a search of the same embeddings, its recall@8 is measured.

        `options`: see params.sections.Search; what is missing suits the passages. The `seed` is of the training
        sample and of FAISS's k-means. UserError: FAISS refuses the options for these embeddings.
        """
        self.kind, self.embeddings_ND = kind, embeddings_ND
        total, size = embeddings_ND.shape
        self.options = with_defaults(kind, options, total, size)
        self._forbidden = Forbidden(total)
        described = FACTORY[kind].format(**self.options)
        try:
            self.index: Any = faiss.index_factory(size, described, faiss.METRIC_INNER_PRODUCT)
            with one_thread():
                self._fill(seed)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"pretrain.search.options: FAISS refuses {described} for {total} vectors of {size} numbers ({reason}); "
                "change or remove them"
            ) from None
        if exact is not None:
            self.recall_at_8 = recall(self, exact, sample_queries(embeddings_ND, seed))

    def _fill(self, seed: int) -> None:
        index, options, total = self.index, self.options, len(self.embeddings_ND)
        largest = 1024
        if self.kind.startswith("ivf"):
            index.nprobe, index.cp.seed = options["nprobe"], seed
            index.cp.min_points_per_centroid = 1  # few passages: FAISS would print a warning
            largest = max(largest, options["nlist"])
        if self.kind == "ivf_pq":
            index.pq.cp.seed, index.pq.cp.min_points_per_centroid = seed, 1
            largest = max(largest, 2 ** options["nbits"])
        if self.kind == "hnsw":
            index.hnsw.efConstruction = options["efConstruction"]
        if not index.is_trained and total:
            chosen_T = np.sort(np.random.default_rng(seed).permutation(total)[: 64 * largest])
            index.train(_floats(self.embeddings_ND[to_device(chosen_T, self.embeddings_ND.device)]))
        for start in range(0, total if index.is_trained else 0, ADDED_ROWS):
            index.add(_floats(self.embeddings_ND[start : start + ADDED_ROWS]))

    @torch.no_grad()
    def search(self, query_BD: Tensor, count: int, exclude: Exclusion | None = None) -> SearchResult:
        """Up to `count` passages each, [B, count], best first; what is forbidden is never returned."""
        total, size = self.embeddings_ND.shape
        query_BD = checked_queries(query_BD, size, count)
        best = Best.none(len(query_BD), count, query_BD.device)
        if not len(query_BD) or not total or not count:
            return best.result()
        query_P, row_P = self._forbidden.pairs(exclude, query_BD.device)
        most = int(query_P.bincount().max()) if len(query_P) else 0
        fetch = min(total, count * self.options["overfetch"] + most)  # as many as may be lost, on top of those wanted
        row_BF = self._fetch(query_BD, fetch)
        if len(row_P):
            pair_BF = torch.arange(len(query_BD), device=row_BF.device)[:, None] * total + row_BF
            row_BF = row_BF.masked_fill(torch.isin(pair_BF, query_P * total + row_P), -1)
        query_M, place_M = (row_BF >= 0).nonzero(as_tuple=True)
        row_M = row_BF[query_M, place_M]
        best.add_(query_M, row_M, true_scores(query_BD, self.embeddings_ND, query_M, row_M))
        return best.result()

    def _fetch(self, query_BD: Tensor, fetch: int) -> Tensor:
        wider = {}
        if self.kind == "hnsw":
            width = max(self.options["efSearch"], fetch)
            wider["params"] = faiss.SearchParametersHNSW(efSearch=width)  # type: ignore[attr-defined]
        with one_thread():
            _, row_BF = self.index.search(_floats(query_BD), fetch, **wider)
        return to_device(row_BF, query_BD.device)


def sample_queries(embeddings_ND: Matrix, seed: int) -> Tensor:
    """Passages, each moved by half the spread of all of them, so that a query's neighbours are not just itself."""
    generator = np.random.default_rng(seed)
    chosen = to_device(generator.permutation(len(embeddings_ND))[:SAMPLE_QUERIES], embeddings_ND.device)
    query_BD = embeddings_ND[chosen].float()
    if len(query_BD) < 2:
        return query_BD
    noise_BD = to_device(generator.standard_normal(query_BD.shape, np.float32), query_BD.device)
    return query_BD + SAMPLE_NOISE * query_BD.std(0) * noise_BD


def recall(backend: SearchBackend, exact: SearchBackend, query_BD: Tensor, count: int = RECALL_COUNT) -> float:
    """Share of the exact top `count` that the backend finds, mean over the queries."""
    wanted_BK = exact.search(query_BD, count).rows_BK
    found_BK = backend.search(query_BD, count).rows_BK
    wanted = int((wanted_BK >= 0).sum())
    hit_BK = (wanted_BK[:, :, None] == found_BK[:, None, :]).any(2) & (wanted_BK >= 0)
    return int(hit_BK.sum()) / wanted if wanted else 1.0


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for FAISS, which it may share with torch, inside the block: no two builds and searches differ."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _floats(vectors_ND: Tensor) -> np.ndarray:
    return np.ascontiguousarray(vectors_ND.detach().float().cpu().numpy())
