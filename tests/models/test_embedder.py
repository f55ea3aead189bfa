"""The two towers: which parts are shared, how they start, what they compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from realm_lab.models.embedder import PROJECTION_STD, Embedder, projection_std
from realm_lab.models.encoder import Encoder, EncoderShape, initialise
from realm_lab.models.inputs import join

if TYPE_CHECKING:
    from tests.tiny_system import Reference, TinySystem

SHAPE = EncoderShape(vocabulary_size=50, hidden_size=16, layers=1, heads=2, intermediate_size=20, positions=16)


def started(share_towers: bool) -> tuple[Embedder, Encoder]:
    encoder = Encoder(SHAPE)
    initialise(encoder, torch.Generator().manual_seed(0))
    embedder = Embedder(SHAPE, 8, share_towers)
    embedder.start_from(encoder, torch.Generator().manual_seed(1))
    return embedder, encoder


def test_shared_towers_are_one_transformer_with_two_projections() -> None:
    embedder, encoder = started(share_towers=True)
    assert embedder.share_towers
    assert embedder.query_encoder is embedder.document_encoder
    count = sum(parameter.numel() for parameter in embedder.parameters())
    assert count == sum(parameter.numel() for parameter in encoder.parameters()) + 2 * 8 * 16
    assert embedder.query_projection.weight is not embedder.document_projection.weight


def test_separate_towers_share_no_memory() -> None:
    embedder, encoder = started(share_towers=False)
    assert not embedder.share_towers
    places = [parameter.data_ptr() for module in (embedder, encoder) for parameter in module.parameters()]
    assert len(set(places)) == len(places) == 3 * len(list(encoder.parameters())) + 2
    before = embedder.document_encoder.word_embeddings.weight.clone()
    with torch.no_grad():
        embedder.query_encoder.word_embeddings.weight.add_(1.0)
        encoder.word_embeddings.weight.add_(1.0)
    assert torch.equal(embedder.document_encoder.word_embeddings.weight, before)


@pytest.mark.parametrize("share_towers", [True, False])
def test_the_score_starts_as_a_similarity(share_towers: bool) -> None:
    embedder, encoder = started(share_towers)
    assert torch.equal(embedder.query_projection.weight, embedder.document_projection.weight)
    for tower in (embedder.query_encoder, embedder.document_encoder):
        for name, value in encoder.state_dict().items():
            assert torch.equal(tower.state_dict()[name], value), name
    special = type("Special", (), {"cls": 2, "sep": 3, "pad": 0})()
    batch = join([np.array([7, 8]), np.array([9])], None, special, 16)
    assert torch.equal(embedder.embed_queries(batch), embedder.embed_documents(batch))


@pytest.mark.parametrize("share_towers", [True, False])
def test_a_step_moves_the_projections_apart(share_towers: bool) -> None:
    embedder, _ = started(share_towers)
    with torch.no_grad():
        embedder.query_projection.weight.add_(1.0)
    assert not torch.allclose(embedder.query_projection.weight, embedder.document_projection.weight)


def test_projections_spread_scores_alike_at_every_width() -> None:
    assert projection_std(SHAPE._replace(hidden_size=384)) == PROJECTION_STD
    assert projection_std(SHAPE._replace(hidden_size=96)) == pytest.approx(2 * PROJECTION_STD)
    embedder = Embedder(SHAPE, 512, True)
    embedder.start_from(Encoder(SHAPE), torch.Generator().manual_seed(0))
    assert embedder.query_projection.weight.std().item() == pytest.approx(projection_std(SHAPE), rel=0.05)


def test_towers_are_the_projected_cls_vector_of_bert(system: TinySystem, reference: Reference) -> None:
    passages, questions = system.passages, system.corpus.questions("dev")
    rows, numbers = [0, 3, 17, 40], [0, 5, 9]
    with torch.no_grad():
        titles, bodies = [passages.titles[row] for row in rows], [passages.bodies[row] for row in rows]
        document_BD = system.embedder.embed_documents(join(titles, bodies, system.special, 64))
        query_BD = system.embedder.embed_queries(join([questions.tokens[n] for n in numbers], None, system.special, 64))
    expected_documents = torch.stack([reference.document(row) for row in rows])
    expected_queries = torch.stack([reference.query(questions.tokens[n]) for n in numbers])
    torch.testing.assert_close(document_BD.double(), expected_documents, atol=1e-5, rtol=0)
    torch.testing.assert_close(query_BD.double(), expected_queries, atol=1e-5, rtol=0)
    assert document_BD.dtype == torch.float32
