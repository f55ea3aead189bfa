"""The measures of staleness against brute force."""

import numpy as np
import pytest

from realm_lab.engine.retrieval.staleness import overlap_at_k

GENERATOR = np.random.default_rng(5)


def rows(queries: int, count: int, passages: int = 9) -> np.ndarray:
    """Distinct rows for each query; the last one of the first query is no passage."""
    found = np.array([GENERATOR.permutation(passages)[:count] for _ in range(queries)])
    found[0, -1] = -2
    return found


@pytest.mark.parametrize("count", [1, 4, 9])
def test_overlap_is_the_share_of_the_fresh_that_the_stale_finds(count: int) -> None:
    stale_BK, fresh_BK = rows(6, 5), rows(6, count)
    shares = []
    for stale, fresh in zip(stale_BK.tolist(), fresh_BK.tolist(), strict=True):
        wanted = {row for row in fresh if row >= 0}
        shares.append(len(wanted & set(stale)) / max(1, len(wanted)))
    assert overlap_at_k(stale_BK, fresh_BK) == pytest.approx(np.mean(shares))
    assert overlap_at_k(fresh_BK[1:], fresh_BK[1:]) == 1
