"""Exact search against enumeration, and an index that belongs to its corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.errors import UserError
from realm_lab.models.embedder import Embedder
from realm_lab.models.inputs import Batch
from realm_lab.retrieval import index as index_module
from realm_lab.retrieval.index import Exclusion, IndexGeneration, build_index, check_index, embed_rows, search

if TYPE_CHECKING:
    from tests.tiny_system import Reference, TinySystem

# Shapes: N passages, B queries, K results, D embedding size

QUERIES = 5
CHUNKS = (1, 7, 16, 1000)  # passages searched at once


def generation(embeddings_ND: Tensor) -> IndexGeneration:
    return IndexGeneration(embeddings_ND, "corpus", 0)


def enumerate_all(
    embeddings_ND: Tensor, query_BD: Tensor, count: int, allowed_BN: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The best rows and scores by sorting all of them: by score, then by row; -1 where none is left."""
    scores_BN = (query_BD.double() @ embeddings_ND.double().T).numpy()
    if allowed_BN is not None:
        scores_BN[~allowed_BN] = -np.inf
    rows_BK = np.stack([np.lexsort((np.arange(len(scores)), -scores)) for scores in scores_BN])[:, :count]
    scores_BK = np.take_along_axis(scores_BN, rows_BK, axis=1)
    return np.where(np.isneginf(scores_BK), -1, rows_BK), scores_BK


