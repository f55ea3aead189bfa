"""Approximate search: an index proposes passages, and the best of them are returned with their true scores.

The index proposes more passages than are wanted, so that enough are left without the forbidden ones. The passages left
get their true scores (search.true_scores): an approximate backend can miss a passage, but never returns a wrong score
or order.
"""

# Shapes: N passages, B queries, K results, F fetched, M pairs of a query and a row, D embedding size

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from realm_lab.engine.core.process import to_device
from realm_lab.engine.params.sections import IndexSearch
from realm_lab.engine.retrieval.backends import EXACT, PARAMETER, SEARCH_BACKENDS
from realm_lab.engine.retrieval.search import (
    Best,
    Exclusion,
    Forbidden,
    MakeSearch,
    Matrix,
    SearchBackend,
    SearchResult,
    checked_queries,
    true_scores,
)
from realm_lab.errors import UserError
from realm_lab.records.plugins import Plugin, calling

OVERFETCH = 2  # of a custom index without the attribute `overfetch`
SAMPLE_QUERIES, SAMPLE_NOISE, RECALL_COUNT = 256, 0.5, 8


class Index(Protocol):
    """An index that proposes passages. `overfetch`: proposals per requested passage."""

    overfetch: int

    def propose(self, query_BD: Tensor, count: int) -> Tensor:
        """Return rows with a large inner product, int64 [B, count]; each row once per query, -1 if there are fewer."""


class ApproximateSearch:
    """Approximate search of a matrix of embeddings. `exact`: an exact search of this matrix, to measure recall@8
    with queries drawn by `seed`; None: recall@8 is not measured."""

    recall_at_8: float | None = None

    def __init__(self, embeddings_ND: Matrix, index: Index, exact: SearchBackend | None = None, seed: int = 0):
        self.embeddings_ND, self.index = embeddings_ND, index
        self._forbidden = Forbidden(len(embeddings_ND))
        if exact is not None:
            self.recall_at_8 = recall(self, exact, sample_queries(embeddings_ND, seed))

    @torch.no_grad()
    def search(self, query_BD: Tensor, count: int, exclude: Exclusion | None = None) -> SearchResult:
        """Return up to `count` passages per query, [B, count], best first; never a forbidden one."""
        total, size = self.embeddings_ND.shape
        query_BD = checked_queries(query_BD, size, count)
        best = Best.none(len(query_BD), count, query_BD.device)
        if not len(query_BD) or not total or not count:
            return best.result()
        query_P, row_P = self._forbidden.pairs(exclude, query_BD.device)
        most = int(query_P.bincount().max()) if len(query_P) else 0
        fetch = min(total, count * self.index.overfetch + most)  # enough even if all forbidden rows are proposed
        row_BF = self.index.propose(query_BD, fetch)
        if len(row_P):
            pair_BF = torch.arange(len(query_BD), device=row_BF.device)[:, None] * total + row_BF
            row_BF = row_BF.masked_fill(torch.isin(pair_BF, query_P * total + row_P), -1)
        query_M, place_M = (row_BF >= 0).nonzero(as_tuple=True)
        row_M = row_BF[query_M, place_M]
        best.add_(query_M, row_M, true_scores(query_BD, self.embeddings_ND, query_M, row_M))
        return best.result()


def approximate_search(settings: IndexSearch, seed: int) -> MakeSearch | None:
    """Return a function that makes the parameters' approximate search; None: they ask for exact search."""
    if settings.backend.name == EXACT:
        return None
    chosen = SEARCH_BACKENDS.choose(PARAMETER, settings.backend)
    chosen.load()  # so that a missing package is an error before any work
    make: Callable[..., Index] = OwnIndex if chosen.is_own else chosen
    first = (chosen,) if chosen.is_own else ()
    return lambda vectors_ND, exact: ApproximateSearch(vectors_ND, make(*first, vectors_ND, seed), exact, seed)


class OwnIndex:
    """A custom index whose proposals are checked; an error in it becomes a UserError of one line."""

    def __init__(self, chosen: Plugin[Any], embeddings_ND: Matrix, seed: int):
        self._chosen, self._index, self._total = chosen, chosen(embeddings_ND, seed), len(embeddings_ND)
        self._about = f"parameter '{PARAMETER}': '{chosen.name}'"
        self.overfetch = int(getattr(self._index, "overfetch", OVERFETCH))
        if not callable(getattr(self._index, "propose", None)):
            problem = f"{self._about} has no method propose(query_BD, count)"
            raise UserError(problem, parameter=PARAMETER, remedy="add it")

    def propose(self, query_BD: Tensor, count: int) -> Tensor:
        with calling(PARAMETER, self._chosen.name, self._chosen.target):
            row_BF = torch.as_tensor(self._index.propose(query_BD, count)).to(query_BD.device)
        sorted_BF = row_BF.sort(1).values if row_BF.ndim == 2 else row_BF[None]
        is_twice = (sorted_BF[:, 1:] == sorted_BF[:, :-1]) & (sorted_BF[:, 1:] >= 0)
        if row_BF.dtype != torch.int64 or len(row_BF) != len(query_BD) or row_BF.ndim != 2 or bool(is_twice.any()):
            given = f"{row_BF.dtype} {list(row_BF.shape)}{', with a row twice' * bool(is_twice.any())}"
            wanted = f"int64 [{len(query_BD)}, up to {count}], each row once per query, -1 where there are fewer"
            raise UserError(f"{self._about} proposed {given}; propose rows {wanted}", parameter=PARAMETER)
        if bool((row_BF >= self._total).any()):
            largest = int(row_BF.max())
            raise UserError(f"{self._about} proposed row {largest} of {self._total} passages", parameter=PARAMETER)
        return row_BF


def sample_queries(embeddings_ND: Matrix, seed: int) -> Tensor:
    """Return embeddings of random passages plus noise of half their standard deviation as queries, [B, D]. Without
    noise, each query would be the vector of a passage."""
    generator = np.random.default_rng(seed)
    chosen = to_device(generator.permutation(len(embeddings_ND))[:SAMPLE_QUERIES], embeddings_ND.device)
    query_BD = embeddings_ND[chosen].float()
    if len(query_BD) < 2:
        return query_BD
    noise_BD = to_device(generator.standard_normal(query_BD.shape, np.float32), query_BD.device)
    return query_BD + SAMPLE_NOISE * query_BD.std(0) * noise_BD


def recall(backend: SearchBackend, exact: SearchBackend, query_BD: Tensor, count: int = RECALL_COUNT) -> float:
    """Return the share of the exact top `count` that the backend finds, mean over the queries."""
    wanted_BK = exact.search(query_BD, count).rows_BK
    found_BK = backend.search(query_BD, count).rows_BK
    wanted = int((wanted_BK >= 0).sum())
    hit_BK = (wanted_BK[:, :, None] == found_BK[:, None, :]).any(2) & (wanted_BK >= 0)
    return int(hit_BK.sum()) / wanted if wanted else 1.0
