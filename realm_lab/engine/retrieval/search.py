"""The result of a search, the rows that it must not return, and the one score that every backend reports.

The score of a query and a passage is their inner product, summed in float64 by halves in a fixed order and rounded to
float32 once. It depends only on the two vectors: not on the batch, the chunk, the backend, the threads or the
device, unlike a float32 matrix product. Results are ordered by this score; among equal scores the lower row is first.
"""

# Shapes: N passages, n of them, B queries, K results, M pairs of a query and a row, P forbidden pairs, D embedding size

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from realm_lab.errors import UserError

ABSENT = torch.iinfo(torch.int64).max  # in the position of a missing row; sorted after every row of equal score
LARGEST_SCORE = 1e38
# Bounds on rounding errors. SUM_ERROR: of a float32 sum, per term and relative to |q| |d|, with room to spare even if a
# matrix unit truncates (2^-23). UNDERFLOW: of a product, since numbers below float32's normal range may become zero.
SUM_ERROR, UNDERFLOW = 2.0**-22, 2.0**-125
PIECE_VALUES = 1 << 21  # float64 products held at once: 16 MiB


class Rows(Protocol):
    """Embeddings [N, D] that are not one tensor: on the disk (embeddings.py), or spread over the ranks (spread.py)."""

    @property
    def shape(self) -> torch.Size: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice | Tensor, /) -> Tensor: ...


Matrix = Tensor | Rows


class IndexGeneration(NamedTuple):
    """The MIPS index: every passage's embedding. `step`: the finished training steps of the weights that made it."""

    embeddings_ND: Matrix
    step: int


class SearchResult(NamedTuple):
    """Top passages of each query, best first; rows are -1 if too few were allowed."""

    rows_BK: Tensor  # int64
    scores_BK: Tensor  # float32, -inf where rows are -1


class Exclusion(NamedTuple):
    """Rows that a query must not retrieve: the passage that it was cut from, or every passage of that article."""

    forbidden_B: Tensor  # int64 passage rows or article numbers; -1 forbids nothing
    group_N: Tensor | None  # article number of each passage; None: rows are compared


class Approximate(NamedTuple):
    """Approximate scores of a chunk of rows. With the unit of a score's block and query,
    |score * unit + shift - true score| <= error + relative |score * unit|."""

    score_nB: Tensor
    shift_B: Tensor  # float64
    error_B: Tensor  # float64
    relative: float
    unit_gB: Tensor | None = None  # float32, of each block of rows; None: 1


class SearchBackend(Protocol):
    """Finds the passages of largest inner product, [B, count]; never a forbidden one."""

    recall_at_8: float | None  # against exact search, measured when it was built; None: exact, or not measured

    def search(self, query_BD: Tensor, count: int, exclude: Exclusion | None = None) -> SearchResult: ...


MakeSearch = Callable[[Matrix, SearchBackend], SearchBackend]  # from embeddings, and an exact search of them


def checked_queries(query_BD: Tensor, size: int, count: int) -> Tensor:
    """Detach the queries. UserError: a number is not finite."""
    assert query_BD.ndim == 2
    assert query_BD.shape[1] == size
    assert count >= 0
    if not torch.isfinite(query_BD).all():
        raise UserError("the query embeddings are not finite: training has diverged; lower the learning rates")
    return query_BD.detach()


def check_numbers(largest: float, largest_query: float, size: int) -> None:
    """Refuse rows whose `largest` number is not finite, or may give a score that does not fit float32."""
    if not largest < torch.inf:
        raise UserError(
            "the index holds numbers that are not finite: the training had diverged when it was built; lower the "
            "learning rates and build it again"
        )
    if largest * largest_query * size > LARGEST_SCORE:
        raise UserError(
            f"numbers up to {largest:.3g} in the index and {largest_query:.3g} in the queries: their products do "
            "not fit float32; the training has diverged, lower the learning rates"
        )