def random_vectors(total: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(total, 6, generator=generator), torch.randn(QUERIES, 6, generator=generator)


@pytest.fixture(params=CHUNKS)
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Search this many passages at once."""
    monkeypatch.setattr(index_module, "SEARCH_CHUNK_SCORES", request.param * QUERIES)
    return int(request.param)


@pytest.mark.parametrize("count", [1, 5, 16, 50])
def test_search_equals_the_enumeration(chunk: int, count: int) -> None:
    embeddings_ND, query_BD = random_vectors(50)
    found = search(generation(embeddings_ND), query_BD, count)
    rows_BK, scores_BK = enumerate_all(embeddings_ND, query_BD, count)
    np.testing.assert_array_equal(found.rows_BK.numpy(), rows_BK)
    np.testing.assert_allclose(found.scores_BK.numpy(), scores_BK, atol=1e-5)


def test_search_holds_no_more_scores_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "SEARCH_CHUNK_SCORES", 7 * QUERIES)
    embeddings_ND, query_BD = random_vectors(50)
    sizes: list[int] = []
    original = index_module._is_forbidden

    def counted(exclude: Exclusion, start: int, length: int) -> Tensor:
        sizes.append(length)
        return original(exclude, start, length)

    monkeypatch.setattr(index_module, "_is_forbidden", counted)
    search(generation(embeddings_ND), query_BD, 3, Exclusion(torch.full((QUERIES,), -1), None))
    assert sizes == [7] * 7 + [1]


def tied_vectors(total: int = 50) -> tuple[Tensor, Tensor]:
    """Small whole numbers: many passages score exactly alike."""
    generator = torch.Generator().manual_seed(0)
    embeddings_ND = torch.randint(-1, 2, (total, 3), generator=generator).float()
    return embeddings_ND, torch.randint(-1, 2, (QUERIES, 3), generator=generator).float()


def test_ties_lose_no_score_and_no_order(chunk: int) -> None:
    embeddings_ND, query_BD = tied_vectors()
    for count in (1, 3, 8, 50):
        found = search(generation(embeddings_ND), query_BD, count)
        _, scores_BK = enumerate_all(embeddings_ND, query_BD, count)
        np.testing.assert_array_equal(found.scores_BK.numpy(), scores_BK)
        for rows in found.rows_BK.tolist():
            assert len(set(rows)) == count
        same = found.scores_BK[:, 1:] == found.scores_BK[:, :-1]
        assert (found.rows_BK.diff(dim=1)[same] > 0).all()  # among equals, the lower row stands first


def test_ties_go_to_the_lower_row() -> None:
    embeddings_ND, query_BD = tied_vectors()
    for count in (1, 3, 8):
        found = search(generation(embeddings_ND), query_BD, count)
        rows_BK, _ = enumerate_all(embeddings_ND, query_BD, count)
        np.testing.assert_array_equal(found.rows_BK.numpy(), rows_BK)


@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize("count", [1, 4, 12])
def test_what_is_forbidden_is_never_returned(chunk: int, by_group: bool, count: int) -> None:
    embeddings_ND, query_BD = random_vectors(12, seed=1)
    groups = np.arange(12) // 5
    best = enumerate_all(embeddings_ND, query_BD, 1)[0][:, 0]
    forbidden = np.where(np.arange(QUERIES) == 3, -1, groups[best] if by_group else best)  # query 3: nothing
    exclude = Exclusion(torch.from_numpy(forbidden), torch.from_numpy(groups) if by_group else None)
    allowed_BN = (groups if by_group else np.arange(12))[None] != forbidden[:, None]
    found = search(generation(embeddings_ND), query_BD, count, exclude)
    rows_BK, scores_BK = enumerate_all(embeddings_ND, query_BD, count, allowed_BN)
    np.testing.assert_array_equal(found.rows_BK.numpy(), rows_BK)
    np.testing.assert_allclose(found.scores_BK.numpy(), scores_BK, atol=1e-5)
    assert found.rows_BK[3, 0] == best[3]
    if count == 12:
        assert (found.rows_BK[0] == -1).sum() == (~allowed_BN[0]).sum() > 0
        assert found.scores_BK[0, -1] == -torch.inf


def test_row_0_and_article_0_can_be_forbidden() -> None:
    embeddings_ND, query_BD = random_vectors(6)
    for group in (None, torch.tensor([0, 0, 0, 1, 1, 1])):
        found = search(
            generation(embeddings_ND), query_BD, 6, Exclusion(torch.zeros(QUERIES, dtype=torch.int64), group)
        )
        banned = [0] if group is None else [0, 1, 2]
        assert not np.isin(found.rows_BK.numpy(), banned).any()
        assert (found.rows_BK >= 0).sum(1).tolist() == [6 - len(banned)] * QUERIES


def build(system: TinySystem, token_budget: int = 2048) -> IndexGeneration:
    return build_index(
        system.embedder,
        system.passages,
        system.special,
        corpus_digest="digest",
        step=17,
        passage_length=32,
        token_budget=token_budget,
        precision="float32",
    )


def test_the_index_holds_embed_doc_of_every_passage(system: TinySystem, reference: Reference) -> None:
    index = build(system)
    assert index.embeddings_ND.shape == (len(system.passages), 32)
    assert (index.corpus_digest, index.step) == ("digest", 17)
    for row in (0, 1, 5, 100, 319):
        torch.testing.assert_close(index.embeddings_ND[row].double(), reference.document(row), atol=1e-5, rtol=0)


def test_chunks_and_groups_change_no_vector(system: TinySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    expected_ND = build(system).embeddings_ND
    monkeypatch.setattr(index_module, "EMBED_CHUNK_ROWS", 50)
    torch.testing.assert_close(build(system, token_budget=70).embeddings_ND, expected_ND, atol=1e-5, rtol=0)


def test_building_uses_no_dropout_and_leaves_the_embedder_as_it_was(system: TinySystem) -> None:
    dropping = Embedder(system.embedder.query_encoder.shape._replace(dropout=0.5), 32, share_towers=False)
    dropping.load_state_dict(system.embedder.state_dict())
    dropping.train()
    index = build(system._replace(embedder=dropping))
    torch.testing.assert_close(index.embeddings_ND, build(system).embeddings_ND)
    assert dropping.training
    assert not index.embeddings_ND.requires_grad
    build(system)
    assert not system.embedder.training


def test_rows_are_embedded_in_their_order_and_the_null_document_is_empty(
    system: TinySystem, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.array([200, -1, 3, 57])
    seen: list[Tensor] = []
    original = Embedder.embed_documents

    def watched(self: Embedder, batch: Batch) -> Tensor:
        seen.append(batch.tokens_BL)
        return original(self, batch)

    monkeypatch.setattr(Embedder, "embed_documents", watched)
    with torch.no_grad():
        vectors = embed_rows(system.embedder, system.passages, rows, system.special, 32, 1, "float32")
    for vector, row in zip(vectors, rows.tolist(), strict=True):
        torch.testing.assert_close(vector.double(), reference.document(row), atol=1e-5, rtol=0)
    special = system.special
    assert [special.cls, special.sep, special.sep] in [tokens_BL[0].tolist() for tokens_BL in seen]
    assert len(seen) == 4  # a budget of one token reads one passage at a time


def test_an_index_of_another_corpus_is_refused() -> None:
    index = IndexGeneration(torch.zeros(7, 2), "a" * 64, 0)
    check_index(index, "a" * 64, 7)
    for corpus_digest, passages in (("b" * 64, 7), ("a" * 64, 8)):
        with pytest.raises(UserError, match=r"7 passages of corpus aaaaaaaaaaaa, .*; build the index again"):
            check_index(index, corpus_digest, passages)
