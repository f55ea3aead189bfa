"""Gradients over all passages against autograd through every score, and estimates with known errors."""

# Shapes: S sentences, N passages, C = N + 1 columns with the null document first, D embedding size

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.contrib import candidate_sources
from realm_lab.contrib.gradients.exact import (
    Estimate,
    ExactGradient,
    Scores,
    cosine,
    drawn_from,
    exact,
    in_scores,
    parts_of_error,
    scores_of,
    top_k,
)
from realm_lab.contrib.gradients.operations import StepOperations
from realm_lab.contrib.objectives import Draws, jsa, reinforce
from realm_lab.engine.core.seeding import numpy_generator
from realm_lab.engine.masking import MaskedSentence, mask
from realm_lab.engine.models.encoder import EncoderShape
from realm_lab.engine.models.objectives import OBJECTIVES, training_objective
from realm_lab.engine.models.realm import candidate_log_probs
from realm_lab.engine.retrieval.candidate_sources import PassageSearch, QueryBatch
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.rows import ABSENT, NO_SCORE, NULL
from realm_lab.engine.training.flops import encoder_operations, passage_operations
from realm_lab.records.plugins import Choice
from tests.tiny_system import Reference, TinySystem

SENTENCES = 5


class Case(NamedTuple):
    """Sentences with a retriever whose null document takes part."""

    retriever: Retriever
    masked: list[MaskedSentence]
    scores: Scores
    exact_gradient: ExactGradient


@pytest.fixture(scope="module")
def case(system: TinySystem) -> Case:
    retriever = system.built_retriever()
    sentences = system.corpus.sentences()
    rows = [int(row) for row in sentences.rows_with_spans()[:SENTENCES]]
    masked = []
    for row in rows:
        (first, end), *_ = sentences.salient_spans(row)
        masked.append(mask(sentences.tokens[row], np.arange(first, end), system.special.mask))
    origins = np.array([3, -1, -1, -1, -1])  # the first sentence is taken to come from passage 3
    scores = scores_of(system.params, retriever, system.reader, masked, origins)
    return Case(retriever, masked, scores, ExactGradient(system.params, retriever, system.reader, scores, 0))


def candidates(count: int) -> np.ndarray:
    """Every candidate of each sentence, in any order."""
    return np.stack([np.random.default_rng(row).permutation(np.arange(-1, count)) for row in range(SENTENCES)])


def test_scores_and_likelihoods_are_those_of_transformers(case: Case, reference: Reference) -> None:
    for row in (NULL, 0, 7, 200):
        score = reference.query(case.masked[1].query) @ reference.document(row)
        assert case.scores.score_SC[1, row + 1].item() == pytest.approx(score.item(), abs=1e-4)
    assert case.scores.score_SC[0, 3 + 1] == NO_SCORE  # the trivial candidate
    assert (case.scores.score_SC[1:] > NO_SCORE).all()


def test_the_exact_gradient_is_that_of_equation_1_over_all_passages(case: Case) -> None:
    scores, columns = case.scores, case.scores.score_SC > NO_SCORE
    for number in range(SENTENCES):
        kept = columns[number]
        score_C = scores.score_SC[number, kept].clone().requires_grad_()
        log_prior_C = score_C - score_C.logsumexp(0)
        (log_prior_C + scores.log_reader_SC[number, kept]).logsumexp(0).backward()
        assert score_C.grad is not None
        torch.testing.assert_close(exact(scores)[number, kept], score_C.grad, rtol=0, atol=1e-12)
    assert (exact(scores)[~columns] == 0).all()
    torch.testing.assert_close(exact(scores).sum(1), torch.zeros(SENTENCES, dtype=torch.float64), atol=1e-12, rtol=0)


def test_the_gradient_in_the_weights_is_that_of_the_whole_objective(case: Case, system: TinySystem) -> None:
    """Autograd through all embeddings at once, in float32."""
    retriever, embedder = case.retriever, system.embedder
    trained = [each for each in embedder.parameters() if each.requires_grad]
    query_SD = retriever.embed_queries([sentence.query for sentence in case.masked])
    score_SC = query_SD @ retriever.embed_documents(np.arange(-1, len(retriever.passages))).T
    score_SC = score_SC.masked_fill(case.scores.score_SC <= NO_SCORE, NO_SCORE)
    value = (score_SC.log_softmax(1) + case.scores.log_reader_SC.float()).logsumexp(1).sum()
    expected = torch.autograd.grad(value, trained, allow_unused=True)
    whole_W = torch.cat(
        [
            (torch.zeros_like(each) if found is None else found).flatten().double()
            for each, found in zip(trained, expected, strict=True)
        ]
    )
    found_W = case.exact_gradient.in_weights(exact(case.scores))
    assert cosine(found_W, whole_W) == pytest.approx(1, abs=1e-6)
    assert found_W.norm().item() == pytest.approx(whole_W.norm().item(), rel=1e-4)


