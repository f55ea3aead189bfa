"""Approximate search: its proposals, forbidden rows, its measured recall, and its state."""

from typing import Any

import faiss
import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.contrib.faiss.index import FACTORY, FaissIndex, with_defaults
from realm_lab.engine.params.sections import IndexSearch
from realm_lab.engine.retrieval.approximate import ApproximateSearch, approximate_search, sample_queries
from realm_lab.engine.retrieval.exact import ExactSearch
from realm_lab.engine.retrieval.search import Exclusion
from tests.factories.errors import refused

# Shapes: N passages, B queries, K results, D embedding size

ROWS, SIZE, QUERIES = 1500, 16, 20
KINDS = tuple(FACTORY)
OPTIONS = {
    "ivf_flat": {"nlist": 30, "nprobe": 6},
    "ivf_pq": {"nlist": 30, "nprobe": 6, "nbits": 4},
    "hnsw": {"efConstruction": 40, "efSearch": 32},
}


def build(kind: str, embeddings_ND: Tensor, seed: int = 0, options: dict[str, int] | None = None) -> Any:
    given = OPTIONS.get(kind, {}) if options is None else options
    make = approximate_search(IndexSearch(backend={"name": kind, **given}), seed)
    assert make is not None
    return make(embeddings_ND, ExactSearch(embeddings_ND))


def index_of(search: ApproximateSearch) -> Any:
    assert isinstance(search.index, FaissIndex)
    return search.index.index


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def embeddings_ND() -> Tensor:
    return normal(ROWS, SIZE)


@pytest.fixture(scope="module")
def query_BD() -> Tensor:
    return normal(QUERIES, SIZE, seed=1)


@pytest.fixture(scope="module")
def built(embeddings_ND: Tensor) -> dict[str, ApproximateSearch]:
    """One backend of each kind; tests leave them as they are."""
    return {kind: build(kind, embeddings_ND) for kind in KINDS}


def scores(embeddings_ND: Tensor, query_BD: Tensor) -> np.ndarray:
    return (query_BD.double() @ embeddings_ND.double().T).float().numpy()


def found_share(wanted_BK: np.ndarray, found_BK: np.ndarray) -> float:
    shares = [len(set(wanted) & set(found)) / len(wanted) for wanted, found in zip(wanted_BK, found_BK, strict=True)]
    return float(np.mean(shares))


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_finds_most_of_the_best_and_scores_them_truly(
    kind: str, built: dict[str, ApproximateSearch], embeddings_ND: Tensor, query_BD: Tensor
) -> None:
    scores_BN = scores(embeddings_ND, query_BD)
    wanted_BK = np.argsort(-scores_BN, axis=1, kind="stable")[:, :8]
    found = built[kind].search(query_BD, 8)
    rows_BK = found.rows_BK.numpy()
    assert rows_BK.shape == (QUERIES, 8)
    share = found_share(wanted_BK, rows_BK)
    if kind in ("faiss_flat", "sq8"):
        assert share == 1
        np.testing.assert_array_equal(rows_BK, wanted_BK)
    assert share > 0.4  # by chance: 8 of 1500
    exact = ExactSearch(embeddings_ND).search(query_BD, ROWS)
    for query in range(QUERIES):
        assert len(set(rows_BK[query])) == 8
        place = {int(row): number for number, row in enumerate(exact.rows_BK[query])}
        places = [place[int(row)] for row in rows_BK[query]]
        assert places == sorted(places)
        assert found.scores_BK[query].tolist() == exact.scores_BK[query, places].tolist()


def test_equal_scores_stand_in_the_order_of_their_rows() -> None:
    embeddings_ND = normal(5, SIZE).repeat(10, 1)
    for kind in KINDS:
        backend = build(kind, embeddings_ND, options={"overfetch": 10} | ({"nbits": 2} if kind == "ivf_pq" else {}))
        found = backend.search(normal(3, SIZE, seed=1), 10)
        best = found.rows_BK[:, :1] % 5
        assert torch.equal(found.rows_BK, best + 5 * torch.arange(10)), kind


