"""Exact search in bounded memory: a coarse scan, a proof of what it cannot have missed, and true scores of the rest.

The embeddings are read once, chunk by chunk, in half precision and large matrix products; only the maximum of each
block of rows is looked at. For a query q and a row d, stored as q̂ and d̂ after a shift by the centre m of all rows,

    q·d = q·m + q·(d - m)   and   |q·(d - m) - q̂·d̂| <= |q| |d - m - d̂| + |q - q̂| |d̂| + rounding of the product,

with all of these lengths measured, not assumed (the largest of each block counts). A block whose maximum, raised by
that bound, stays below the count-th best true score so far holds nothing that belongs in the result; of the others,
the rows that pass the same test get their true score (search.true_scores). So the result is the one that scoring every
row would give, to the last bit. Where half precision lets too many rows of a chunk through (near-ties), the chunk is
read again in float32, whose bound is about 200 times tighter; however many are left are then scored in pieces.

A processor multiplies bfloat16 no faster by one column than by sixteen. For so few queries the first reading is of one
byte a number, each row in units of its own largest number / 127: a quarter of what float32 is, under the same bound.
"""

# Shapes: N passages, B queries, K results, n rows of a chunk, g its blocks, S rows of a block, G blocks of the index,
# M pairs of a query and a row, H pairs of a query and a block, D embedding size

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from realm_lab.errors import UserError
from realm_lab.retrieval.search import Best, Exclusion, Forbidden, Matrix, SearchResult, checked_queries, true_scores

CHUNK_SCORES = {"cpu": 1 << 22, "cuda": 1 << 26}  # held at once: 8 MiB of bfloat16; 256 MiB of float32
CHUNK_ROWS = {"cpu": 1 << 18, "cuda": 1 << 22}  # most rows of a chunk, for few queries
LARGEST_SCORE = 1e38
MOST_QUERIES = 512  # searched together
BLOCK_ROWS = 128
SMALL_BLOCK_ROWS, SMALL_INDEX = 16, 1 << 16  # few rows: finer blocks, so that fewer of them pass
MOST_PAIRS = 1 << 14  # pairs of one chunk that are scored without reading it again in float32
PREPARED_ROWS = 1 << 14  # rows copied at once
CENTRE_ROWS = 1 << 16  # rows whose mean is the centre; any centre is right, a good one makes the bound tight

# Relative errors, each with room to spare; those of sums are per term.
SUM_ERROR = 2.0**-22  # float32, also where a matrix unit chops instead of rounding (2^-23)
DOUBLE_ERROR = 2.0**-50
# Of a finished score: half a unit is 2^-8, 2^-24, 2^-53.
STORED_ERROR = {torch.bfloat16: 2.0**-7.9, torch.float32: 2.0**-23, torch.float64: 2.0**-52}
FEW_QUERIES = 4  # for which a copy in bytes is read first; measured: a bfloat16 product takes over from 6
MANY_QUERIES = 64  # from which the columns alone fill a vector register
BYTE = 127  # the largest of them
SMALLEST_UNIT = 2.0**-60  # of a row of bytes; a row of zeros has it
BYTE_WIDTH = 32  # numbers of a vector that the product of bytes takes together
REDUCED_ERROR = 2.0**-6.9  # float32 products that torch was allowed to take in bfloat16 or TF32
UNDERFLOW = 2.0**-125  # absolute, per product: numbers below float32's normal range may be flushed to zero


class _Scan(NamedTuple):
    """One way of reading the embeddings: rows_ND / scale less the centre, and what it can be wrong by, per block."""

    rows_ND: Matrix
    centre_D: Tensor | None  # float64; None: the embeddings themselves, neither shifted nor scaled
    scale: float
    error_G2: Tensor  # largest |d / scale - centre - row| and largest |row| of each block, float64
    unit_N: Tensor | None = None  # bfloat16, of rows of bytes


class _Queries(NamedTuple):
    """The queries as one scan reads them."""

    read_DB: Tensor
    score_nB: Tensor  # room for a chunk, used again: fresh memory costs a large product half its time
    scale_B: Tensor  # of the scan's scores, to the true ones
    shift_B: Tensor  # q·m
    error_2B: Tensor  # factors of error_G2
    error_B: Tensor  # the rest of the bound


