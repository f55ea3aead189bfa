"""Effects of a stale index: the share of the fresh top k that it still finds, and the shift of p(z|x).

Rows are numbers of passages; a negative row is no passage and is never counted.
"""

# Shapes: B queries, K candidates

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def overlap_at_k(stale_BK: np.ndarray, fresh_BK: np.ndarray) -> float:
    """Return |stale and fresh| / |fresh|, mean over the queries; the two K may differ."""
    found_BK = (fresh_BK[:, :, None] == stale_BK[:, None, :]).any(2) & (fresh_BK >= 0)
    there_B = (fresh_BK >= 0).sum(1)
    return float(np.mean(found_BK.sum(1) / np.maximum(there_B, 1)))


def total_variation(rows_a_BK: np.ndarray, p_a_BK: Tensor, rows_b_BK: np.ndarray, p_b_BK: Tensor) -> float:
    """Return half the sum over passages of |a(z) - b(z)|, mean over the queries. No distribution has a row twice."""
    a_BK, b_BK = p_a_BK.double().cpu(), p_b_BK.double().cpu()
    same_BKK = torch.from_numpy((rows_a_BK[:, :, None] == rows_b_BK[:, None, :]) & (rows_a_BK >= 0)[:, :, None])
    shared_B = (torch.minimum(a_BK[:, :, None], b_BK[:, None, :]) * same_BKK).sum((1, 2))
    return float((1.0 - shared_B).clamp(min=0).mean())  # below 0 only by rounding


def drift(
    stale_BK: np.ndarray, fresh_BK: np.ndarray, stale_score_BK: Tensor, fresh_score_BK: Tensor
) -> dict[str, float]:
    """Compute drift from the rows of both searches and their scores by the current weights; non-passages score -1e4.

    `index_overlap`: share of the fresh top k that the stale search finds. `prior_shift`: total variation, 0 to 1,
    between p(z|x) over the results of the stale search, as in training, and p(z|x) over the fresh top k. Both are means
    over the queries.
    """
    shift = total_variation(stale_BK, stale_score_BK.softmax(1), fresh_BK, fresh_score_BK.softmax(1))
    return {"index_overlap": overlap_at_k(stale_BK, fresh_BK), "prior_shift": shift}
