"""The measures of staleness against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from realm_lab.retrieval.staleness import divergence, drift, overlap_at_k, total_variation

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


def test_total_variation_and_divergence_are_those_of_the_definitions() -> None:
    a_BK, b_BK = rows(6, 4), rows(6, 5)
    p_BK, q_BK = (torch.from_numpy(GENERATOR.dirichlet(np.ones(size), 6)) for size in (4, 5))
    p_BK[0] = torch.tensor([0.5, 0.3, 0.2, 0.0])  # nothing on what is no passage
    q_BK[0] = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0])
    distances = []
    for number in range(6):
        p = dict(zip(a_BK[number].tolist(), p_BK[number].tolist(), strict=True))
        q = dict(zip(b_BK[number].tolist(), q_BK[number].tolist(), strict=True))
        distances.append(sum(abs(p.get(row, 0.0) - q.get(row, 0.0)) for row in p.keys() | q.keys()) / 2)
    assert total_variation(a_BK, p_BK, b_BK, q_BK) == pytest.approx(np.mean(distances))
    assert total_variation(b_BK, q_BK, b_BK, q_BK) == pytest.approx(0, abs=1e-6)
    other_BK = p_BK.roll(1, 1)[1:]
    sums = [
        sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
        for p, q in zip(p_BK[1:].tolist(), other_BK.tolist(), strict=True)
    ]
    assert divergence(p_BK[1:].log(), other_BK.log()) == pytest.approx(np.mean(sums))


def test_drift_compares_what_the_trainer_sums_over_with_what_it_would() -> None:
    stale_BK, fresh_BK = np.array([[3, 1, 7]]), np.array([[1, 5, 3]])
    indexed_BK, current_BK = torch.tensor([[2.0, 1.0, 0.5]]), torch.tensor([[1.0, 1.5, -1.0]])
    fresh_current_BK = torch.tensor([[1.5, 1.2, 1.0]])
    found = drift(stale_BK, fresh_BK, indexed_BK, current_BK, fresh_current_BK)
    p, q = current_BK.softmax(1)[0], fresh_current_BK.softmax(1)[0]
    assert found.overlap == pytest.approx(2 / 3)
    assert found.shift == pytest.approx((abs(p[0] - q[2]) + abs(p[1] - q[0]) + p[2] + q[1]).item() / 2)
    index = indexed_BK.softmax(1)[0]
    assert found.divergence == pytest.approx((p * (p / index).log()).sum().item(), rel=1e-5)
    same = drift(fresh_BK, fresh_BK, fresh_current_BK, fresh_current_BK, fresh_current_BK)
    assert same == pytest.approx((1, 0, 0), abs=1e-7)
