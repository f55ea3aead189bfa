"""The two towers: which parts are shared, how they start, what each switch makes them compute."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from realm_lab.engine.models.embedder import Embedder, EmbedderShape
from realm_lab.engine.models.encoder import Encoder, EncoderShape, initialise
from realm_lab.engine.models.folders import bert_config, to_bert
from realm_lab.engine.models.inputs import Batch, join
from realm_lab.engine.models.realm import candidate_log_probs, marginal_log_likelihood, score_gradient

SHAPE = EncoderShape(vocabulary_size=50, hidden_size=16, layers=1, heads=2, intermediate_size=20, positions=16)
SIZE = 8
EVERYTHING = EmbedderShape(SIZE, pooling="tanh", projection_norm=True, projection_bias=True, learned_null=True)
HEADS = [
    EmbedderShape(SIZE),
    EmbedderShape(SIZE, share_towers=False),
    EmbedderShape(SIZE, share_projection=True),
    EVERYTHING,
    EVERYTHING._replace(share_projection=True, score_scale="inverse_sqrt"),
    EVERYTHING._replace(share_towers=False),
    EmbedderShape(SIZE, pooling="mean"),
    EVERYTHING._replace(pooling="mean", score_scale="cosine", temperature=0.2, share_towers=False),
]


def make_batch() -> Batch:
    special = type("Special", (), {"cls": 2, "sep": 3, "pad": 0})()
    return join([np.array([7, 8]), np.array([9]), np.array([10, 11, 12, 13])], None, special, 16)


def started(head: EmbedderShape, pooler: dict[str, Tensor] | None = None) -> tuple[Embedder, Encoder]:
    encoder = Encoder(SHAPE)
    initialise(encoder, torch.Generator().manual_seed(0))
    embedder = Embedder(SHAPE, head)
    embedder.start_from(encoder, torch.Generator().manual_seed(1), pooler)
    return embedder, encoder


def noisy(head: EmbedderShape) -> Embedder:
    """An embedder whose matrices all differ."""
    embedder, _ = started(head)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in embedder.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return embedder.eval()


def their_pooled(embedder: Embedder, tower: str, batch: Batch) -> dict[str, Tensor]:
    """Return the outputs of transformers' BertModel with the tower's weights by each way of pooling."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig.from_dict(bert_config(SHAPE, "BertModel"))).eval()
    weights = to_bert(getattr(embedder, f"{tower}_encoder"))
    pooler = getattr(embedder, f"{tower}_pooler")
    if pooler is not None:
        weights |= {f"pooler.dense.{name}": value for name, value in pooler.state_dict().items()}
    model.load_state_dict(weights, strict=pooler is not None)
    with torch.no_grad():
        output = model(input_ids=batch.tokens_BL, token_type_ids=batch.types_BL, attention_mask=batch.mask_BL.long())
    means = [hidden_LD[mask_L].mean(0) for hidden_LD, mask_L in zip(output[0], batch.mask_BL, strict=True)]
    return {"cls": output[0][:, 0], "tanh": output.pooler_output, "mean": torch.stack(means)}


def by_formula(embedder: Embedder, tower: str, batch: Batch) -> Tensor:
    """Compute a tower of any head step by step."""
    head = embedder.head
    state = embedder.state_dict()
    vector_BD = their_pooled(embedder, tower, batch)[head.pooling] @ state[f"{tower}_projection.weight"].T
    if head.projection_bias:
        vector_BD = vector_BD + state[f"{tower}_projection.bias"]
    if head.projection_norm:
        mean, variance = vector_BD.mean(1, keepdim=True), vector_BD.var(1, unbiased=False, keepdim=True)
        vector_BD = (vector_BD - mean) / (variance + 1e-12).sqrt()
        vector_BD = vector_BD * state[f"{tower}_norm.weight"] + state[f"{tower}_norm.bias"]
    if tower == "query" and head.score_scale == "inverse_sqrt":
        vector_BD = vector_BD / SIZE**0.5
    if head.score_scale == "cosine":
        vector_BD = vector_BD / vector_BD.square().sum(1, keepdim=True).sqrt()
        vector_BD = vector_BD / head.temperature if tower == "query" else vector_BD
    return vector_BD


@pytest.mark.parametrize("head", HEADS)
def test_towers_are_what_the_head_says(head: EmbedderShape) -> None:
    embedder, batch = noisy(head), make_batch()
    with torch.no_grad():
        query_BD, document_BD = embedder.embed_queries(batch), embedder.embed_documents(batch)
    torch.testing.assert_close(query_BD, by_formula(embedder, "query", batch), atol=1e-5, rtol=0)
    torch.testing.assert_close(document_BD, by_formula(embedder, "document", batch), atol=1e-5, rtol=0)
    assert query_BD.dtype == document_BD.dtype == torch.float32


