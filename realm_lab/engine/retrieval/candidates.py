"""The candidates of a query: this file decides which documents are read and which p(z|x) they have.

Used by training, its probes, retrieval utility, cloze items, `ask` and `fill`, so that all of them mean the same by
"retrieved as in pre-training" (sections 3.3 and 3.4).
"""

# Shapes: B queries, K candidates, L passages found for a query, D embedding size

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from realm_lab.engine.core.process import to_device
from realm_lab.engine.models.encoder import evaluating
from realm_lab.engine.models.realm import candidate_log_probs
from realm_lab.engine.params.parameters import Pretrain
from realm_lab.engine.retrieval.candidate_sources import PassageSearch, index
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.rows import ABSENT, NO_SCORE, NULL
from realm_lab.engine.retrieval.search import Exclusion
from realm_lab.errors import UserError

BISECTIONS = 60  # each halves the interval that the shift is in


class Candidates(NamedTuple):
    """Documents that are read for each query. Column 0 is the null document, if there is one."""

    rows_BK: np.ndarray  # int64: NULL, passages in the source's order, ABSENT if there are fewer
    score_BK: Tensor  # f(x, z) with the current weights
    log_prior_BK: Tensor  # log p(z|x)


@dataclass(frozen=True)
class CandidatePolicy:
    """Choice of candidates by `candidates`, `null_document` and `exclude_trivial` of the section `pretrain`."""

    count: int  # k, the null document included if it is a candidate
    null: bool = True
    exclude_trivial: str = "passage"

    @classmethod
    def of(cls, settings: Pretrain) -> CandidatePolicy:
        """The policy of pre-training."""
        null = settings.null_document != "off"
        return cls(settings.candidates, null, settings.exclude_trivial)

    @property
    def passages(self) -> int:
        """Passages read for each query."""
        return self.count - int(self.null)

    def reading(self, passages: int) -> CandidatePolicy:
        """Return a copy with another number of passages."""
        return replace(self, count=passages + int(self.null))

    def check(self, corpus_size: int) -> None:
        """Refuse more candidates than the corpus has passages for."""
        if self.passages + int(self.exclude_trivial != "off") > corpus_size:
            raise UserError(
                f"parameter 'pretrain.candidates' is {self.count}, but the knowledge corpus has only {corpus_size} "
                "passages; lower it"
            )

    def exclusion(self, retriever: Retriever, origins: np.ndarray, always: bool = False) -> Exclusion | None:
        """Return the forbidden rows for queries that were cut from the passages `origins` (-1: from none).

        `always` excludes the origin even if training does not: measurements of held-out sentences would otherwise
        find the answer in the sentence itself.
        """
        if self.exclude_trivial == "off" and not always:
            return None
        own_B = to_device(np.asarray(origins, np.int64), retriever.device)
        if self.exclude_trivial != "article":
            return Exclusion(own_B, None)
        articles_N = retriever.articles_N
        return Exclusion(torch.where(own_B >= 0, articles_N[own_B.clamp(min=0)], own_B), articles_N)

    def retrieve(
        self,
        retriever: Retriever,
        queries: Sequence[np.ndarray],
        exclude: Exclusion | None = None,
        *,
        compare_null: bool = False,
        forbidden: Sequence[Sequence[int]] | None = None,
        source: Callable[[PassageSearch], np.ndarray] = index,
    ) -> Candidates:
        """Find passages with the index or another source, and score them with the current weights; differentiable in
        both towers.

        With `compare_null` the null document always comes first, to be read for comparison; if it is not a candidate,
        it has no share of p(z|x). `forbidden`: for each query, a few further rows that it must not find.
        """
        passages = self.passages
        most = max((len(rows) for rows in forbidden), default=0) if forbidden else 0
        search = PassageSearch(retriever, queries, retriever.embed_queries(queries), passages + most, exclude)
        rows_BL = source(search)
        if forbidden:
            rows_BL = np.stack([_without(rows, some, passages) for rows, some in zip(rows_BL, forbidden, strict=True)])
        # The null document comes first; it is not in the index and needs no search (section 3.4).
        shown = self.null or compare_null
        nulls_B1 = np.full((len(rows_BL), int(shown)), NULL, np.int64)
        rows_BK = np.concatenate([nulls_B1, rows_BL], axis=1)
        # p(z|x) is always computed with the current weights, however old the index is.
        score_BK = retriever.score(search.query_BD, rows_BK)
        if shown and not self.null:
            score_BK = score_BK.masked_fill(to_device(rows_BK == NULL, score_BK.device), NO_SCORE)
        return Candidates(rows_BK, score_BK, candidate_log_probs(score_BK))


def _without(rows_L: np.ndarray, own: Sequence[int], count: int) -> np.ndarray:
    """Return the first `count` rows that are not in `own`, filled up with ABSENT."""
    kept = rows_L[~np.isin(rows_L, own)][:count]
    return np.concatenate([kept, np.full(count - len(kept), ABSENT, np.int64)])


@torch.no_grad()
def initialise_null(
    retriever: Retriever, policy: CandidatePolicy, queries: Sequence[np.ndarray], exclude: Exclusion | None
) -> None:
    """Set a learned null document to the mean vector of the queries' top passages, scaled so that its mean score over
    the queries is the mean score of these passages."""
    null_D = retriever.embedder.null_vector
    assert null_D is not None
    assert retriever.index is not None
    with evaluating(retriever.embedder):
        query_BD = retriever.embed_queries(queries)
        found = policy.retrieve(retriever, queries, exclude)
    rows_BK = to_device(found.rows_BK, retriever.device)
    mean_D = retriever.index.embeddings_ND[rows_BK[rows_BK >= 0]].mean(0)
    null_D.copy_(mean_D * found.score_BK[rows_BK >= 0].mean() / (query_BD @ mean_D).mean())


@torch.no_grad()
def calibrate_null(
    retriever: Retriever, policy: CandidatePolicy, queries: Sequence[np.ndarray], exclude: Exclusion | None
) -> float:
    """Shift the null document's score so that the mean of p(null|x) over the queries is 1/k, for k candidates. Return
    the shift."""
    retriever.null_offset = 0.0
    with evaluating(retriever.embedder):
        found = policy.retrieve(retriever, queries, exclude)
    score_BK = found.score_BK.double()
    ahead_B = score_BK[:, 1:].logsumexp(1) - score_BK[:, 0]  # p(null|x) is the sigmoid of shift - ahead
    low, high = ahead_B.min().item() - math.log(policy.count), ahead_B.max().item()
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        is_enough = (middle - ahead_B).sigmoid().mean().item() >= 1 / policy.count
        low, high = (low, middle) if is_enough else (middle, high)
    retriever.null_offset = high
    return high
