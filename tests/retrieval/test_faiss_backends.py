"""Approximate search: what it proposes, what it never returns, how well it is measured and kept."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.errors import UserError
from realm_lab.retrieval import faiss_backends
from realm_lab.retrieval.backends import make_backend
from realm_lab.retrieval.exact import ExactSearch
from realm_lab.retrieval.faiss_backends import (
    KINDS,
    FaissSearch,
    FaissSettings,
    build_faiss,
    load_faiss,
    recall,
    sample_queries,
)
from realm_lab.retrieval.search import Exclusion

# Shapes: N passages, B queries, K results, D embedding size

ROWS, SIZE, QUERIES = 1500, 16, 20
SMALL = FaissSettings(lists=30, probes=6, bits=4, build_neighbours=40, neighbours=32)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def embeddings_ND() -> Tensor:
    return normal(ROWS, SIZE)


@pytest.fixture(scope="module")
def query_BD() -> Tensor:
    return normal(QUERIES, SIZE, seed=1)


@pytest.fixture(scope="module")
def built(embeddings_ND: Tensor) -> dict[str, FaissSearch]:
    """One backend of each kind; tests leave them as they are."""
    return {kind: build_faiss(kind, embeddings_ND, SMALL) for kind in KINDS}


def scores(embeddings_ND: Tensor, query_BD: Tensor) -> np.ndarray:
    return (query_BD.double() @ embeddings_ND.double().T).float().numpy()


def found_share(wanted_BK: np.ndarray, found_BK: np.ndarray) -> float:
    shares = [len(set(wanted) & set(found)) / len(wanted) for wanted, found in zip(wanted_BK, found_BK, strict=True)]
    return float(np.mean(shares))


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_finds_most_of_the_best_and_scores_them_truly(
    kind: str, built: dict[str, FaissSearch], embeddings_ND: Tensor, query_BD: Tensor
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


def test_flat_is_exact_at_every_depth(built: dict[str, FaissSearch], embeddings_ND: Tensor, query_BD: Tensor) -> None:
    for count in (1, 50, ROWS + 3):
        expected = ExactSearch(embeddings_ND).search(query_BD, count)
        found = built["faiss_flat"].search(query_BD, count)
        assert torch.equal(found.rows_BK, expected.rows_BK)
        assert torch.equal(found.scores_BK, expected.scores_BK)


def test_equal_scores_stand_in_the_order_of_their_rows() -> None:
    embeddings_ND = normal(5, SIZE).repeat(10, 1)
    for kind in KINDS:
        backend = build_faiss(kind, embeddings_ND, FaissSettings(bits=2, overfetch=10))
        found = backend.search(normal(3, SIZE, seed=1), 10)
        best = found.rows_BK[:, :1] % 5
        assert torch.equal(found.rows_BK, best + 5 * torch.arange(10)), kind


@pytest.mark.parametrize("by_group", [False, True], ids=["passage", "article"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_forbidden_is_never_returned_and_its_place_is_filled(
    kind: str, by_group: bool, built: dict[str, FaissSearch], embeddings_ND: Tensor, query_BD: Tensor
) -> None:
    """All of the best are of one article: over-fetching must reach past all of them."""
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
    backend = build_faiss(kind, embeddings_ND)
    group_N = torch.arange(12) // 9
    found = backend.search(normal(2, SIZE, seed=1), 5, Exclusion(torch.tensor([0, -1]), group_N))
    assert sorted(found.rows_BK[0].tolist()) == [-1, -1, 9, 10, 11]
    assert (found.rows_BK[1] >= 0).all()
    assert torch.isneginf(found.scores_BK[0, 3:]).all()
    assert backend.search(normal(2, SIZE), 20).rows_BK.shape == (2, 20)
    assert backend.search(normal(0, SIZE), 3).rows_BK.shape == (0, 3)
    empty = build_faiss(kind, embeddings_ND[:0])
    assert empty.search(normal(2, SIZE), 3).rows_BK.tolist() == [[-1] * 3] * 2


def test_without_rescoring_scores_are_those_of_the_codes(embeddings_ND: Tensor, query_BD: Tensor) -> None:
    settings = FaissSettings(lists=30, probes=6, bits=4, rescore=False)
    found = build_faiss("ivf_pq", embeddings_ND, settings).search(query_BD, 8)
    true_BK = np.take_along_axis(scores(embeddings_ND, query_BD), found.rows_BK.numpy(), axis=1)
    assert (np.abs(found.scores_BK.numpy() - true_BK) > 1e-3).mean() > 0.9
    assert (found.scores_BK.diff(dim=1) <= 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_measured_recall_is_what_an_independent_count_finds(
    kind: str, embeddings_ND: Tensor, query_BD: Tensor
) -> None:
    backend = make_backend(kind, embeddings_ND, SMALL, query_BD)
    assert isinstance(backend, FaissSearch)
    wanted_BK = np.argsort(-scores(embeddings_ND, query_BD), axis=1, kind="stable")[:, :8]
    measured = backend.recall_at_8
    assert measured == pytest.approx(found_share(wanted_BK, backend.search(query_BD, 8).rows_BK.numpy()))
    assert measured is not None
    assert measured < 1 or kind not in ("ivf_flat", "ivf_pq")
    assert backend.record()["recall_at_8"] == measured
    sampled = make_backend(kind, embeddings_ND, SMALL)
    assert isinstance(sampled, FaissSearch)
    assert sampled.recall_at_8 == recall(backend, ExactSearch(embeddings_ND), sample_queries(embeddings_ND, 0))


def test_recall_counts_only_what_there_is_to_find() -> None:
    few = ExactSearch(normal(3, SIZE))
    assert recall(few, few, normal(4, SIZE, seed=1)) == 1
    nothing = ExactSearch(normal(0, SIZE))
    assert recall(nothing, nothing, normal(4, SIZE)) == 1


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
    kind: str, embeddings_ND: Tensor, built: dict[str, FaissSearch], tmp_path: Path
) -> None:
    digest = built[kind].save(tmp_path / "first")
    assert build_faiss(kind, embeddings_ND, SMALL).save(tmp_path / "second") == digest
    if kind.startswith("ivf"):
        other = FaissSettings(lists=30, probes=6, bits=4, seed=1)
        assert build_faiss(kind, embeddings_ND, other).save(tmp_path / "third") != digest


@pytest.mark.parametrize("kind", KINDS)
def test_building_and_searching_take_one_thread(
    kind: str, embeddings_ND: Tensor, query_BD: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More threads may add up in another order; other work keeps the number it had."""
    import faiss

    threads_before = torch.get_num_threads()
    given = embeddings_ND.repeat(faiss_backends.ADDED_ROWS // ROWS + 1, 1) if kind != "hnsw" else embeddings_ND
    seen: list[int] = []
    original = faiss_backends._floats

    def watched(vectors_ND: Tensor) -> np.ndarray:
        seen.append(faiss.omp_get_max_threads())
        return original(vectors_ND)

    monkeypatch.setattr(faiss_backends, "_floats", watched)
    try:
        torch.set_num_threads(3)  # the two may share one OpenMP
        before = faiss.omp_get_max_threads()
        for threads, expected in ((1, 1), (0, 1 if kind == "hnsw" else 3)):
            seen.clear()
            backend = build_faiss(kind, given, replace(SMALL, threads=threads))
            assert set(seen) == {expected}
            seen.clear()
            backend.search(query_BD, 3)
            assert set(seen) == {threads or 3}
            assert faiss.omp_get_max_threads() == before
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads_before)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_searches_alike(kind: str, embeddings_ND: Tensor, query_BD: Tensor, tmp_path: Path) -> None:
    backend = make_backend(kind, embeddings_ND, SMALL)
    assert isinstance(backend, FaissSearch)
    digest = backend.save(tmp_path / "index")
    assert [file.name for file in tmp_path.iterdir()] == ["index"]
    again = load_faiss(tmp_path / "index", digest, backend.record(), embeddings_ND)
    assert (again.settings, again.recall_at_8, again.name) == (backend.settings, backend.recall_at_8, kind)
    for found, expected in zip(again.search(query_BD, 8), backend.search(query_BD, 8), strict=True):
        assert torch.equal(found, expected)


