"""Exact search in bounded memory: an approximate product, a bound on its error, and true scores of the rows left.

The embeddings are read chunk by chunk. A matrix product gives each row an approximate score together with a bound on
how far the true score can be from it; only rows that may belong to the result under that bound get their true score
(search.true_scores). So the result is the one that scoring every row would give, to the last bit. If products of bytes
(CPU) or bfloat16 (GPU) are faster, a reduced copy of the embeddings is read first (reduced.py). If the copy leaves too
many rows of a chunk (near-ties), the chunk is read again in float32, and the rows left are scored in pieces.
"""

# Shapes: N passages, B queries, K results, n rows of a chunk, g its blocks, S rows of a block, M pairs of a query and a
# row, P forbidden pairs, H pairs of a query and a block, D embedding size

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from realm_lab.engine.retrieval import reduced
from realm_lab.engine.retrieval.search import (
    SUM_ERROR,
    UNDERFLOW,
    Approximate,
    Best,
    Exclusion,
    Forbidden,
    Matrix,
    SearchResult,
    check_numbers,
    checked_queries,
    true_scores,
)

CHUNK_SCORES = {"cpu": 1 << 22, "other": 1 << 26}  # scores held at once: 16 and 256 MiB of float32
CHUNK_ROWS = {"cpu": 1 << 16, "other": 1 << 22}  # most rows of a chunk, for few queries
REDUCED_CHUNK_ROWS = 1 << 18  # most rows of a chunk if a reduced copy is read on the CPU
MOST_QUERIES = 512  # searched together
BLOCK_ROWS = 128  # rows of a block, which are looked at one by one only if the largest of their scores is high enough
SMALL_BLOCK_ROWS, SMALL_INDEX = 16, 1 << 16  # an index with fewer rows than SMALL_INDEX has smaller blocks
MOST_PAIRS = 1 << 14  # most pairs of a chunk that are scored without reading the chunk again in float32
MANY_QUERIES = 64  # with fewer columns, halving (`peaks`) is faster on the CPU than `amax` over rows
SEVERAL_QUERIES = 16  # for 2 to 15 queries, a product with the transposed view is several times as fast

REDUCED_ERROR = 2.0**-6.9  # relative error of float32 products that torch may compute in bfloat16 or TF32


class Reading(Protocol):
    """A way to compute approximate scores of chunks for some queries."""

    def scores(self, start: int, rows_nD: Tensor, score_nB: Tensor | None = None) -> Approximate:
        """Scores of rows [start, start + n). `score_nB`: memory that may be used for them."""


class PlainReading:
    """Approximate scores by products in float32."""

    def __init__(self, query_BD: Tensor):
        self._query_DB = query_BD.float().T
        if len(query_BD) >= SEVERAL_QUERIES:
            self._query_DB = self._query_DB.contiguous()
        self._norm_B = query_BD.double().norm(dim=1)
        self._largest = float(query_BD.abs().max())
        reducing = not query_BD.is_cpu or torch.get_float32_matmul_precision() != "highest"
        self._sums = SUM_ERROR * (len(self._query_DB) + 1) + (REDUCED_ERROR if reducing else 0.0)

    def scores(self, start: int, rows_nD: Tensor, score_nB: Tensor | None = None) -> Approximate:
        """See Reading."""
        size = rows_nD.shape[1]
        low, high = rows_nD.aminmax()
        largest = float(torch.maximum(-low, high))
        check_numbers(largest, self._largest, size)
        score_nB = multiply(rows_nD.float(), self._query_DB, score_nB)
        small = UNDERFLOW * size * (1 + largest + self._largest)
        error_B = self._sums * self._norm_B * (largest * size**0.5) + small
        return Approximate(score_nB, torch.zeros_like(error_B), error_B, 0.0)


def multiply(rows_nD: Tensor, query_DB: Tensor, score_nB: Tensor | None) -> Tensor:
    """Return the matrix product, float32 [n, B]; `score_nB`: memory that may be used for it."""
    if query_DB.shape[1] == 1:
        return torch.mm(rows_nD, query_DB.T.repeat(2, 1).T)[:, :1]  # two equal columns are faster than one
    return torch.mm(rows_nD, query_DB, out=score_nB)