class ExactSearch:
    """Exact top passages of a matrix of embeddings, on its device; see the top of this file."""

    name = "exact"

    def __init__(self, embeddings_ND: Matrix, *, half: bool | None = None, block_rows: int | None = None):
        """`half`: scan a bfloat16 copy (by default of a large index in memory, where the processor multiplies
        bfloat16 fast)."""
        self.embeddings_ND = embeddings_ND
        self._total, self._size = embeddings_ND.shape
        self._block = block_rows or (BLOCK_ROWS if self._total >= SMALL_INDEX else SMALL_BLOCK_ROWS)
        self._largest = _largest(embeddings_ND)
        self._forbidden = Forbidden(self._total)
        if half is None:
            large = self._total >= SMALL_INDEX and isinstance(embeddings_ND, Tensor)
            half = large and _multiplies_bfloat16(embeddings_ND.device)
        self._scans = ([self._prepare(torch.bfloat16)] if half else []) + [self._prepare(torch.float32)]
        self._reads_bytes = half and _multiplies_bytes(embeddings_ND.device) and self._size % BYTE_WIDTH == 0
        self._bytes: _Scan | None = None  # made when it is first wanted

    @torch.no_grad()
    def search(self, query_BD: Tensor, count: int, exclude: Exclusion | None = None) -> SearchResult:
        """The `count` passages of largest inner product, [B, count]; of equal scores the lower row."""
        query_BD = checked_queries(query_BD, self._size, count)
        largest = float(query_BD.abs().max()) if len(query_BD) else 0.0
        if self._largest * largest * self._size > LARGEST_SCORE:
            raise UserError(
                f"numbers up to {self._largest:.3g} in the index and {largest:.3g} in the queries: their products do "
                "not fit float32; the training has diverged, lower the learning rates"
            )
        best = Best.none(len(query_BD), count, query_BD.device)
        if not count:
            return best.result()
        query_P, row_P = self._forbidden.pairs(exclude, query_BD.device)
        for start in range(0, len(query_BD), MOST_QUERIES):
            end = min(start + MOST_QUERIES, len(query_BD))
            own_P = (query_P >= start) & (query_P < end)
            part = Best(best.scores_BK[start:end], best.rows_BK[start:end])  # views: filled in place
            self._search(query_BD[start:end], part, query_P[own_P] - start, row_P[own_P])
        return best.result()

    def _search(self, query_BD: Tensor, best: Best, query_P: Tensor, row_P: Tensor) -> None:
        kind = query_BD.device.type
        width = min(CHUNK_ROWS[kind], CHUNK_SCORES[kind] // len(query_BD)) // self._block * self._block
        width = max(width, self._block)
        scans = self._scans
        if self._reads_bytes and len(query_BD) <= FEW_QUERIES:
            self._bytes = self._bytes or self._prepare(torch.int8)
            scans = [self._bytes, *scans]
        readings = [self._read(scan, query_BD, min(width, self._total + self._block)) for scan in scans]
        starts = range(0, self._total, width)
        border = torch.searchsorted(row_P, torch.tensor([*starts, self._total], device=row_P.device)).tolist()
        for number, start in enumerate(starts):
            own = slice(border[number], border[number + 1])
            length = min(width, self._total - start)
            for scan, queries in zip(scans, readings, strict=True):
                found = self._survivors(scan, queries, best.scores_BK, start, length, query_P[own], row_P[own])
                if len(found[0]) <= MOST_PAIRS:
                    break
            for row_M, query_M in zip(*(part.split(MOST_PAIRS) for part in found), strict=True):
                best.add_(query_M, row_M, true_scores(query_BD, self.embeddings_ND, query_M, row_M))

    def _survivors(
        self, scan: _Scan, queries: _Queries, best_BK: Tensor, start: int, length: int, query_P: Tensor, row_P: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rows of one chunk that may belong to the result, and their queries: [M], [M], ascending in the row's block.

        A score of -inf stands for what is forbidden or not there; it is no candidate: its upper bound is NaN.
        """
        blocks = -(-length // self._block)
        score_nB = queries.score_nB[: blocks * self._block]
        rows_nD = scan.rows_ND[start : start + length]
        if scan.unit_N is None:
            _product(rows_nD, queries.read_DB, score_nB[:length])
        else:
            _byte_product(rows_nD, scan.unit_N[start : start + length], queries.read_DB, score_nB[:length])
        score_nB[length:] = -torch.inf
        if len(row_P):
            score_nB[row_P - start, query_P] = -torch.inf
        score_gSB = score_nB.view(blocks, self._block, -1)
        first = start // self._block
        bound_gB = scan.error_G2[first : first + blocks] @ queries.error_2B + queries.error_B
        peak_gB, stored = _peaks(score_gSB).double(), STORED_ERROR[score_nB.dtype]
        highest_gB = _true(peak_gB + peak_gB.abs() * stored + bound_gB, queries.scale_B, queries.shift_B)
        # Rows of earlier chunks come first among equals, so rows of this one must do better than the last of them.
        least_B, count = best_BK[:, -1], best_BK.shape[1]
        hot_gB = highest_gB > least_B
        if blocks >= count and int(hot_gB.sum()) > 2 * best_BK.numel():
            # Each of the `count` blocks of the largest lower bounds holds a row that is at least that good.
            lowest_gB = _true(peak_gB - peak_gB.abs() * stored - bound_gB, queries.scale_B, queries.shift_B)
            border_B = lowest_gB.nan_to_num(nan=-torch.inf).topk(count, dim=0).values[-1]
            least_B = least_B.maximum(border_B.nextafter(torch.full_like(border_B, -torch.inf)))
            hot_gB = highest_gB > least_B
        block_H, query_H = hot_gB.nonzero(as_tuple=True)
        score_HS = score_gSB[block_H, :, query_H].double()
        highest_HS = score_HS + score_HS.abs() * stored + bound_gB[block_H, query_H, None]
        highest_HS = _true(highest_HS, queries.scale_B[query_H, None], queries.shift_B[query_H, None])
        hot_M, place_M = (highest_HS > least_B[query_H, None]).nonzero(as_tuple=True)
        return start + block_H[hot_M] * self._block + place_M, query_H[hot_M]

    def _prepare(self, kind: torch.dtype) -> _Scan:
        """Copy the embeddings in half precision or bytes, shifted and scaled, or take them as they are; measure it."""
        stored_ND = self.embeddings_ND
        blocks = -(-self._total // self._block)
        error_G2 = torch.zeros(blocks, 2, dtype=torch.float64, device=stored_ND.device)
        centre_D, scale, copy_ND, unit_N = None, 1.0, stored_ND, None
        if kind != torch.float32:
            scale = 2.0 ** math.ceil(math.log2(self._largest)) if self._largest else 1.0
            sample_ND = stored_ND[:: max(1, self._total // CENTRE_ROWS)].double() / scale
            centre_D = sample_ND.sum(0) / max(1, len(sample_ND))
            copy_ND = torch.empty(stored_ND.shape, dtype=kind, device=stored_ND.device)
            if kind == torch.int8:
                unit_N = torch.empty(self._total, dtype=torch.bfloat16, device=stored_ND.device)
        step = max(1, PREPARED_ROWS // self._block) * self._block
        for start in range(0, self._total, step):
            row_nD = stored_ND[start : start + step].double()
            lost_n = torch.zeros(len(row_nD), dtype=torch.float64, device=row_nD.device)
            if centre_D is not None:
                exact_nD, unit_n1 = row_nD / scale - centre_D, None
                if unit_N is not None:
                    # Raised by more than its own rounding can take: no row has a number above BYTE units.
                    unit_n = (exact_nD.abs().amax(1) / BYTE * (1 + 2.0**-8)).clamp(min=SMALLEST_UNIT)
                    unit_N[start : start + len(row_nD)] = unit_n
                    unit_n1 = unit_N[start : start + len(row_nD), None].double()
                copy_nD = copy_ND[start : start + len(row_nD)]
                copy_nD.copy_(exact_nD if unit_n1 is None else (exact_nD / unit_n1).round())
                row_nD = copy_nD.double() if unit_n1 is None else copy_nD.double() * unit_n1
                lost_n = (exact_nD - row_nD).norm(dim=1)
            both_n2 = functional.pad(
                torch.stack([lost_n, row_nD.norm(dim=1)], 1), (0, 0, 0, -len(row_nD) % self._block)
            )
            error_G2[start // self._block :][: len(both_n2) // self._block] = both_n2.view(-1, self._block, 2).amax(1)
        return _Scan(copy_ND, centre_D, scale, error_G2, unit_N)

    def _read(self, scan: _Scan, query_BD: Tensor, width: int) -> _Queries:
        """Round the queries as the scan wants them, and measure what that loses."""
        exact_BD = query_BD.double()
        double_B = DOUBLE_ERROR * self._size**1.5 * self._largest * exact_BD.norm(dim=1)
        sums, scale_B = SUM_ERROR * self._size, torch.ones_like(double_B)
        if scan.centre_D is None:
            read_BD = query_BD.float()
            if torch.get_float32_matmul_precision() != "highest" or query_BD.device.type == "cuda":
                sums += REDUCED_ERROR
            shift_B = torch.zeros_like(double_B)
        else:
            largest_B = exact_BD.abs().amax(1)
            scale_B = torch.where(largest_B > 0, largest_B, 1.0).log2().ceil().exp2()
            exact_BD = exact_BD / scale_B[:, None]
            read_BD = exact_BD.to(torch.bfloat16)
            scale_B = scale_B * scan.scale
            shift_B = exact_BD @ scan.centre_D * scale_B
        lost_B = (exact_BD - read_BD.double()).norm(dim=1)
        error_2B = torch.stack([exact_BD.norm(dim=1), lost_B + sums * read_BD.double().norm(dim=1)])
        rest_B = double_B / scale_B + UNDERFLOW * self._size
        kind = torch.float32 if read_BD.device.type == "cuda" else read_BD.dtype
        score_nB = torch.empty(width, len(read_BD), dtype=kind, device=read_BD.device)
        return _Queries(read_BD.T.contiguous(), score_nB, scale_B, shift_B, error_2B, rest_B)


def _true(score: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Scores of a scan, float64, as true scores are: rounding to float32 keeps their order."""
    return (score * scale + shift).float()


def _product(rows_nD: Tensor, read_DB: Tensor, score_nB: Tensor) -> None:
    """Scores of a chunk, into `score_nB`: in float32 on a GPU, in the scan's precision on a processor."""
    if read_DB.dtype != score_nB.dtype:
        torch.mm(rows_nD, read_DB, out_dtype=score_nB.dtype, out=score_nB)
    else:
        torch.mm(rows_nD.to(read_DB.dtype), read_DB, out=score_nB)


def _byte_product(rows_nD: Tensor, unit_n: Tensor, read_DB: Tensor, score_nB: Tensor) -> None:
    """The same of rows of bytes and their units: summed in float32, multiplied by the unit, stored in bfloat16."""
    score_nB.copy_(torch._weight_int8pack_mm(read_DB.T.contiguous(), rows_nD, unit_n).T)


def _peaks(score_gSB: Tensor) -> Tensor:
    """The largest score of each block; for few queries by halves, whole slices, where `amax` goes number by number."""
    if score_gSB.shape[2] >= MANY_QUERIES or score_gSB.is_cuda:
        return score_gSB.amax(1)
    while score_gSB.shape[1] > 1:
        half = (score_gSB.shape[1] + 1) // 2
        score_gSB = torch.maximum(score_gSB[:, :half], score_gSB[:, -half:])
    return score_gSB[:, 0]


def _largest(embeddings_ND: Matrix) -> float:
    """The largest absolute number; refuses what is not finite."""
    largest = 0.0
    for start in range(0, len(embeddings_ND), CHUNK_ROWS["cpu"]):
        low, high = embeddings_ND[start : start + CHUNK_ROWS["cpu"]].aminmax()
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise UserError(
                f"the index holds numbers that are not finite, in passages {start} and following: the training had "
                "diverged when it was built; lower the learning rates and build it again"
            )
        largest = max(largest, -float(low), float(high))
    return largest


def _multiplies_bfloat16(device: torch.device) -> bool:
    """Whether a product of bfloat16 matrices is faster than one of float32 there."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return device.type != "cpu" or any(getattr(torch.cpu, name, bool)() for name in names)


def _multiplies_bytes(device: torch.device) -> bool:
    """Whether a product of a bfloat16 query and rows of bytes is summed in float32 there, and fast."""
    fast = hasattr(torch, "_weight_int8pack_mm") and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return device.type == "cpu" and fast