def test_a_file_that_is_not_what_the_manifest_says_is_refused(
    built: dict[str, FaissSearch], embeddings_ND: Tensor, tmp_path: Path
) -> None:
    path, backend = tmp_path / "index", built["sq8"]
    digest = backend.save(path)
    with pytest.raises(UserError, match="holds 1500 vectors of 16 numbers, the embeddings are 1499 of 16; build"):
        load_faiss(path, digest, backend.record(), embeddings_ND[1:])
    for part in ({"backend": "annoy"}, {"settings": {"trees": 3}}):
        with pytest.raises(UserError, match="another version"):
            load_faiss(path, digest, backend.record() | part, embeddings_ND)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match=r"its digest is [0-9a-f]{12}, the manifest says [0-9a-f]{12}; build"):
        load_faiss(path, digest, backend.record(), embeddings_ND)


def test_settings_take_what_suits_the_number_of_passages() -> None:
    small, large = (FaissSettings().resolved("ivf_pq", total, 128) for total in (1000, 13_353_718))
    assert (small.lists, small.probes, small.parts, small.bits, small.training_rows) == (25, 8, 32, 7, 1000)
    assert (large.lists, large.probes, large.parts, large.bits) == (14617, 913, 32, 8)
    assert large.training_rows == 64 * 14617
    assert FaissSettings().resolved("hnsw", 1000, 128).links == 32
    assert FaissSettings().resolved("ivf_pq", 1000, 30).parts == 6
    assert FaissSettings(lists=3, probes=9).resolved("ivf_flat", 1000, 128).probes == 3


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("annoy", FaissSettings(), "'annoy' is not one of faiss_flat, ivf_flat"),
        ("ivf_flat", FaissSettings(lists=101), "lists: 101 lists for 100 passages"),
        ("ivf_flat", FaissSettings(probes=-1), "probes: -1 is negative"),
        ("ivf_pq", FaissSettings(parts=3), "parts: 3 parts do not divide vectors of 16"),
        ("ivf_pq", FaissSettings(bits=7), "bits: codes of 7 bits need 128 passages, up to 2.16; there are 100"),
        ("hnsw", FaissSettings(build_neighbours=0), "build_neighbours must be 1 or more"),
        ("hnsw", FaissSettings(gpu=True), "hnsw does not run on a GPU; choose one of faiss_flat"),
    ],
)
def test_settings_that_cannot_be_are_refused(kind: str, settings: FaissSettings, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_faiss(kind, normal(100, SIZE), settings)


@pytest.mark.parametrize("kind", ["ivf_flat", "hnsw"])
def test_wider_searches_find_more(kind: str, embeddings_ND: Tensor, query_BD: Tensor) -> None:
    exact = ExactSearch(embeddings_ND)
    shares = []
    for width in (1, 6, 30):
        settings = FaissSettings(
            lists=30, probes=width, links=0 if kind != "hnsw" else 4, build_neighbours=10, neighbours=width
        )
        shares.append(recall(build_faiss(kind, embeddings_ND, settings), exact, query_BD))
    assert shares[0] < shares[2]
    assert shares == sorted(shares)
    assert kind == "hnsw" or shares[2] == 1


def test_a_missing_faiss_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert make_backend("exact", normal(5, SIZE)).name == "exact"
    with pytest.raises(UserError, match=r"faiss cannot be imported .*`make setup` installs faiss-cpu, the extra `gpu`"):
        make_backend("ivf_flat", normal(5, SIZE))


def test_a_gpu_that_faiss_does_not_see_is_refused() -> None:
    import faiss

    if getattr(faiss, "get_num_gpus", int)():
        pytest.skip("faiss sees a GPU")
    with pytest.raises(UserError, match=r"faiss_flat was asked for on a GPU, but this faiss .* sees none; install"):
        build_faiss("faiss_flat", normal(5, SIZE), FaissSettings(gpu=True))


def test_moving_to_gpus_is_asked_of_faiss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The index that is searched is the moved one, the one that is saved is not."""
    import faiss

    moved = []

    def move(index: object) -> object:
        moved.append(index)
        return index

    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", move, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 2, raising=False)
    backend = build_faiss("faiss_flat", normal(9, SIZE), FaissSettings(gpu=True))
    assert moved == [backend.index]
    assert (backend.search(normal(1, SIZE), 3).rows_BK >= 0).all()
    backend.save(tmp_path / "index")
