"""Maps from a stale index to the current vectors: planted ones are found, and the stale index then finds the fresh top
passages."""

# Shapes: B queries, N passages, S sampled passages, D embedding size

import copy

import numpy as np
import pytest
import torch

from realm_lab.engine.params.sections import Refresh
from realm_lab.engine.retrieval.candidates import CandidatePolicy
from realm_lab.engine.retrieval.index_map import fitted
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.training.probes import StalenessProbe
from realm_lab.engine.training.refreshed_index import RefreshedIndex
from tests.tiny_system import TinySystem

K = 8


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rotation(size: int) -> torch.Tensor:
    return torch.linalg.qr(drawn(size, size, seed=5)).Q


@pytest.mark.parametrize(("kind", "shift"), [("orthogonal", 0.0), ("affine", 3.0)])
def test_a_planted_map_is_found(kind: str, shift: float) -> None:
    old_SD, query_BD = drawn(40, 16), drawn(7, 16, seed=1)
    planted_DD = rotation(16) if kind == "orthogonal" else drawn(16, 16, seed=2)
    new_SD = old_SD @ planted_DD.T + shift * drawn(16, seed=3)
    mapped_BD = query_BD @ fitted(old_SD, new_SD, kind)
    same_BS = mapped_BD @ old_SD.T - query_BD @ new_SD.T  # for each query, the same constant for all passages
    torch.testing.assert_close(same_BS, same_BS[:, :1].expand_as(same_BS), rtol=0, atol=1e-3)
    if not shift:
        torch.testing.assert_close(same_BS, torch.zeros_like(same_BS), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["orthogonal", "affine"])
def test_directions_that_the_sample_does_not_span_stay(kind: str) -> None:
    old_SD = torch.cat([drawn(5, 6), torch.zeros(5, 10)], 1)
    found_DD = fitted(old_SD, old_SD, kind)
    torch.testing.assert_close(found_DD, torch.eye(16), rtol=0, atol=1e-5)


def moved(system: TinySystem, policy: object) -> tuple[Retriever, RefreshedIndex]:
    """A retriever whose document tower was rotated after its index was built."""
    embedder = copy.deepcopy(system.embedder)
    retriever = system.retriever(embedder)
    retriever.refresh(0)
    with torch.no_grad():
        weight = embedder.document_projection.weight
        weight.copy_(rotation(len(weight)) @ weight)
    cost_N = np.ones(len(retriever.passages))
    probe = StalenessProbe(CandidatePolicy(K), [np.array([9, 10])], np.array([-1]), len(retriever.passages), 0)
    settings = Refresh(policy=policy, interval_steps=6)
    return retriever, RefreshedIndex(settings, retriever, probe, cost_N)


def test_a_rotated_tower_is_repaired_to_the_fresh_top_passages(system: TinySystem) -> None:
    retriever, index = moved(system, {"name": "map", "sample": 0.5, "every_steps": 2})
    questions = system.corpus.questions("dev")
    queries = [questions.tokens[number] for number in range(12)]
    fresh = retriever.searching_exactly()
    fresh.refresh(0)
    with torch.no_grad():
        query_BD = retriever.embed_queries(queries)
    expected_BK = fresh.find(query_BD, K)

    def found() -> np.ndarray:
        return retriever.find(retriever.search_queries(queries, query_BD), K)

    assert (found() != expected_BK).mean() > 0.5
    for step in (1, 2):
        index.before_step(step)
        assert (found() == expected_BK).all() == (step == 2)
    assert retriever.index is not None
    assert retriever.index.step == 0
    torch.testing.assert_close(retriever.search_queries(queries), retriever.search_queries(queries, query_BD))
    kept = index.state()
    index.before_step(6)
    assert retriever.query_map_DD is None  # rebuilt
    assert (found() == expected_BK).all()
    index.load_state(kept)
    assert (found() == expected_BK).all()
    assert retriever.query_map_DD is not None


def test_a_map_costs_the_share_that_it_embeds(system: TinySystem) -> None:
    retriever, index = moved(system, {"name": "map", "sample": 0.02, "every_steps": 2})
    index.before_step(2)
    assert index.refresh_flops == round(0.02 * len(retriever.passages))
    index.before_step(18)
    assert index.refresh_flops == len(retriever.passages) + round(0.02 * len(retriever.passages))
