"""Approximate search by FAISS, inner product: the only file that imports faiss.

FAISS proposes passages; what is forbidden is taken out of more than enough of them, and the rest get their true score
(search.true_scores), so that an approximate backend can miss a passage but never misjudge or misplace one.
"""

# Shapes: N passages, T training rows, B queries, K results, F fetched, D embedding size

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from realm_lab.core.files import atomic_write, digest_file
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

KINDS = ("faiss_flat", "ivf_flat", "ivf_pq", "hnsw", "sq8")
ON_GPU = ("faiss_flat", "ivf_flat", "ivf_pq", "sq8")
ADDED_ROWS = 1 << 16  # given to FAISS at once
ROWS_A_LIST = 39  # FAISS asks for as many training rows a centroid, and uses at most 256
SAMPLE_QUERIES, SAMPLE_NOISE, RECALL_COUNT = 256, 0.5, 8
OVERFETCH = {"faiss_flat": 2, "ivf_flat": 2, "ivf_pq": 16, "hnsw": 2, "sq8": 4}


@dataclass(frozen=True)
class FaissSettings:
    """How an index is built and searched; 0 takes what suits the number of passages (`resolved`)."""

    lists: int = 0
    """Inverted lists; 0: 4 sqrt(N), at least 39 passages each."""
    probes: int = 0
    """Lists that a query looks into; 0: a sixteenth of them, 8 at least."""
    parts: int = 0
    """Parts that product quantisation cuts a vector into; 0: the most that divide it, up to D/4."""
    bits: int = 0
    """Bits of each part's code; 0: 8, fewer for few passages."""
    links: int = 0
    """Links of a passage in HNSW; 0: 32."""
    build_neighbours: int = 200
    """Neighbours that HNSW weighs for a new passage."""
    neighbours: int = 0
    """Neighbours that HNSW weighs for a query; 0: 128."""
    training_rows: int = 0
    """Passages that lists and codes are learned from; 0: 64 a list or code."""
    overfetch: int = 0
    """Passages taken from FAISS for each that is wanted; 0: 2 to 16, more the coarser the codes are."""
    rescore: bool = True
    """Score what was found with the true vectors; else by FAISS's own, approximate scores."""
    seed: int = 0
    """Of the training sample and of FAISS's k-means."""
    threads: int = 1
    """Of FAISS; 0: as many as torch has. One makes the same index and the same results on every machine like this."""
    gpu: bool = False
    """Search on all GPUs (the extra `gpu`)."""

    def resolved(self, kind: str, total: int, size: int) -> FaissSettings:
        """With numbers in place of every 0; what cannot be is a UserError."""
        _check_settings(self, kind, total, size)
        lists = self.lists or max(1, min(round(4 * math.sqrt(total)), total // ROWS_A_LIST))
        parts = max(part for part in range(1, max(1, size // 4) + 1) if size % part == 0)
        bits = self.bits or max(1, min(8, int(math.log2(max(2, total / 4)))))
        largest = max(lists if kind.startswith("ivf") else 1, 2**bits if kind == "ivf_pq" else 1, 1024)
        return replace(
            self,
            lists=lists,
            probes=min(lists, self.probes or max(8, lists // 16)),
            parts=self.parts or parts,
            bits=bits,
            links=self.links or 32,
            neighbours=self.neighbours or 128,
            training_rows=min(total, self.training_rows or 64 * largest),
            overfetch=self.overfetch or OVERFETCH[kind],
        )


class FaissSearch:
    """A FAISS index of one kind over a matrix of embeddings (which it needs for true scores)."""

    def __init__(self, kind: str, index: Any, embeddings_ND: Matrix, settings: FaissSettings):
        self.name, self.index, self.embeddings_ND, self.settings = kind, index, embeddings_ND, settings
        self.recall_at_8: float | None = None
        self._forbidden = Forbidden(len(embeddings_ND))
        self._searched = _on_gpus(index, kind) if settings.gpu else index

    @torch.no_grad()
    def search(self, query_BD: Tensor, count: int, exclude: Exclusion | None = None) -> SearchResult:
        """Up to `count` passages each, [B, count], best first; what is forbidden is never returned."""
        total, size = self.embeddings_ND.shape
        query_BD = checked_queries(query_BD, size, count)
        device = query_BD.device
        best = Best.none(len(query_BD), count, device)
        if not len(query_BD) or not total or not count:
            return best.result()
        query_P, row_P = self._forbidden.pairs(exclude, device)
        most = int(query_P.bincount().max()) if len(query_P) else 0
        fetch = min(total, count * self.settings.overfetch + most)  # as many as may be lost, on top of those wanted
        score_BF, row_BF = self._fetch(query_BD, fetch)
        if len(row_P):
            pair_P = query_P * total + row_P
            pair_BF = torch.arange(len(query_BD), device=device)[:, None] * total + row_BF
            row_BF = row_BF.masked_fill(torch.isin(pair_BF, pair_P), -1)
        query_M, place_M = (row_BF >= 0).nonzero(as_tuple=True)
        row_M, score_M = row_BF[query_M, place_M], score_BF[query_M, place_M]
        if self.settings.rescore:
            score_M = true_scores(query_BD, self.embeddings_ND, query_M, row_M)
        best.add_(query_M, row_M, score_M)
        return best.result()

    def _fetch(self, query_BD: Tensor, fetch: int) -> tuple[Tensor, Tensor]:
        faiss = _faiss()
        wider = {}
        if self.name == "hnsw":
            wider["params"] = faiss.SearchParametersHNSW(efSearch=max(self.settings.neighbours, fetch))
        with _threads(faiss, self.settings.threads):
            score_BF, row_BF = self._searched.search(_floats(query_BD), fetch, **wider)
        return torch.from_numpy(score_BF).to(query_BD.device), torch.from_numpy(row_BF).to(query_BD.device)

    def save(self, path: Path) -> str:
        """Write FAISS's own bytes atomically; returns their SHA-256, which `load` asks for."""
        faiss = _faiss()
        with atomic_write(path, "wb") as file:
            faiss.write_index(self.index, faiss.PyCallbackIOWriter(file.write))
        return digest_file(path)

    def record(self) -> dict[str, Any]:
        """What a manifest says of it."""
        return {"backend": self.name, "settings": asdict(self.settings), "recall_at_8": self.recall_at_8}


def build_faiss(
    kind: str,
    embeddings_ND: Matrix,
    settings: FaissSettings | None = None,
    beat: Callable[[], None] = lambda: None,
) -> FaissSearch:
    """Train and fill an index; the same embeddings and settings give the same index on the same machine.

    `beat` is called now and then, so that a lease can be kept meanwhile.
    """
    faiss = _faiss()
    total, size = embeddings_ND.shape
    settings = (settings or FaissSettings()).resolved(kind, total, size)
    index = _empty(faiss, kind, size, settings)
    # HNSW links passages in the order in which its threads reach them: one thread, or no two builds are alike.
    with _threads(faiss, 1 if kind == "hnsw" else settings.threads):
        if not index.is_trained and total:
            chosen_T = np.random.default_rng(settings.seed).permutation(total)[: settings.training_rows]
            index.train(_floats(embeddings_ND[torch.from_numpy(np.sort(chosen_T)).to(embeddings_ND.device)]))
        for start in range(0, total if index.is_trained else 0, ADDED_ROWS):
            beat()
            index.add(_floats(embeddings_ND[start : start + ADDED_ROWS]))
    return FaissSearch(kind, index, embeddings_ND, settings)


def load_faiss(path: Path, sha256: str, record: dict[str, Any], embeddings_ND: Matrix) -> FaissSearch:
    """Read what `save` wrote, with the `record` of its manifest; other bytes, or another size, are refused."""
    faiss = _faiss()
    found = digest_file(path)
    if found != sha256:
        raise UserError(
            f"{path}: its digest is {found[:12]}, the manifest says {sha256[:12]}; build the search index again"
        )
    unknown = set(record["settings"]) - {field.name for field in fields(FaissSettings)}
    if record["backend"] not in KINDS or unknown:
        raise UserError(
            f"{path}: made by another version (backend {record['backend']!r}, settings {sorted(unknown)}); "
            "build the search index again"
        )
    with open(path, "rb") as file:
        index = faiss.read_index(faiss.PyCallbackIOReader(file.read))
    if (index.ntotal, index.d) != tuple(embeddings_ND.shape):
        raise UserError(
            f"{path}: holds {index.ntotal} vectors of {index.d} numbers, the embeddings are "
            f"{len(embeddings_ND)} of {embeddings_ND.shape[1]}; build the search index again"
        )
    backend = FaissSearch(record["backend"], index, embeddings_ND, FaissSettings(**record["settings"]))
    backend.recall_at_8 = record["recall_at_8"]
    return backend


def sample_queries(embeddings_ND: Matrix, seed: int, count: int = SAMPLE_QUERIES) -> Tensor:
    """Passages, each moved by half the spread of all of them, so that a query's neighbours are not just itself."""
    generator = np.random.default_rng(seed)
    chosen = torch.from_numpy(generator.permutation(len(embeddings_ND))[:count]).to(embeddings_ND.device)
    query_BD = embeddings_ND[chosen].float()
    if len(query_BD) < 2:
        return query_BD
    noise_BD = torch.from_numpy(generator.standard_normal(query_BD.shape, np.float32)).to(query_BD.device)
    return query_BD + SAMPLE_NOISE * query_BD.std(0) * noise_BD


def recall(backend: SearchBackend, exact: SearchBackend, query_BD: Tensor, count: int = RECALL_COUNT) -> float:
    """Share of the exact top `count` that the backend finds, mean over the queries."""
    wanted_BK = exact.search(query_BD, count).rows_BK
    found_BK = backend.search(query_BD, count).rows_BK
    wanted = int((wanted_BK >= 0).sum())
    hit_BK = (wanted_BK[:, :, None] == found_BK[:, None, :]).any(2) & (wanted_BK >= 0)
    return int(hit_BK.sum()) / wanted if wanted else 1.0


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            f"faiss cannot be imported ({error}); `make setup` installs faiss-cpu, the extra `gpu` faiss-gpu; or "
            "search with the exact backend"
        ) from None
    return faiss


@contextmanager
def _threads(faiss: Any, count: int) -> Iterator[None]:
    """FAISS's threads, which it may share with torch, inside the block."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count or torch.get_num_threads())
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _check_settings(settings: FaissSettings, kind: str, total: int, size: int) -> None:
    if kind not in KINDS:
        raise UserError(f"search backend {kind!r} is not one of {', '.join(KINDS)}")
    for field in fields(FaissSettings):
        value = getattr(settings, field.name)
        if not isinstance(value, bool) and value < 0:
            raise UserError(f"{field.name}: {value} is negative; 0 takes what suits the number of passages")
    if settings.build_neighbours < 1:
        raise UserError("build_neighbours must be 1 or more")
    if kind.startswith("ivf") and settings.lists > total:
        raise UserError(f"lists: {settings.lists} lists for {total} passages; ask for fewer, or 0")
    if kind == "ivf_pq":
        if settings.parts and size % settings.parts:
            raise UserError(
                f"parts: {settings.parts} parts do not divide vectors of {size} numbers; choose a divisor, or 0"
            )
        least = 2 ** (settings.bits or 1)
        if settings.bits > 16 or 0 < total < least:
            raise UserError(
                f"bits: codes of {settings.bits or 1} bits need {least} passages, up to 2^16; there are {total}"
            )
    if settings.gpu and kind not in ON_GPU:
        raise UserError(f"{kind} does not run on a GPU; choose one of {', '.join(ON_GPU)}")


def _empty(faiss: Any, kind: str, size: int, settings: FaissSettings) -> Any:
    metric = faiss.METRIC_INNER_PRODUCT
    if kind == "faiss_flat":
        return faiss.IndexFlatIP(size)
    if kind == "sq8":
        return faiss.IndexScalarQuantizer(size, faiss.ScalarQuantizer.QT_8bit, metric)
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(size, settings.links, metric)
        index.hnsw.efConstruction = settings.build_neighbours
        return index
    lists = faiss.IndexFlatIP(size)
    if kind == "ivf_flat":
        index = faiss.IndexIVFFlat(lists, size, settings.lists, metric)
    else:
        index = faiss.IndexIVFPQ(lists, size, settings.lists, settings.parts, settings.bits, metric)
        index.pq.cp.seed = settings.seed
        index.pq.cp.min_points_per_centroid = 1
    index.nprobe = settings.probes  # saved with the index and copied to GPUs
    index.cp.seed = settings.seed
    index.cp.min_points_per_centroid = 1  # few passages: FAISS would print a warning
    return index


def _on_gpus(index: Any, kind: str) -> Any:
    faiss = _faiss()
    if not hasattr(faiss, "index_cpu_to_all_gpus") or not faiss.get_num_gpus():
        raise UserError(
            f"{kind} was asked for on a GPU, but this faiss ({faiss.__version__}) sees none; install the extra `gpu`, "
            "or set gpu to false"
        )
    return faiss.index_cpu_to_all_gpus(index)


def _floats(vectors_ND: Tensor) -> np.ndarray:
    return np.ascontiguousarray(vectors_ND.detach().float().cpu().numpy())
