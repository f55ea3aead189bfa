"""Reduced copies of the embeddings, read first by the exact search where that is faster: bfloat16, or bytes.

For a query q and a row d, stored as q̂ and d̂ after a shift by the centre m of all rows,

    q·d = q·m + q·(d - m)   and   |q·(d - m) - q̂·d̂| <= |q| |d - m - d̂| + |q - q̂| |d̂| + rounding of the product,

with all of these lengths measured, not assumed. A processor multiplies bfloat16 no faster by one column than by
sixteen; for so few queries the copy that is read has one byte a number, each row in units of its own largest number /
127: a quarter of what float32 is, under the same bound. This file is the only one that uses private functions of torch
(a product of bytes, and what the processor can do); where they are missing the copies are not made.
"""

# Shapes: N passages, B queries, n rows of a chunk, C groups of GROUP_ROWS rows, D embedding size

from __future__ import annotations

import torch
from torch import Tensor

from realm_lab.retrieval.search import SUM_ERROR, UNDERFLOW, Approximate, check_numbers

GROUP_ROWS = 1 << 13  # whose losses are measured together
CENTRE_ROWS = 1 << 16  # rows whose mean is the centre; any centre is right, a good one makes the bound tight
FEW_QUERIES = 4  # for which bytes are read first; measured: a bfloat16 product takes over from 6
BYTE = 127  # the largest of them
SMALLEST_UNIT = 2.0**-60  # of a row of bytes; a row of zeros has it
BYTE_WIDTH = 32  # numbers of a vector that the product of bytes takes together
STORED_ERROR = 2.0**-7.9  # of a score rounded to bfloat16, with room to spare


def is_fast(device: torch.device) -> bool:
    """Whether a product of bfloat16 matrices is faster than one of float32 there."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return device.type != "cpu" or any(getattr(torch.cpu, name, bool)() for name in names)


def multiplies_bytes(device: torch.device) -> bool:
    """Whether a product of a bfloat16 query and rows of bytes is summed in float32 there, and fast."""
    fast = hasattr(torch, "_weight_int8pack_mm") and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return device.type == "cpu" and fast


class Copies:
    """The copies of one matrix; that in bytes is made when it is first wanted."""

    def __init__(self, embeddings_ND: Tensor):
        self._embeddings_ND = embeddings_ND
        self._half = ReducedCopy(embeddings_ND, torch.bfloat16)
        self._bytes: ReducedCopy | None = None

    def readings(self, query_BD: Tensor) -> list[ReducedReading]:
        """How these queries are read, the fastest way first."""
        readings = [ReducedReading(self._half, query_BD)]
        size, device = query_BD.shape[1], query_BD.device
        if len(query_BD) <= FEW_QUERIES and size % BYTE_WIDTH == 0 and multiplies_bytes(device):
            self._bytes = self._bytes or ReducedCopy(self._embeddings_ND, torch.int8)
            readings.insert(0, ReducedReading(self._bytes, query_BD))
        return readings


class ReducedCopy:
    """Rows less their centre in bfloat16 or bytes, and the largest |d - m - d̂| and |d̂| of each group."""

    def __init__(self, embeddings_ND: Tensor, kind: torch.dtype):
        total = len(embeddings_ND)
        device, groups = embeddings_ND.device, -(-total // GROUP_ROWS)
        self.centre_D = embeddings_ND[:: max(1, total // CENTRE_ROWS)].double().mean(0)
        self.rows_ND = torch.empty(embeddings_ND.shape, dtype=kind, device=device)
        self.unit_N = torch.ones(total if kind == torch.int8 else 0, dtype=torch.bfloat16, device=device)
        self.lost_C: list[float] = []
        self.norm_C: list[float] = []
        for group in range(groups):
            part = slice(group * GROUP_ROWS, (group + 1) * GROUP_ROWS)
            exact_nD = embeddings_ND[part].double() - self.centre_D
            unit_n1 = torch.ones_like(exact_nD[:, :1])
            if kind == torch.int8:
                # Raised by more than its own rounding can take: no row has a number above BYTE units.
                largest_n = exact_nD.abs().amax(1) / BYTE * (1 + 2.0**-8)
                self.unit_N[part] = largest_n.clamp(min=SMALLEST_UNIT)
                unit_n1 = self.unit_N[part, None].double()
            self.rows_ND[part] = (exact_nD / unit_n1).round() if kind == torch.int8 else exact_nD
            stored_nD = self.rows_ND[part].double() * unit_n1
            self.lost_C.append(float((exact_nD - stored_nD).norm(dim=1).max()))
            self.norm_C.append(float(stored_nD.norm(dim=1).max()))
            check_numbers(group * GROUP_ROWS, self.norm_C[-1], 0.0, 1)
        self.centre_norm = float(self.centre_D.norm())


class ReducedReading:
    """Products of queries with a reduced copy (exact.Reading)."""

    def __init__(self, copy: ReducedCopy, query_BD: Tensor):
        exact_BD = query_BD.double()
        self._copy, self._query_BD = copy, query_BD.bfloat16()
        self._query_DB = self._query_BD.T.contiguous()
        self._shift_B = exact_BD @ copy.centre_D
        read_BD = self._query_BD.double()
        self._norm_B, self._lost_B = exact_BD.norm(dim=1), (exact_BD - read_BD).norm(dim=1)
        self._largest = float(query_BD.abs().max())

    def scores(self, start: int, rows_nD: Tensor, score_nB: Tensor | None = None) -> Approximate:
        """See exact.Reading."""
        copy, end, size = self._copy, start + len(rows_nD), rows_nD.shape[1]
        groups = slice(start // GROUP_ROWS, -(-end // GROUP_ROWS))
        lost, norm = max(copy.lost_C[groups]), max(copy.norm_C[groups])
        true_norm = norm + lost + copy.centre_norm  # at most
        check_numbers(start, true_norm, self._largest, size)
        part_nD = copy.rows_ND[start:end]
        if copy.rows_ND.dtype == torch.int8:
            # Summed in float32, multiplied by the unit, stored in bfloat16.
            score_nB = torch._weight_int8pack_mm(self._query_BD, part_nD, copy.unit_N[start:end]).T.contiguous()
        elif part_nD.is_cuda:
            score_nB = torch.mm(part_nD, self._query_DB, out_dtype=torch.float32)
        else:
            score_nB = torch.mm(part_nD, self._query_DB, out=score_nB)
        error_B = self._norm_B * lost + (self._lost_B + SUM_ERROR * size * (self._norm_B + self._lost_B)) * norm
        error_B += SUM_ERROR * self._norm_B * true_norm  # the rounding of true scores and of the shift
        error_B += UNDERFLOW * size * (1 + self._largest + norm)
        return Approximate(score_nB, self._shift_B, error_B, STORED_ERROR)