@pytest.mark.parametrize("by_group", [False, True], ids=["passage", "article"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_forbidden_is_never_returned_and_its_place_is_filled(
    kind: str, by_group: bool, built: dict[str, ApproximateSearch], embeddings_ND: Tensor, query_BD: Tensor
) -> None:
    """The best passages are all of one article, so that over-fetching must reach past all of them."""
    free = built[kind].search(query_BD, 40)
    group_N = torch.zeros(ROWS, dtype=torch.int64)
    group_N[free.rows_BK[0]] = 7
    forbidden_B = torch.full((QUERIES,), -1)
    forbidden_B[0] = 7 if by_group else free.rows_BK[0, 0]
    forbidden_B[1] = 10**9 if by_group else ROWS  # not there: forbids nothing
    found = built[kind].search(query_BD, 5, Exclusion(forbidden_B, group_N if by_group else None))
    banned = set(free.rows_BK[0].tolist()) if by_group else {int(free.rows_BK[0, 0])}
    assert not banned & set(found.rows_BK[0].tolist())
    assert (found.rows_BK[0] >= 0).all()
    if not by_group:
        assert torch.equal(found.rows_BK[0], free.rows_BK[0, 1:6])
    elif kind == "faiss_flat":
        expected = ExactSearch(embeddings_ND).search(query_BD[:1], 45).rows_BK[0, 40:]
        assert torch.equal(found.rows_BK[0], expected)
    if kind == "faiss_flat":
        assert torch.equal(found.rows_BK[1:], free.rows_BK[1:, :5])


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_than_wanted_leave_empty_places(kind: str) -> None:
    embeddings_ND = normal(12, SIZE)
    backend = build(kind, embeddings_ND, options={})
    group_N = torch.arange(12) // 9
    found = backend.search(normal(2, SIZE, seed=1), 5, Exclusion(torch.tensor([0, -1]), group_N))
    assert sorted(found.rows_BK[0].tolist()) == [-1, -1, 9, 10, 11]
    assert (found.rows_BK[1] >= 0).all()
    assert torch.isneginf(found.scores_BK[0, 3:]).all()
    assert backend.search(normal(2, SIZE), 20).rows_BK.shape == (2, 20)
    assert backend.search(normal(0, SIZE), 3).rows_BK.shape == (0, 3)
    empty = build(kind, embeddings_ND[:0], options={})
    assert empty.search(normal(2, SIZE), 3).rows_BK.tolist() == [[-1] * 3] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_measured_recall_is_what_an_independent_count_finds(kind: str, embeddings_ND: Tensor) -> None:
    backend = build(kind, embeddings_ND)
    sampled_BD = sample_queries(embeddings_ND, 0)
    wanted_BK = np.argsort(-scores(embeddings_ND, sampled_BD), axis=1, kind="stable")[:, :8]
    measured = backend.recall_at_8
    assert measured == pytest.approx(found_share(wanted_BK, backend.search(sampled_BD, 8).rows_BK.numpy()))
    assert measured is not None
    assert measured < 1 or kind not in ("ivf_flat", "ivf_pq")


def test_sampled_queries_are_passages_moved_a_little(embeddings_ND: Tensor) -> None:
    query_BD = sample_queries(embeddings_ND, 3)
    assert query_BD.shape == (256, SIZE)
    assert torch.equal(query_BD, sample_queries(embeddings_ND, 3))
    assert not torch.equal(query_BD, sample_queries(embeddings_ND, 4))
    distance_B = torch.cdist(query_BD, embeddings_ND).amin(1) / SIZE**0.5
    assert 0.3 < float(distance_B.mean()) < 0.6
    assert sample_queries(embeddings_ND[:1], 0).shape == (1, SIZE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_embeddings_and_seed_give_the_same_bytes(
    kind: str, embeddings_ND: Tensor, built: dict[str, ApproximateSearch]
) -> None:
    first = faiss.serialize_index(index_of(built[kind])).tobytes()
    assert faiss.serialize_index(index_of(build(kind, embeddings_ND))).tobytes() == first
    if kind.startswith("ivf"):
        assert faiss.serialize_index(index_of(build(kind, embeddings_ND, seed=1))).tobytes() != first


def test_options_take_what_suits_the_number_of_passages() -> None:
    few, many = (with_defaults("ivf_pq", {}, total, 128) for total in (1000, 13_353_718))
    assert (few["nlist"], few["nprobe"], few["M"], few["nbits"], few["overfetch"]) == (25, 8, 32, 7, 16)
    assert (many["nlist"], many["nprobe"], many["M"], many["nbits"]) == (14617, 913, 32, 8)
    assert with_defaults("ivf_pq", {}, 1000, 30)["M"] == 6
    assert with_defaults("hnsw", {"M": 5}, 1000, 128)["M"] == 5
    assert with_defaults("ivf_flat", {"nlist": 3}, 1000, 128)["nprobe"] == 3


@pytest.mark.parametrize(
    ("kind", "options", "index"),
    [
        ("ivf_flat", {"nlist": 101}, "IVF101,Flat"),
        ("ivf_pq", {"nbits": 7}, "IVF2,PQ4x7"),
    ],
)
def test_options_that_cannot_be_are_refused(kind: str, options: dict[str, int], index: str) -> None:
    with refused(f"{index} for 100 vectors of 16"):
        build(kind, normal(100, SIZE), options=options)