def test_all_passages_as_candidates_give_the_exact_gradient(case: Case) -> None:
    everyone = len(case.retriever.passages)
    in_index = Estimate("top N", lambda draw: top_k(case.scores, everyone + 1, null=True))
    shuffled = Estimate("all", lambda draw: candidates(everyone))
    forbidden = case.scores.score_SC[0] <= NO_SCORE
    for estimate in (in_index, shuffled):
        r_SC = in_scores(case.scores, estimate.rows(0), estimate.objective)
        r_SC[0, forbidden] = 0
        found = case.exact_gradient.quality(estimate)
        assert (found.cosine, found.weights_cosine) == pytest.approx((1, 1), abs=1e-9)
        assert (found.bias, found.variance, found.error, found.weights_bias) == pytest.approx((0,) * 4, abs=1e-9)
        assert found.gflop == pytest.approx(case.exact_gradient.exact_gflop, rel=0.01)


def test_the_null_document_comes_first_and_a_trivial_candidate_never(case: Case) -> None:
    rows_SK = top_k(case.scores, 6, null=True)
    assert (rows_SK[:, 0] == NULL).all()
    everyone = len(case.retriever.passages)
    assert 3 not in top_k(case.scores, everyone + 1, null=True)[0]
    assert top_k(case.scores, everyone + 1, null=True)[0, -1] == ABSENT
    by_other_SN = -case.scores.score_SC[:, 1:]
    assert top_k(case.scores, 2, null=False, found_SN=by_other_SN)[1, 0] == case.scores.score_SC[1, 1:].argmin()


def test_the_candidates_of_the_batch_give_the_sum_over_them(case: Case) -> None:
    """Brute force: autograd of log sum over only the batch's passages."""
    passages_U = np.array([5, 8, 13, 21])
    queries = [sentence.query for sentence in case.masked]
    with torch.no_grad():
        search = PassageSearch(case.retriever, queries, case.retriever.embed_queries(queries), len(passages_U), None)
    unknown_S = np.full(SENTENCES, -1)
    rows = drawn_from(
        candidate_sources.batch,
        search,
        lambda draw: QueryBatch(passages_U, unknown_S, lambda number: numpy_generator(draw, "batch", number)),
        null=False,
    )
    found_SC = in_scores(case.scores, rows(0), OBJECTIVES["marginal"].load())
    score_SU = case.scores.score_SC[:, passages_U + 1].clone().requires_grad_()
    log_prior_SU = score_SU - score_SU.exp().sum(1, keepdim=True).log()
    (log_prior_SU.exp() * case.scores.log_reader_SC[:, passages_U + 1].exp()).sum(1).log().sum().backward()
    assert score_SU.grad is not None
    torch.testing.assert_close(found_SC[:, passages_U + 1], score_SU.grad, rtol=0, atol=1e-9)
    others = np.setdiff1d(np.arange(found_SC.shape[1]), passages_U + 1)
    assert (found_SC[:, others] == 0).all()


def test_bias_and_variance_add_up_to_the_error(case: Case) -> None:
    def rows(draw: int) -> np.ndarray:
        return np.random.default_rng(draw).integers(0, 300, (SENTENCES, 4))

    found = case.exact_gradient.quality(Estimate("four by chance", rows, draws=6))
    assert found.bias > 0
    assert found.variance > 0
    assert found.bias + found.variance == pytest.approx(found.error, abs=1e-9)
    exact_SD = torch.tensor([[3.0, 4.0]])
    estimates_RSD = torch.tensor([[[3.0, 4.0]], [[3.0, 14.0]]])
    assert parts_of_error(estimates_RSD, exact_SD) == pytest.approx((1.0, 1.0, 2.0))


def mean_gradient(objective: Any, options: Draws, log_reader_K: Tensor, score_K: Tensor, batch: int) -> Tensor:
    """The gradient in the scores, the mean of many independent sentences."""
    torch.manual_seed(4)
    score_BK = score_K.expand(batch, -1).clone().requires_grad_()
    objective(score_BK.log_softmax(1), log_reader_K.expand(batch, -1), options).sum().backward()
    assert score_BK.grad is not None
    return score_BK.grad.mean(0)


