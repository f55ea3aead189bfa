"""The embeddings of every passage, and an index that belongs to its corpus."""

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.engine.core.process import Ranks
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.inputs import Batch
from realm_lab.engine.retrieval.index import Inputs, embed_passages, embed_rows
from realm_lab.engine.retrieval.search import IndexGeneration
from tests.tiny_system import Reference, TinySystem

# Shapes: N passages, D embedding size


def inputs(system: TinySystem, token_budget: int = 2048) -> Inputs:
    return Inputs(system.special, 26, 32, token_budget, "float32")


def build(system: TinySystem, token_budget: int = 2048) -> IndexGeneration:
    rows = np.arange(len(system.passages))
    embeddings_ND = embed_passages(system.embedder, system.passages, rows, inputs(system, token_budget))
    return IndexGeneration(embeddings_ND, 17)


def test_building_uses_no_dropout_and_leaves_the_embedder_as_it_was(system: TinySystem) -> None:
    dropping = Embedder(system.embedder.query_encoder.shape._replace(dropout=0.5), system.embedder.head)
    dropping.load_state_dict(system.embedder.state_dict())
    dropping.train()
    index = build(system._replace(embedder=dropping))
    torch.testing.assert_close(index.embeddings_ND, build(system).embeddings_ND)
    assert dropping.training
    assert isinstance(index.embeddings_ND, torch.Tensor)
    assert not index.embeddings_ND.requires_grad
    build(system)
    assert not system.embedder.training


def test_only_the_rows_of_a_share_are_kept(system: TinySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realm_lab.engine.retrieval.index.EMBED_CHUNK_ROWS", 8)
    rows = np.arange(30)
    whole_ND = embed_passages(system.embedder, system.passages, rows, inputs(system))
    for kept in (slice(0), slice(30, 30), slice(0, 15), slice(15, 30), slice(10, 12), slice(20, 30), slice(8, 16)):
        found_nD = embed_passages(system.embedder, system.passages, rows, inputs(system), kept=kept)
        assert torch.equal(found_nD, whole_ND[kept])


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
        vectors = embed_rows(system.embedder, system.passages, rows, inputs(system, 1))
    for vector, row in zip(vectors, rows.tolist(), strict=True):
        torch.testing.assert_close(vector.double(), reference.document(row), atol=1e-5, rtol=0)
    special = system.special
    assert [special.cls, special.sep, special.sep] in [tokens_BL[0].tolist() for tokens_BL in seen]
    assert len(seen) == 4  # a budget of one token reads one passage at a time


@pytest.mark.parametrize("size", [2, 3, 500])
def test_the_parts_of_ranks_are_disjoint_and_add_up_to_the_same_bits(system: TinySystem, size: int) -> None:
    rows = np.arange(len(system.passages))
    settings = (system.embedder, system.passages, rows, inputs(system, 256))
    with torch.no_grad():
        whole_ND = embed_rows(*settings)
        parts = [embed_rows(*settings, Ranks(rank, size)) for rank in range(size)]
    assert torch.equal(sum(parts[1:], parts[0]), whole_ND)
    assert sum((part_ND != 0).any(1).long() for part_ND in parts).tolist() == [1] * len(rows)  # type: ignore[union-attr]
    if size < 4:
        assert all((part_ND != 0).any() for part_ND in parts)  # none is idle
