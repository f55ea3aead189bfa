"""Searching an index that may be stale, and scores with current weights."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.inputs import Batch
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.rows import ABSENT, NULL
from tests.engine.retrieval.tiny_index import ranked
from tests.tiny_system import TinySystem, scramble

# Shapes: B queries, K candidates, L candidates before the ranking, N passages, D embedding size


def find(retriever: Retriever, queries: list[np.ndarray], count: int) -> np.ndarray:
    return retriever.find(retriever.search_queries(queries), count)


def test_each_distinct_document_is_embedded_once(
    retriever: Retriever, queries: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded: list[tuple[int, ...]] = []
    original = Embedder.embed_documents

    def watched(self: Embedder, batch: Batch) -> Tensor:
        embedded.extend(
            tuple(tokens[mask].tolist()) for tokens, mask in zip(batch.tokens_BL, batch.mask_BL, strict=True)
        )
        return original(self, batch)

    monkeypatch.setattr(Embedder, "embed_documents", watched)
    rows_BK = np.array([[NULL, 4, 7], [NULL, 7, 9], [NULL, 7, ABSENT]])
    with torch.no_grad():
        retriever.score(retriever.embed_queries(queries[:3]), rows_BK)
    assert len(embedded) == len(set(embedded)) == 4  # the null document, 4, 7, 9


def learned(system: TinySystem) -> tuple[Retriever, Embedder, nn.Parameter]:
    """A retriever whose null document is a learned vector."""
    embedder = copy.deepcopy(system.embedder)
    size = embedder.document_projection.out_features
    vector_D = nn.Parameter(torch.randn(size, generator=torch.Generator().manual_seed(5)))
    embedder.null_vector = vector_D
    retriever = system.retriever(embedder)
    retriever.refresh(0)
    return retriever, embedder, vector_D


def test_a_learned_null_document_is_its_vector_and_the_others_stay(
    system: TinySystem, retriever: Retriever, queries: list[np.ndarray]
) -> None:
    learning, _, vector_D = learned(system)
    rows_BK = np.array([[NULL, 4, ABSENT], [NULL, 200, 17]])
    with torch.no_grad():
        query_BD = learning.embed_queries(queries[:2])
        score_BK, encoded_BK = learning.score(query_BD, rows_BK), retriever.score(query_BD, rows_BK)
        learning.null_offset = 2.5
        shifted_BK = learning.score(query_BD, rows_BK)
        only_BK = learning.score(query_BD, rows_BK[:, :1])
    torch.testing.assert_close(score_BK[:, 0], query_BD @ vector_D)
    torch.testing.assert_close(shifted_BK[:, 0], score_BK[:, 0] + 2.5)
    torch.testing.assert_close(only_BK[:, 0], shifted_BK[:, 0])  # a batch without a passage
    assert (score_BK[:, 0] - encoded_BK[:, 0]).abs().min() > 1e-2
    torch.testing.assert_close(score_BK[:, 1:], encoded_BK[:, 1:], atol=1e-5, rtol=0)


def changed(system: TinySystem, stale: bool) -> tuple[Retriever, Embedder]:
    """A retriever whose weights moved on after the index was built, and the weights behind the index."""
    embedder = copy.deepcopy(system.embedder)
    retriever = system.retriever(embedder, stale_queries=stale)
    retriever.refresh(3)
    scramble(embedder, seed=8)
    return retriever, system.embedder


def test_stale_search_asks_with_the_weights_behind_the_index(
    system: TinySystem, queries: list[np.ndarray], scores_BN: np.ndarray
) -> None:
    retriever, old = changed(system, True)
    with torch.no_grad():
        assert torch.equal(retriever.search_queries(queries), retriever.embed_queries(queries, old))
    np.testing.assert_array_equal(find(retriever, queries, 5), ranked(scores_BN)[:, :5])
    assert retriever.snapshot is not None
    assert not retriever.snapshot.training
    assert not any(parameter.requires_grad for parameter in retriever.snapshot.parameters())
    assert all(parameter.requires_grad for parameter in retriever.embedder.parameters())


def test_fresh_search_asks_an_old_index_with_the_current_weights(system: TinySystem, queries: list[np.ndarray]) -> None:
    retriever, old = changed(system, False)
    with torch.no_grad():
        search_BD = retriever.search_queries(queries)
        assert torch.equal(search_BD, retriever.embed_queries(queries))
        assert not torch.allclose(search_BD, retriever.embed_queries(queries, old))
        assert retriever.index is not None
        assert isinstance(retriever.index.embeddings_ND, Tensor)
        expected_BK = (search_BD @ retriever.index.embeddings_ND.T).argsort(dim=1, descending=True)[:, :5]
    np.testing.assert_array_equal(find(retriever, queries, 5), expected_BK.numpy())


def test_indexed_scores_are_the_scores_while_the_index_is_fresh(system: TinySystem, queries: list[np.ndarray]) -> None:
    retriever = system.retriever(copy.deepcopy(system.embedder))
    retriever.refresh(0)
    rows_BK = find(retriever, queries, 5)
    rows_BK[1, 4] = ABSENT
    with torch.no_grad():
        query_BD = retriever.embed_queries(queries)
        indexed_BK = retriever.indexed_score(query_BD, rows_BK)
        torch.testing.assert_close(indexed_BK, retriever.score(query_BD, rows_BK), atol=1e-4, rtol=0)
        assert indexed_BK[1, 4] == -1e4
        scramble(retriever.embedder.document_encoder, seed=8)
        assert torch.equal(retriever.indexed_score(query_BD, rows_BK), indexed_BK)  # frozen documents
        assert (retriever.score(query_BD, rows_BK) - indexed_BK).abs().max() > 1e-2