@pytest.mark.parametrize("name", ["reinforce", "jsa"])
def test_a_place_without_a_candidate_is_never_drawn(name: str) -> None:
    objective = training_objective("pretrain.objective", Choice(name, {"draws": 40}))
    score_BK = torch.tensor([[0.0, NO_SCORE, 1.0]] * 50, requires_grad=True)
    read_BK = torch.tensor([[-2.0, -0.1, -3.0]] * 50, requires_grad=True)
    value_B = objective(candidate_log_probs(score_BK), read_BK)
    of_score_BK, of_read_BK = torch.autograd.grad(value_B.sum(), (score_BK, read_BK))
    assert (of_read_BK[:, 1] == 0).all()
    assert (of_score_BK[:, 1] == 0).all()
    assert (of_read_BK.sum(0)[[0, 2]] > 0).all()


SCORE_K = torch.tensor([0.5, -0.3, 1.2, 0.0], dtype=torch.float64)
READ_K = torch.tensor([-1.0, -0.2, -2.5, -0.7], dtype=torch.float64)


@pytest.mark.parametrize("draws", [1, 3])
def test_reinforce_has_the_mean_of_the_expected_log_likelihood(draws: int) -> None:
    """In closed form: p(z) [log p(y|z) - E log p(y|z)]."""
    prior_K = SCORE_K.softmax(0)
    expected_K = prior_K * (READ_K - (prior_K * READ_K).sum())
    found_K = mean_gradient(reinforce, Draws(draws=draws), READ_K, SCORE_K, 200_000)
    torch.testing.assert_close(found_K, expected_K, rtol=0, atol=6e-3)


def test_the_chain_of_jsa_leads_from_the_prior_to_the_gradient_of_equation_1() -> None:
    prior_K, posterior_K = SCORE_K.softmax(0), (SCORE_K + READ_K).softmax(0)
    found_K = mean_gradient(jsa, Draws(draws=1), READ_K, SCORE_K, 100_000)
    torch.testing.assert_close(found_K, torch.zeros_like(found_K), rtol=0, atol=6e-3)
    found_K = mean_gradient(jsa, Draws(draws=30), READ_K, SCORE_K, 100_000)
    torch.testing.assert_close(found_K, posterior_K - prior_K, rtol=0, atol=6e-3)


@pytest.mark.parametrize(
    ("reads", "retrieves", "stale"), [(True, True, True), (False, True, False), (True, False, True)]
)
def test_a_step_is_the_sum_of_what_is_read_and_retrieved(
    system: Any, reads: bool, retrieves: bool, stale: bool
) -> None:
    passages, reader, embedder = system.passages, system.reader.encoder.shape, system.embedder.query_encoder.shape
    trained = {"train_reader": reads, "train_query_tower": retrieves, "train_document_tower": retrieves}
    pretrain = system.params.pretrain.model_copy(update=trained | {"search_query": "stale" if stale else "fresh"})
    operations = StepOperations(system.params.model_copy(update={"pretrain": pretrain}), passages, reader, embedder)
    masked = [mask(np.arange(10), np.array([2, 3]), 4), mask(np.arange(6), np.array([1]), 4)]
    candidates_BK = np.array([[NULL, 5, 7], [NULL, 7, ABSENT]])

    def one(shape: EncoderShape, length: int) -> float:
        return float(encoder_operations(shape, np.array(length)))

    body = {row: len(passages.bodies[row]) for row in (5, 7)} | {NULL: 0, ABSENT: 0}
    read = 0.0
    for sentence, rows in zip(masked, candidates_BK.tolist(), strict=True):
        for row in rows:
            read += one(reader, min(58, len(sentence.tokens) + body[row] + 3))
            read += len(sentence.positions) * 2 * reader.hidden_size * (reader.hidden_size + reader.vocabulary_size)
    documents = [min(32, len(passages.titles[row]) + body[row] + 3) for row in (5, 7)] + [3]
    asked = one(embedder, 12) + one(embedder, 8)
    retrieved = asked + sum(one(embedder, length) for length in documents)
    assert passage_operations(system.params, passages, embedder)[[5, 7]].tolist() == [
        one(embedder, length) for length in documents[:2]
    ]
    expected = read * (3 if reads else 1) + retrieved * (3 if retrieves else 1) + (asked if stale else 0)
    assert operations(masked, candidates_BK) == pytest.approx(expected, rel=1e-12)
