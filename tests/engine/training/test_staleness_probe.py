"""The staleness probe against brute force over all passages."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from realm_lab.engine.retrieval.candidates import CandidatePolicy
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.search import IndexGeneration
from realm_lab.engine.training import probes
from realm_lab.engine.training.probes import StalenessProbe
from tests.tiny_system import scramble

PLACES, QUERIES = 5, 12


@pytest.fixture(scope="module")
def queries(system: Any) -> list[np.ndarray]:
    sentences = system.corpus.sentences()
    return [np.asarray(sentences.tokens[row]) for row in range(QUERIES)]


@pytest.fixture(scope="module")
def old(system: Any) -> Any:
    embedder = copy.deepcopy(system.embedder)
    scramble(embedder, seed=3, scale=0.05)
    return embedder


def stale(system: Any, old: Any, search: str) -> Retriever:
    """A retriever whose index and snapshot are of the old weights."""
    retriever: Retriever = system.retriever(stale_queries=search == "stale")
    snapshot = copy.deepcopy(old) if search == "stale" else None
    retriever.adopt(IndexGeneration(retriever.embed_index(old), 0), snapshot)
    return retriever


def brute_force(
    system: Any, old: Any, search: str, queries: list[np.ndarray], forbidden: list[set[int]]
) -> list[float]:
    """Overlap and total variation by sorting everything."""
    retriever = system.retriever()
    with torch.no_grad():
        now = [retriever.embed_queries([query])[0].double().numpy() for query in queries]
        then = [retriever.embed_queries([query], old)[0].double().numpy() for query in queries]
    fresh_ND = retriever.embed_index()[:].double().numpy()
    old_ND = retriever.embed_index(old)[:].double().numpy()
    found = []
    for number in range(len(queries)):
        searched = then[number] if search == "stale" else now[number]

        def top(scores: np.ndarray, number: int = number) -> list[int]:
            allowed = [row for row in range(len(scores)) if row not in forbidden[number]]
            return sorted(allowed, key=lambda row: (-scores[row], row))[:PLACES]

        def prior(scores: np.ndarray, rows: list[int]) -> dict[int, float]:
            weights = np.exp(scores[rows] - scores[rows].max())
            return dict(zip(rows, weights / weights.sum(), strict=True))

        by_index, by_now = old_ND @ searched, fresh_ND @ now[number]
        a, b = top(by_index), top(by_now)
        p, q = prior(by_now, a), prior(by_now, b)
        shift = sum(abs(p.get(row, 0) - q.get(row, 0)) for row in {*a, *b}) / 2
        found.append((len({*a} & {*b}) / PLACES, shift))
    return list(np.mean(found, axis=0))


@pytest.mark.parametrize("search", ["stale", "fresh"])
@pytest.mark.parametrize("exclude", ["passage", "article"])
def test_exact_and_sampled_are_brute_force(
    system: Any, old: Any, queries: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, search: str, exclude: str
) -> None:
    articles = np.asarray(system.passages.articles)
    trivial = np.array([-1, *range(3, 3 * QUERIES, 3)])
    forbidden: list[set[int]] = [set() for _ in queries]
    for own, row in zip(forbidden, trivial.tolist(), strict=True):
        if row >= 0:
            own.update(np.flatnonzero(articles == articles[row]).tolist() if exclude == "article" else [row])
    monkeypatch.setattr(probes, "SAMPLED_PASSAGES", len(articles))  # the whole corpus is its sample
    probe = StalenessProbe(CandidatePolicy(PLACES + 1, True, exclude), queries, trivial, len(articles), 0)
    retriever = stale(system, old, search)
    expected = brute_force(system, old, search, queries, forbidden)
    assert 0 < expected[0] < 1
    fresh = copy.copy(retriever)
    fresh.refresh(9)
    assert [*probe.exact(retriever, fresh).values()] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    sampled, pool = probe.sampled(retriever)
    assert [*sampled.values()] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert len(pool) == len(articles)


def test_a_sample_embeds_few_passages_and_what_the_index_finds(
    system: Any, old: Any, queries: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "SAMPLED_PASSAGES", 20)
    passages = len(system.passages)
    policy = CandidatePolicy(PLACES, null=False, exclude_trivial="off")
    probe = StalenessProbe(policy, queries, np.full(QUERIES, -1), passages, 0)
    retriever = stale(system, old, "fresh")
    sampled, pool = probe.sampled(retriever)
    fresh = copy.copy(retriever)
    fresh.refresh(9)
    assert probe.exact(retriever, fresh)["index_overlap"] <= sampled["index_overlap_sampled"]
    deep_BK = retriever.find(retriever.embed_queries(queries).detach(), probes.DEPTH * PLACES)
    assert {*deep_BK.flatten().tolist()} <= {*pool.tolist()}
    assert len(pool) <= 20 + deep_BK.size
    assert len(pool) < passages
    assert probe.sampled(retriever)[1].tolist() == pool.tolist()
