"""An index whose rows are spread over the ranks of a run (`launch.spread_index`).

Each rank holds a share of the rows and searches it exactly for all ranks. The best of all shares are merged by score
and row, in the order of one exact search. A score depends only on its two vectors (search.py), so the result has the
same bits for any number of ranks.
"""

# Shapes: N passages, n of them on this rank, B queries, K results, M pairs of a query and a row, D embedding size

from __future__ import annotations

import itertools
import weakref
from typing import ClassVar

import torch
from torch import Tensor

from realm_lab.engine.core.flop import counted
from realm_lab.engine.core.peers import Message, Peers
from realm_lab.engine.core.process import ranks, share_of, sum_over_ranks_
from realm_lab.engine.retrieval.exact import ExactSearch
from realm_lab.engine.retrieval.search import Best, Exclusion, SearchResult, checked_queries

PIECE_ROWS = 1 << 20  # rows of a slice that are asked for at once


class _Share:
    """The rows [start, start + n) of an index, on this rank."""

    def __init__(self, vectors_nD: Tensor, start: int, group_N: Tensor):
        self.vectors_nD, self.start = vectors_nD, start
        self._search = ExactSearch(vectors_nD)
        self._group_n = group_N[start : start + len(vectors_nD)]

    def answer(self, question: Message) -> Message:
        """Return the vectors of asked rows, or the share's best rows for some queries."""
        device = self.vectors_nD.device
        if "rows" in question:
            return {"vectors": self.vectors_nD[question["rows"].to(device) - self.start]}
        exclude = None
        if "rows_B" in question:
            exclude = Exclusion(question["rows_B"].to(device) - self.start, None)
        elif "groups_B" in question:
            exclude = Exclusion(question["groups_B"].to(device), self._group_n)
        found = self._search.search(question["query_BD"].to(device), int(question["count"]), exclude)
        rows_BK = torch.where(found.rows_BK < 0, -1, found.rows_BK + self.start)
        return {"rows_BK": rows_BK, "scores_BK": found.scores_BK}


class _Here:
    """This rank's shares of indexes, by the number of the index, and its connections to the other ranks."""

    shares: ClassVar[dict[int, _Share]] = {}
    gone: ClassVar[list[int]] = []  # indexes that this rank no longer uses; a slower rank may still ask for them
    numbers = itertools.count()
    peers: Peers | None = None


def free_shares() -> None:
    """Free this rank's shares of indexes that are no longer used; all ranks call it together."""
    gone = [_Here.gone.pop() for _ in range(len(_Here.gone))]
    sum_over_ranks_([torch.zeros(1)])  # wait for all ranks: then none still asks for them
    for number in gone:
        del _Here.shares[number]


def _answer(question: Message) -> Message:
    return _Here.shares[int(question["index"])].answer(question)


class SpreadRows:
    """A matrix of embeddings, and exact search of it. All ranks make it together, each with its share; then each may
    search it, or take rows, whenever it wants. `group_N`: article numbers of all passages."""

    recall_at_8: float | None = None

    def __init__(self, vectors_nD: Tensor, total: int, group_N: Tensor):
        size, self._rows = ranks().size, len(vectors_nD)
        self.shape = torch.Size((total, vectors_nD.shape[1]))
        self.device, self.dtype, self._group_N = vectors_nD.device, vectors_nD.dtype, group_N
        parts = [share_of(total, rank, size) for rank in range(size)]
        self._ends = torch.tensor([part.stop for part in parts])
        self._number = next(_Here.numbers)  # the same on all ranks
        _Here.shares[self._number] = _Share(vectors_nD, parts[ranks().rank].start, group_N)
        if _Here.peers is None:
            _Here.peers = Peers(_answer)
        sum_over_ranks_([torch.zeros(1)])  # wait until all ranks have their share
        weakref.finalize(self, _Here.gone.append, self._number)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, wanted: slice | Tensor) -> Tensor:
        """Return the vectors of rows; no row is negative. The rows of a slice, perhaps all, are returned on the CPU."""
        if isinstance(wanted, slice):
            row_M = torch.arange(len(self))[wanted]
            found_MD = torch.empty(len(row_M), self.shape[1], dtype=self.dtype)
            for found_mD, row_m in zip(found_MD.split(PIECE_ROWS), row_M.split(PIECE_ROWS), strict=True):
                found_mD.copy_(self[row_m])
            return found_MD
        row = wanted.cpu()
        row_M = row.flatten()
        owner_M = torch.searchsorted(self._ends, row_M, right=True)
        owners = owner_M.unique().tolist()
        questions = {owner: {"rows": row_M[owner_M == owner]} for owner in owners}
        found_MD = torch.empty(len(row_M), self.shape[1], dtype=self.dtype, device=self.device)
        for owner, answer in zip(owners, self._ask(questions), strict=True):
            found_MD[(owner_M == owner).to(self.device)] = answer["vectors"].to(self.device)
        return found_MD.view(*row.shape, self.shape[1])

    @torch.no_grad()
    def search(self, query_BD: Tensor, count: int, exclude: Exclusion | None = None) -> SearchResult:
        """See SearchBackend."""
        query_BD = checked_queries(query_BD, self.shape[1], count)
        question = {"query_BD": query_BD.cpu().contiguous(), "count": torch.tensor(count)}
        if exclude is not None:
            assert exclude.group_N is None or exclude.group_N is self._group_N
            question["rows_B" if exclude.group_N is None else "groups_B"] = exclude.forbidden_B.cpu()
        best = Best.none(len(query_BD), count, query_BD.device)
        with counted(len(self) / max(1, self._rows)):
            answers = self._ask(dict.fromkeys(range(len(self._ends)), question))
        for answer in answers:
            rows_BK = answer["rows_BK"].to(query_BD.device)
            query_M, place_M = (rows_BK >= 0).nonzero(as_tuple=True)
            best.add_(query_M, rows_BK[query_M, place_M], answer["scores_BK"].to(query_BD.device)[query_M, place_M])
        return best.result()

    def _ask(self, questions: dict[int, Message]) -> list[Message]:
        assert _Here.peers is not None
        number = torch.tensor(self._number)
        return _Here.peers.ask({rank: question | {"index": number} for rank, question in questions.items()})
