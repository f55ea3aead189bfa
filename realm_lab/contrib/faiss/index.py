"""Approximate search by inner product with FAISS, which proposes rows. Only this file imports faiss."""

# Shapes: N passages, T training rows, B queries, F fetched, D embedding size

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from realm_lab.contrib.faiss.plugin import FaissOptions
from realm_lab.engine.core.process import to_device
from realm_lab.engine.retrieval.backends import PARAMETER
from realm_lab.engine.retrieval.search import Matrix
from realm_lab.errors import UserError, needs

with needs(f"parameter '{PARAMETER}': FAISS", "faiss-cpu", "faiss"):
    import faiss

FACTORY = {
    "faiss_flat": "Flat",
    "ivf_flat": "IVF{nlist},Flat",
    "ivf_pq": "IVF{nlist},PQ{M}x{nbits}",
    "hnsw": "HNSW{M},Flat",
    "sq8": "SQ8",
}  # as faiss.index_factory reads it
OVERFETCH = {"faiss_flat": 2, "ivf_flat": 2, "ivf_pq": 16, "hnsw": 2, "sq8": 4}
ADDED_ROWS = 1 << 16  # given to FAISS at once
ROWS_A_LIST = 39  # training rows that FAISS asks for per centroid; it uses at most 256


def with_defaults(kind: str, options: Mapping[str, int], total: int, size: int) -> dict[str, int]:
    """Return all options of a kind of index over `total` vectors of `size` numbers, by FAISS's names."""
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


class FaissIndex:
    """A FAISS index of one kind over a matrix of embeddings."""

    def __init__(self, kind: str, embeddings_ND: Matrix, seed: int, options: FaissOptions):
        """Train and fill the index. Defaults depend on the number and size of the vectors. The `seed` is used for the
        training sample and for FAISS's k-means. UserError: FAISS refuses the options for these embeddings."""
        self.kind, self._embeddings_ND = kind, embeddings_ND
        total, size = embeddings_ND.shape
        self.options = with_defaults(kind, options.model_dump(exclude_none=True), total, size)
        self.overfetch = self.options["overfetch"]
        described = FACTORY[kind].format(**self.options)
        try:
            self.index: Any = faiss.index_factory(size, described, faiss.METRIC_INNER_PRODUCT)
            with one_thread():
                self._fill(seed)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"parameter '{PARAMETER}': FAISS refuses {described} for {total} vectors of {size} numbers ({reason}); "
                "change or remove its options",
                parameter=PARAMETER,
            ) from None

    def _fill(self, seed: int) -> None:
        index, options, total = self.index, self.options, len(self._embeddings_ND)
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
            index.train(_floats(self._embeddings_ND[to_device(chosen_T, self._embeddings_ND.device)]))
        for start in range(0, total if index.is_trained else 0, ADDED_ROWS):
            index.add(_floats(self._embeddings_ND[start : start + ADDED_ROWS]))

    def propose(self, query_BD: Tensor, count: int) -> Tensor:
        """Return rows that FAISS finds, int64 [B, count], -1 if there are fewer."""
        wider = {}
        if self.kind == "hnsw":
            width = max(self.options["efSearch"], count)
            wider["params"] = faiss.SearchParametersHNSW(efSearch=width)  # type: ignore[attr-defined]
        with one_thread():
            _, row_BF = self.index.search(_floats(query_BD), count, **wider)
        return to_device(row_BF, query_BD.device)


faiss_flat, ivf_flat, ivf_pq, hnsw, sq8 = (partial(FaissIndex, kind) for kind in FACTORY)


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside the block FAISS uses one thread, so that two builds or searches never differ."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _floats(vectors_ND: Tensor) -> np.ndarray:
    return np.ascontiguousarray(vectors_ND.detach().float().cpu().numpy())