class ExactSearch:
    """Exact top passages of a matrix of embeddings, on its device; see the top of this file."""

    recall_at_8: float | None = None

    def __init__(self, embeddings_ND: Matrix, kind: torch.dtype | None = None):
        """`kind`: number type of the reduced copy; float32: no copy. Default: the fastest; no copy of a small index."""
        self.embeddings_ND = embeddings_ND
        self._forbidden = Forbidden(len(embeddings_ND))
        self._block = BLOCK_ROWS if len(embeddings_ND) >= SMALL_INDEX else SMALL_BLOCK_ROWS
        if kind is None:
            kind = reduced.fast_kind(embeddings_ND.device) if len(embeddings_ND) >= SMALL_INDEX else torch.float32
        self._copy = None
        if kind != torch.float32 and isinstance(embeddings_ND, Tensor) and len(embeddings_ND):
            self._copy = reduced.ReducedCopy(embeddings_ND, kind, self._block)

    @torch.no_grad()
    def search(self, query_BD: Tensor, count: int, exclude: Exclusion | None = None) -> SearchResult:
        """Return the `count` passages of largest inner product, [B, count]; among equal scores the lower row."""
        query_BD = checked_queries(query_BD, self.embeddings_ND.shape[1], count)
        best = Best.none(len(query_BD), count, query_BD.device)
        query_P, row_P = self._forbidden.pairs(exclude, query_BD.device)
        for start in range(0, len(query_BD) if count else 0, MOST_QUERIES):
            end = min(start + MOST_QUERIES, len(query_BD))
            own_P = (query_P >= start) & (query_P < end)
            part = Best(best.scores_BK[start:end], best.rows_BK[start:end])  # views: filled in place
            self._search(query_BD[start:end], part, query_P[own_P] - start, row_P[own_P])
        return best.result()

    def _search(self, query_BD: Tensor, best: Best, query_P: Tensor, row_P: Tensor) -> None:
        total, block, kind = len(self.embeddings_ND), self._block, "cpu" if query_BD.is_cpu else "other"
        readings: list[Reading] = [PlainReading(query_BD)]
        most = CHUNK_ROWS[kind]
        if self._copy is not None:
            readings.insert(0, reduced.ReducedReading(self._copy, query_BD))
            most = max(most, REDUCED_CHUNK_ROWS)
        width = max(block, min(most, CHUNK_SCORES[kind] // len(query_BD)) // block * block)
        rooms: list[Tensor | None] = [None] * len(readings)
        starts = range(0, total, width)
        border = torch.searchsorted(row_P, torch.tensor([*starts, total], device=row_P.device)).tolist()
        for number, start in enumerate(starts):
            own = slice(border[number], border[number + 1])
            rows_nD = self.embeddings_ND[start : start + width]
            for index, reading in enumerate(readings):
                # The previous chunk's memory is used again: new memory would cost half the time of a large product.
                room = rooms[index] if rooms[index] is not None and len(rows_nD) == width else None
                found = reading.scores(start, rows_nD, room)
                rooms[index] = found.score_nB
                score_nB = forbid(found.score_nB, block, query_P[own], row_P[own] - start)
                pairs = candidates(found._replace(score_nB=score_nB), block, best.scores_BK)
                if len(pairs[0]) <= MOST_PAIRS:
                    break
            for row_M, query_M in zip(*(part.split(MOST_PAIRS) for part in pairs), strict=True):
                best.add_(query_M, row_M + start, true_scores(query_BD, rows_nD, query_M, row_M))


def forbid(score_nB: Tensor, block: int, query_P: Tensor, row_P: Tensor) -> Tensor:
    """Return scores padded to whole blocks; forbidden pairs and the padding have the lowest value of the type."""
    lowest = lowest_of(score_nB)
    score_nB[row_P, query_P] = lowest
    missing = -len(score_nB) % block
    return functional.pad(score_nB, (0, 0, 0, missing), value=lowest) if missing else score_nB


def lowest_of(score_nB: Tensor) -> float:
    """The lowest value of a type: -inf, or the smallest integer."""
    return -torch.inf if score_nB.is_floating_point() else torch.iinfo(score_nB.dtype).min


def candidates(found: Approximate, block: int, best_BK: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of a chunk that may belong to the result, and their queries, [M], [M]; never a forbidden pair."""
    score_gSB = found.score_nB.unflatten(0, (-1, block))
    unit_gB = torch.ones_like(score_gSB[:, 0]) if found.unit_gB is None else found.unit_gB
    least_B, count = best_BK[:, -1].double(), best_BK.shape[1]

    def scaled(score: Tensor, unit: Tensor) -> Tensor:
        """Return scores times their units, -inf for forbidden pairs."""
        return (score * unit).masked_fill_(score == lowest_of(score), -torch.inf)

    def limit(least_B: Tensor) -> Tensor:
        """Return the approximate score above which the true one may reach `least_B`."""
        limit_B = least_B - found.shift_B - found.error_B
        limit_B = limit_B / (1 + found.relative * limit_B.sign())
        return limit_B.float().nextafter(torch.full_like(limit_B, -torch.inf, dtype=torch.float32))

    peak_gB = scaled(peaks(score_gSB), unit_gB)
    hot_gB = peak_gB > limit(least_B)
    if len(peak_gB) >= count and int(hot_gB.sum()) > 2 * best_BK.numel():
        # Each of the `count` blocks with the largest peaks holds a row whose true score is at least the new `least_B`.
        peak_B = peak_gB.topk(count, dim=0).values[-1].double()
        least_B = least_B.maximum(peak_B - peak_B.abs() * found.relative - found.error_B + found.shift_B)
        hot_gB = peak_gB > limit(least_B)
    block_H, query_H = hot_gB.nonzero(as_tuple=True)
    score_HS = scaled(score_gSB[block_H, :, query_H], unit_gB[block_H, query_H, None])
    hot_M, place_M = (score_HS > limit(least_B)[query_H, None]).nonzero(as_tuple=True)
    return block_H[hot_M] * block + place_M, query_H[hot_M]


def peaks(score_gSB: Tensor) -> Tensor:
    """Return the largest score of each block; by halves for few queries on the CPU, where `amax` is slower."""
    if score_gSB.shape[2] >= MANY_QUERIES or not score_gSB.is_cpu or not score_gSB.is_floating_point():
        return score_gSB.amax(1)
    while score_gSB.shape[1] > 1:
        half = (score_gSB.shape[1] + 1) // 2
        score_gSB = torch.maximum(score_gSB[:, :half], score_gSB[:, -half:])
    return score_gSB[:, 0]
