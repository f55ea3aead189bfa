"""Candidate sources choose the passages that pre-training considers for a query (the paper: the index, section 3.3).

A source is a pure function (search, batch) -> rows of the knowledge corpus, each once per query, int64 [B, at most
search.wanted], with ABSENT for missing rows. A source with options takes them as a third argument (records/plugins.py).
It is registered under a name, or `pretrain.candidate_source` names custom code, `package.module:function`:

    def newest(search, batch):
        return np.tile(np.arange(len(search.retriever.passages))[: -1 - search.wanted : -1], (len(search.queries), 1))

The candidate policy (candidates.py) adds the null document, excludes the trivial candidate and computes p(z|x), alike
for every source. Evaluation, probes and `ask` always search the index. Further sources are in
contrib/candidate_sources.py.
"""

# Shapes: B queries, L rows, K candidates, U distinct rows, D embedding size

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from realm_lab.engine.retrieval.rows import ABSENT
from realm_lab.errors import UserError
from realm_lab.records.plugins import Kind

if TYPE_CHECKING:  # so that a study file can be checked without torch
    from torch import Tensor

    from realm_lab.engine.params.parameters import Pretrain
    from realm_lab.engine.retrieval.retriever import Retriever
    from realm_lab.engine.retrieval.search import Exclusion

PARAMETER = "pretrain.candidate_source"


class PassageSearch(NamedTuple):
    """First argument of a source: the queries, and the retriever to find their passages with."""

    retriever: Retriever
    queries: Sequence[np.ndarray]  # the wordpieces that the query tower reads
    query_BD: Tensor  # vectors of the queries, by the current query tower
    wanted: int  # rows for each query
    exclude: Exclusion | None

    def allowed(self, rows_BL: np.ndarray) -> np.ndarray:
        """True for rows that are passages and not forbidden to their query, bool [B, L]."""
        allowed_BL = rows_BL >= 0
        if self.exclude is not None:
            group_BL = rows_BL
            if self.exclude.group_N is not None:
                group_BL = self.exclude.group_N.cpu().numpy()[rows_BL.clip(min=0)]
            allowed_BL &= group_BL != self.exclude.forbidden_B.cpu().numpy()[:, None]
        return allowed_BL


class QueryBatch(NamedTuple):
    """Second argument of a source: facts about sentences of a step. They do not depend on how the batch is split."""

    passages_U: np.ndarray  # distinct, of the whole batch: each sentence's origin, or else its gold passage
    gold_B: np.ndarray  # row of each query's gold passage; -1: unknown
    generator: Callable[[int], np.random.Generator]  # random numbers for a query, by its index in B


CANDIDATE_SOURCES: Kind[Callable[..., np.ndarray]] = Kind("candidate source", "function", "search, batch")
register_candidate_source = CANDIDATE_SOURCES.register  # makes a source selectable as `pretrain.candidate_source: NAME`


class CandidateSource:
    """The source that the parameters name; the rows that it returns are checked."""

    def __init__(self, settings: Pretrain):
        self._chosen = CANDIDATE_SOURCES.choose(PARAMETER, settings.candidate_source)

    def of(self, batch: QueryBatch) -> Callable[[PassageSearch], np.ndarray]:
        """Return the source as a function of a PassageSearch only, for the sentences of `batch`."""
        return index if self._chosen.name == "index" else partial(self._checked, batch)

    def _checked(self, batch: QueryBatch, search: PassageSearch) -> np.ndarray:
        """Return the rows of each query, int64 [B, search.wanted]; ABSENT for those that are forbidden or missing.
        UserError: custom code returned something else."""
        rows_BL = np.asarray(self._chosen(search, batch))
        queries, passages = len(search.queries), len(search.retriever.passages)
        fits = rows_BL.ndim == 2 and len(rows_BL) == queries and rows_BL.shape[1] <= search.wanted
        sorted_BL = np.sort(rows_BL) if fits else np.empty((0, 0))
        is_twice = bool(((sorted_BL[:, 1:] == sorted_BL[:, :-1]) & (sorted_BL[:, 1:] >= 0)).any())
        if not fits or rows_BL.dtype.kind != "i" or (rows_BL >= passages).any() or is_twice:
            given = f"{rows_BL.dtype} {list(rows_BL.shape)}{', with a row twice' * is_twice}"
            problem = f"parameter '{PARAMETER}': '{self._chosen.name}' returned {given}"
            remedy = f"return rows below {passages}, int64 [{queries}, at most {search.wanted}], each once per query"
            raise UserError(problem, remedy, parameter=PARAMETER)
        found_BK = np.full((queries, search.wanted), ABSENT, np.int64)
        found_BK[:, : rows_BL.shape[1]] = np.where(search.allowed(rows_BL), rows_BL, ABSENT)
        return found_BK


@register_candidate_source("index")
def index(search: PassageSearch, batch: QueryBatch | None = None) -> np.ndarray:
    """The passages of largest inner product in the index, which may be stale (section 3.3)."""
    search_BD = search.retriever.search_queries(search.queries, search.query_BD)
    return search.retriever.find(search_BD, search.wanted, search.exclude)
