"""Sources of candidates other than the index: controls of retrieval, and mixtures."""

# Shapes: B queries, L rows, K candidates, U distinct rows

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from realm_lab.engine.params.sections import Section
from realm_lab.engine.retrieval.candidate_sources import (
    CANDIDATE_SOURCES,
    PARAMETER,
    PassageSearch,
    QueryBatch,
    register_candidate_source,
)
from realm_lab.engine.retrieval.rows import ABSENT
from realm_lab.errors import UserError

SPARE = 64  # random rows drawn in addition to four times the wanted ones, since some may be forbidden
Rows = Annotated[int, Field(ge=0, le=1000)]


@register_candidate_source("batch")
def batch(search: PassageSearch, batch: QueryBatch) -> np.ndarray:
    """The best of the batch's passages by the current weights (in-batch negatives); no index is needed."""
    if not len(batch.passages_U):
        problem = f"parameter '{PARAMETER}': batch: no sentence of this step has a passage of the knowledge corpus"
        raise UserError(problem, "choose another source, or corpus.pretrain_corpus: same", parameter=PARAMETER)
    rows_BU = np.tile(batch.passages_U, (len(search.queries), 1))
    return ranked(search, np.where(search.allowed(rows_BU), rows_BU, ABSENT))


@register_candidate_source("random")
def random(search: PassageSearch, batch: QueryBatch) -> np.ndarray:
    """Passages drawn at random: the control of retrieval."""
    passages = len(search.retriever.passages)
    size = min(passages, 4 * search.wanted + SPARE)
    drawn = [batch.generator(number).choice(passages, size, replace=False) for number in range(len(search.queries))]
    return _first_allowed(search, np.stack(drawn))


@register_candidate_source("oracle")
def oracle(search: PassageSearch, batch: QueryBatch) -> np.ndarray:
    """The gold passage, if it is known, and random ones: meant as the ceiling of retrieval."""
    random_BK, gold_B1 = random(search, batch), np.asarray(batch.gold_B, np.int64)[:, None]
    others_BK = np.where(random_BK == gold_B1, ABSENT, random_BK)
    return _first_allowed(search, np.concatenate([gold_B1, others_BK], axis=1))


@register_candidate_source("empty")
def empty(search: PassageSearch, batch: QueryBatch) -> np.ndarray:
    """No passage: the null document is the only candidate."""
    return np.empty((len(search.queries), 0), np.int64)


class Shares(Section):
    """Options of mixed: the number of passages from each source."""

    index: Rows = 0
    """Passages of the index."""
    batch: Rows = 0
    """Further passages, from the batch."""
    random: Rows = 0
    """Further passages, drawn at random."""


@register_candidate_source("mixed")
def mixed(search: PassageSearch, batch: QueryBatch, options: Shares) -> np.ndarray:
    """Passages of the index, then of the batch, then random ones; each source skips those of earlier ones."""
    found_BK = np.empty((len(search.queries), 0), np.int64)
    for name, count in options:
        if not count:
            continue
        more = search._replace(wanted=found_BK.shape[1] + count)
        rows_BL = CANDIDATE_SOURCES[name].load()(more, batch)
        is_new_BL = (rows_BL[:, :, None] != found_BK[:, None, :]).all(2)
        fresh_BL = _first_allowed(more._replace(wanted=count), np.where(is_new_BL, rows_BL, ABSENT))
        found_BK = np.concatenate([found_BK, fresh_BL], axis=1)
    return found_BK


def ranked(search: PassageSearch, rows_BL: np.ndarray) -> np.ndarray:
    """Return the best rows by the current weights without dropout, best first, [B, at most search.wanted]; among equal
    scores the lower row comes first, and ABSENT last."""
    import torch

    from realm_lab.engine.models.encoder import evaluating

    with torch.no_grad(), evaluating(search.retriever.embedder):
        score_BL = search.retriever.score(search.query_BD.detach(), rows_BL).double().cpu().numpy()
    score_BL[rows_BL == ABSENT] = -np.inf
    order_BL = np.lexsort((rows_BL, -score_BL), axis=1)[:, : search.wanted]
    return np.take_along_axis(rows_BL, order_BL, axis=1)


def _first_allowed(search: PassageSearch, rows_BL: np.ndarray) -> np.ndarray:
    """Return the first search.wanted rows that are allowed, filled up with ABSENT, [B, search.wanted]."""
    allowed_BL = search.allowed(rows_BL)
    order_BL = np.argsort(~allowed_BL, axis=1, kind="stable")[:, : search.wanted]
    found_BK = np.full((len(rows_BL), search.wanted), ABSENT, np.int64)
    found_BK[:, : order_BL.shape[1]] = np.take_along_axis(np.where(allowed_BL, rows_BL, ABSENT), order_BL, axis=1)
    return found_BK