def true_scores(query_BD: Tensor, embeddings_ND: Matrix, query_M: Tensor, row_M: Tensor) -> Tensor:
    """Return the score of each pair, float32 [M]: always the same bits, whatever other pairs are computed with it."""
    total, size = len(row_M), query_BD.shape[1]
    score_M = torch.empty(total, dtype=torch.float32, device=query_BD.device)
    step = max(1, PIECE_VALUES // max(1, size))
    for start in range(0, total, step):
        piece = slice(start, start + step)
        # The product of two float32 numbers is exact in float64.
        sum_MD = embeddings_ND[row_M[piece]].double() * query_BD[query_M[piece]].double()
        width = size
        while width > 1:  # additions of whole slices: their order does not depend on the shape of the batch
            half = (width + 1) // 2
            sum_MD[:, : width - half] += sum_MD[:, half:width]
            width = half
        score_M[piece] = sum_MD[:, 0].float()
    return score_M


class Best(NamedTuple):
    """The best pairs so far: scores_BK descending, -inf with row ABSENT if there is none yet."""

    scores_BK: Tensor
    rows_BK: Tensor

    @classmethod
    def none(cls, queries: int, count: int, device: torch.device) -> Best:
        """Return the state before any pair is found."""
        scores_BK = torch.full((queries, count), -torch.inf, device=device)
        return cls(scores_BK, torch.full((queries, count), ABSENT, dtype=torch.int64, device=device))

    def add_(self, query_M: Tensor, row_M: Tensor, score_M: Tensor) -> None:
        """Merge new pairs, none of them held already, into the best of their queries."""
        if not len(query_M):
            return
        count = self.scores_BK.shape[1]
        touched_Q = query_M.unique()
        held = touched_Q.repeat_interleave(count)
        query = torch.cat([held, query_M])
        row = torch.cat([self.rows_BK[touched_Q].flatten(), row_M])
        score = torch.cat([self.scores_BK[touched_Q].flatten(), score_M])
        order = row.argsort(stable=True)
        order = order[score[order].argsort(descending=True, stable=True)]
        order = order[query[order].argsort(stable=True)]
        sizes_Q = torch.searchsorted(query[order], touched_Q, right=True)
        first_Q = torch.searchsorted(query[order], touched_Q)
        assert bool((sizes_Q - first_Q >= count).all())
        kept = order[(first_Q[:, None] + torch.arange(count, device=order.device)).flatten()]
        self.scores_BK[touched_Q] = score[kept].view(-1, count)
        self.rows_BK[touched_Q] = row[kept].view(-1, count)

    def result(self) -> SearchResult:
        """Return the result, with -1 for missing passages."""
        return SearchResult(self.rows_BK.masked_fill(self.rows_BK == ABSENT, -1), self.scores_BK)


class Forbidden:
    """Finds the pairs that an exclusion forbids. The sorted article numbers are kept for the next exclusion."""

    def __init__(self, total: int):
        self._total = total
        self._group_N: Tensor | None = None
        self._sorted_N = self._order_N = torch.empty(0, dtype=torch.int64)

    def pairs(self, exclude: Exclusion | None, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the forbidden pairs as (query_P, row_P), ascending in the row."""
        if exclude is None:
            nothing = torch.empty(0, dtype=torch.int64, device=device)
            return nothing, nothing
        forbidden_B = exclude.forbidden_B.to(device)
        query_P = torch.arange(len(forbidden_B), device=device)
        if exclude.group_N is None:
            inside_B = (forbidden_B >= 0) & (forbidden_B < self._total)
            query_P, row_P = query_P[inside_B], forbidden_B[inside_B]
        else:
            self._remember(exclude.group_N, device)
            first_B = torch.searchsorted(self._sorted_N, forbidden_B)
            many_B = torch.searchsorted(self._sorted_N, forbidden_B, right=True) - first_B
            many_B = many_B.masked_fill(forbidden_B < 0, 0)  # -1 forbids nothing, whatever the groups are
            query_P = query_P.repeat_interleave(many_B)
            start_P = (first_B - (many_B.cumsum(0) - many_B)).repeat_interleave(many_B)
            row_P = self._order_N[start_P + torch.arange(len(query_P), device=device)]
        order_P = row_P.argsort(stable=True)
        return query_P[order_P], row_P[order_P]

    def _remember(self, group_N: Tensor, device: torch.device) -> None:
        if self._group_N is not group_N:
            assert len(group_N) == self._total, "an article number for each passage"
            self._sorted_N, self._order_N = group_N.to(device).sort(stable=True)
            self._group_N = group_N