def test_the_identity_starts_in_the_geometry_of_a_sentence_encoder() -> None:
    """Scores are 20 times the cosine of mean-pooled texts, each read as one segment, as in sentence-transformers."""
    size = SHAPE.hidden_size
    head = EmbedderShape(size, pooling="mean", score_scale="cosine", initial_projection="identity")
    embedder, _ = started(head)
    special = type("Special", (), {"cls": 2, "sep": 3, "pad": 0})()
    titles, bodies = [np.array([5]), np.array([], int)], [np.array([7, 8, 9]), np.array([10])]
    documents = join(titles, bodies, special, 16)
    assert documents.types_BL.any()
    one_segment = documents._replace(types_BL=torch.zeros_like(documents.types_BL))
    texts = [their_pooled(embedder, "query", batch)["mean"] for batch in (make_batch(), one_segment)]
    with torch.no_grad():
        score_BK = embedder.embed_queries(make_batch()) @ embedder.embed_documents(documents).T
    cosine_BK = nn.functional.cosine_similarity(texts[0][:, None], texts[1][None], dim=2)
    torch.testing.assert_close(score_BK, 20 * cosine_BK, atol=1e-4, rtol=0)
    embedder.draw_projection(torch.Generator().manual_seed(7))  # of another attempt
    assert torch.equal(embedder.query_projection.weight, torch.eye(size))


@pytest.mark.parametrize("head", HEADS)
def test_what_is_shared_is_one_object_and_the_rest_has_its_own_memory(head: EmbedderShape) -> None:
    embedder = noisy(head)
    assert embedder.head == head
    assert embedder.share_towers == head.share_towers
    for part, shared in (
        ("encoder", head.share_towers),
        ("pooler", head.share_towers),
        ("projection", head.share_projection),
        ("norm", head.share_projection),
    ):
        query, document = getattr(embedder, f"query_{part}"), getattr(embedder, f"document_{part}")
        assert (query is document) == (shared or query is None), part
    places = [parameter.data_ptr() for parameter in embedder.parameters()]
    assert len(set(places)) == len(places)
    names = [name for name, _ in embedder.named_parameters()]
    assert all(name.startswith(("query_", "document_")) or name == "null_vector" for name in names)


@pytest.mark.parametrize("head", HEADS)
def test_the_score_starts_as_a_similarity(head: EmbedderShape) -> None:
    embedder, encoder = started(head._replace(score_scale="none"))
    for tower in (embedder.query_encoder, embedder.document_encoder):
        for name, value in encoder.state_dict().items():
            assert torch.equal(tower.state_dict()[name], value), name
            assert tower.state_dict()[name].data_ptr() != value.data_ptr()
    batch = make_batch()
    assert torch.equal(embedder.embed_queries(batch), embedder.embed_documents(batch))


@pytest.mark.parametrize("head", HEADS)
def test_splitting_changes_no_number_and_ends_the_sharing(head: EmbedderShape) -> None:
    embedder, batch = noisy(head), make_batch()
    before = embedder.embed_queries(batch).detach(), embedder.embed_documents(batch).detach()
    null = embedder.null_vector
    embedder.split_towers()
    assert torch.equal(embedder.embed_queries(batch), before[0])
    assert torch.equal(embedder.embed_documents(batch), before[1])
    assert embedder.head == head._replace(share_towers=False, share_projection=False)
    assert embedder.null_vector is null
    names = {name for name, _ in embedder.named_parameters()}
    queries = {name.removeprefix("query_") for name in names if name.startswith("query_")}
    assert queries == {name.removeprefix("document_") for name in names if name.startswith("document_")}
    with torch.no_grad():
        for name, parameter in embedder.named_parameters():
            if name.startswith("query_"):
                parameter.mul_(1.5)
    assert torch.equal(embedder.embed_documents(batch), before[1])
    assert not torch.allclose(embedder.embed_queries(batch), before[0])


@pytest.mark.parametrize("head", [head for head in HEADS if head.score_scale != "cosine"])
def test_scores_are_scaled_whatever_the_last_layer_is(head: EmbedderShape) -> None:
    embedder, batch = noisy(head), make_batch()

    def scores() -> Tensor:
        return (embedder.embed_queries(batch) @ embedder.embed_documents(batch).T).detach()

    before = scores()
    embedder.scale_scores(0.25)
    torch.testing.assert_close(scores(), 0.25 * before, rtol=1e-5, atol=1e-6)


def test_a_learned_null_starts_with_the_score_0_and_learns() -> None:
    embedder = noisy(EmbedderShape(SIZE))
    assert "null_vector" not in embedder.state_dict()
    embedder.set_learned_null(True)
    assert isinstance(embedder.null_vector, nn.Parameter)
    assert embedder.head.learned_null
    query_BD, document_BD = embedder.embed_queries(make_batch()), embedder.embed_documents(make_batch())
    score_BK = torch.stack([query_BD @ embedder.null_vector, *(query_BD @ document_BD.T).T], dim=1)
    assert not score_BK[:, 0].any()
    reader_BK = torch.randn(score_BK.shape, generator=torch.Generator().manual_seed(5))
    log_probs_BK = candidate_log_probs(score_BK)
    marginal_log_likelihood(log_probs_BK, reader_BK).sum().backward()
    gradient_B = score_gradient(log_probs_BK, reader_BK)[:, 0]  # Appendix A, times the query's vector
    assert embedder.null_vector.grad is not None
    torch.testing.assert_close(embedder.null_vector.grad, gradient_B @ query_BD, atol=1e-5, rtol=0)
    assert embedder.null_vector.grad.abs().min() > 0
    with torch.no_grad():
        embedder.null_vector.add_(1.0)
    embedder.set_learned_null(True)
    assert embedder.null_vector.min() == 1.0  # it keeps the vector it has
    embedder.set_learned_null(False)
    assert "null_vector" not in embedder.state_dict()
    assert not embedder.head.learned_null
