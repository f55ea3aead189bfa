"""A reduced copy of the embeddings, read first by the exact search if that is faster: bytes, or bfloat16 on a GPU.

For a query q, stored as q̂, and a row d, stored as d̂ after the centre m of the rows is subtracted,

    q·d = q·m + q·(d - m)   and   |q·(d - m) - q̂·d̂| <= |q| |d - m - d̂| + |q - q̂| |d̂| + rounding of the product,

with the four lengths measured, not assumed. In bytes, each block of rows and each query has a separate unit, its
largest number / 127; a product is a sum of integers, without rounding, and reads a quarter of the bytes of float32.
The product of bytes and the tests for features of the processor are private functions of torch; if they are missing,
no copy in bytes is made.
"""

# Shapes: N passages, G blocks of them, B queries, n rows of a chunk, g its blocks, C groups of GROUP_ROWS rows,
# D embedding size

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from realm_lab.engine.retrieval.search import SUM_ERROR, UNDERFLOW, Approximate, check_numbers

GROUP_ROWS = 1 << 13  # rows whose largest rounding error is measured together
CENTRE_ROWS = 1 << 16  # at least this many rows are averaged; any centre is right, a good one makes the bound tight
BYTE = 127  # largest number that is stored as int8
LARGEST_UNIT = 2.0**60  # the product of two units, 2^-120 to 2^120, is a normal float32; the smallest unit is 1 / this
UNIT_ERROR = 2.0**-22  # relative error of a sum of products as float32, times two units, with room to spare
STORED_ERROR = 2.0**-7.9  # relative error of a score rounded to bfloat16, with room to spare


def fast_kind(device: torch.device) -> torch.dtype:
    """Return the type of numbers with the fastest products on a device; float32 if no copy helps."""
    if device.type != "cpu":
        return torch.bfloat16
    names = ("_is_vnni_supported", "_is_amx_tile_supported")
    has_bytes = hasattr(torch, "_int_mm") and any(getattr(torch.cpu, name, bool)() for name in names)
    return torch.int8 if has_bytes and _sums_bytes_exactly() else torch.float32


@cache
def _sums_bytes_exactly() -> bool:
    """True if bytes are multiplied exactly. Instructions older than VNNI saturate at large sums; oneDNN uses them if
    ONEDNN_MAX_CPU_ISA asks for them."""
    rows_nD, query_DB = torch.full((16, 64), BYTE, dtype=torch.int8), torch.full((64, 16), BYTE, dtype=torch.int8)
    return bool((torch._int_mm(rows_nD, query_DB) == 64 * BYTE * BYTE).all())


def as_bytes(exact_gSD: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise blocks of rows with a unit per block: int8 [g, S, D], and the units, float32 [g]."""
    unit_g = (exact_gSD.abs().amax((1, 2)) / BYTE).clamp(1 / LARGEST_UNIT, LARGEST_UNIT).float()
    return (exact_gSD / unit_g[:, None, None]).round().clamp(-BYTE, BYTE).to(torch.int8), unit_g


class ReducedCopy:
    """Rows minus their centre in bfloat16 or bytes, and the largest |d - m - d̂| and |d̂| of each group."""

    def __init__(self, embeddings_ND: Tensor, kind: torch.dtype, block: int):
        (total, size), device = embeddings_ND.shape, embeddings_ND.device
        assert GROUP_ROWS % block == 0
        self.block = block  # number of rows that share a unit
        self.centre_D = embeddings_ND[:: max(1, total // CENTRE_ROWS)].double().mean(0)
        self.rows_ND = torch.empty(total, size, dtype=kind, device=device)
        self.unit_G = torch.ones(-(-total // block), device=device)
        self.lost_C: list[float] = []
        self.norm_C: list[float] = []
        for start in range(0, total, GROUP_ROWS):
            part = slice(start, start + GROUP_ROWS)
            exact_nD = embeddings_ND[part].double() - self.centre_D
            check_numbers(float(exact_nD.norm(dim=1).max()), 0.0, 1)
            if kind == torch.int8:
                blocks_gSD = functional.pad(exact_nD, (0, 0, 0, -len(exact_nD) % block)).view(-1, block, size)
                stored_gSD, unit_g = as_bytes(blocks_gSD)
                self.rows_ND[part] = stored_gSD.view(-1, size)[: len(exact_nD)]
                self.unit_G[start // block : start // block + len(unit_g)] = unit_g
                stored_nD = (stored_gSD.double() * unit_g[:, None, None]).view(-1, size)[: len(exact_nD)]
            else:
                self.rows_ND[part] = exact_nD
                stored_nD = self.rows_ND[part].double()
            self.lost_C.append(float((exact_nD - stored_nD).norm(dim=1).max()))
            self.norm_C.append(float(stored_nD.norm(dim=1).max()))
        self.centre_norm = float(self.centre_D.norm())


class ReducedReading:
    """Approximate scores by products with a reduced copy; an exact.Reading."""

    def __init__(self, copy: ReducedCopy, query_BD: Tensor):
        exact_BD = query_BD.double()
        self._copy, self._largest = copy, float(query_BD.abs().max())
        self._shift_B = exact_BD @ copy.centre_D
        if copy.rows_ND.dtype == torch.int8:
            stored_B1D, self._unit_B = as_bytes(exact_BD[:, None])
            stored_BD = stored_B1D[:, 0]
            read_BD = stored_BD.double() * self._unit_B[:, None]
        else:
            stored_BD = query_BD.bfloat16()
            read_BD = stored_BD.double()
        self._query_DB = stored_BD.T.contiguous()
        self._norm_B, self._lost_B = exact_BD.norm(dim=1), (exact_BD - read_BD).norm(dim=1)

    def scores(self, start: int, rows_nD: Tensor, score_nB: Tensor | None = None) -> Approximate:
        """See exact.Reading."""
        copy, end, size = self._copy, start + len(rows_nD), rows_nD.shape[1]
        groups = slice(start // GROUP_ROWS, -(-end // GROUP_ROWS))
        lost, norm = max(copy.lost_C[groups]), max(copy.norm_C[groups])
        true_norm = norm + lost + copy.centre_norm  # an upper bound
        check_numbers(true_norm, self._largest, size)
        error_B = self._norm_B * lost + (self._lost_B + SUM_ERROR * size * (self._norm_B + self._lost_B)) * norm
        error_B += SUM_ERROR * self._norm_B * true_norm  # the rounding of true scores and of the shift
        error_B += UNDERFLOW * size * (1 + self._largest + norm)
        part_nD = copy.rows_ND[start:end]
        if part_nD.dtype == torch.int8:
            if score_nB is None:
                score_nB = torch.empty(len(part_nD), len(error_B), dtype=torch.int32)
            torch._int_mm(part_nD, self._query_DB, out=score_nB)
            unit_gB = copy.unit_G[start // copy.block : -(-end // copy.block), None] * self._unit_B
            return Approximate(score_nB, self._shift_B, error_B, UNIT_ERROR, unit_gB)
        if part_nD.is_cuda:
            score_nB = torch.mm(part_nD, self._query_DB, out_dtype=torch.float32)
        else:
            score_nB = torch.mm(part_nD, self._query_DB, out=score_nB)
        return Approximate(score_nB, self._shift_B, error_B, STORED_ERROR)
