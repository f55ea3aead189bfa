"""The paper's statements, proved on the whole engine: towers, search, scores, reader and marginal in one computation.

The engine keeps scores and losses in float32. The `exact` fixture lets them be float64, so that identities hold to
rounding and derivatives can be checked by finite differences; nothing else of the engine is replaced.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from realm_lab.engine.corpus.store import PreparedCorpus
from realm_lab.engine.evaluation.utility import mask_first_span
from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.models.candidate_reader import CandidateReader
from realm_lab.engine.models.realm import (
    candidate_log_probs,
    marginal_log_likelihood,
    retrieval_utility,
    score_gradient,
)
from realm_lab.engine.retrieval.candidates import CandidatePolicy
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.rows import NULL
from tests.tiny_system import Reference, TinySystem, build_system, prepare_corpus

# Shapes: B sentences, K candidates, M masked positions, N passages of the corpus and the null document

VARIANTS: dict[str, dict[str, Any]] = {
    "two towers": {"model": {"share_towers": False}},
    "as released": {"model": {"share_towers": True, "projection": "released", "pooling": "tanh"}},
    "scaled": {"model": {"score_scale": "inverse_sqrt"}},
    "learned null": {"pretrain": {"null_document": "learned", "candidates": 8}},
}


class Outcome(NamedTuple):
    """One forward computation, differentiable."""

    score_BK: Tensor
    log_prior_BK: Tensor
    log_reader_BK: Tensor
    log_likelihood_B: Tensor


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> PreparedCorpus:
    return prepare_corpus(tmp_path_factory.mktemp("proofs") / "corpus")


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep float64 in code that would convert to float32."""
    cut = torch.Tensor.float
    monkeypatch.setattr(torch.Tensor, "float", lambda self: self if self.dtype == torch.float64 else cut(self))
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def build(corpus: PreparedCorpus, variant: str = "two towers", dtype: torch.dtype = torch.float64) -> TinySystem:
    system = build_system(corpus, **VARIANTS[variant])
    return system._replace(reader=system.reader.to(dtype), embedder=system.embedder.to(dtype))


def sentences(system: TinySystem, count: int) -> list[MaskedSentence]:
    held_out = system.corpus.sentences("cloze_dev")
    return [mask_first_span(held_out, number, system.special.mask) for number in range(count)]


def compute(system: TinySystem, masked: list[MaskedSentence], rows_BK: np.ndarray, token_budget: int = 4096) -> Outcome:
    """log p(y|x) of Eq. 1 over the given candidates."""
    retriever = system.retriever()
    score_BK = retriever.score(retriever.embed_queries([sentence.tokens for sentence in masked]), rows_BK)
    launch = system.params.launch.model_copy(update={"token_budget": token_budget})
    params = system.params.model_copy(update={"launch": launch})
    reading = CandidateReader(params, system.reader, system.passages, system.special).read(masked, rows_BK)
    log_prior_BK, log_reader_BK = candidate_log_probs(score_BK), reading.log_probs_BK
    return Outcome(score_BK, log_prior_BK, log_reader_BK, marginal_log_likelihood(log_prior_BK, log_reader_BK))


def gradients(value: Tensor, module: nn.Module) -> dict[str, Tensor]:
    named = dict(module.named_parameters())
    found = torch.autograd.grad(value, list(named.values()), retain_graph=True, allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(named.items(), found, strict=True)
    }


def built(system: TinySystem) -> Retriever:
    with torch.no_grad():
        return system.built_retriever()


def top(system: TinySystem, masked: list[MaskedSentence], count: int) -> np.ndarray:
    with torch.no_grad():
        queries = [sentence.tokens for sentence in masked]
        return CandidatePolicy(count).retrieve(built(system), queries).rows_BK


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = max(1.0, gradient.abs().max().item())
        assert (found[name] - gradient).abs().max() <= tolerance * scale, name


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("variant", VARIANTS)
def test_appendix_a_holds_for_every_parameter_of_the_retriever(corpus: PreparedCorpus, variant: str) -> None:
    # grad log p(y|x) = sum_z [p(y|z,x)/p(y|x) - 1] p(z|x) grad f(x,z), every f(x,z) computed by itself
    system = build(corpus, variant)
    masked = sentences(system, 1)
    rows_1K = top(system, masked, 8)
    outcome = compute(system, masked, rows_1K)
    found = gradients(outcome.log_likelihood_B.sum(), system.embedder)

    with torch.no_grad():
        likelihood_K, prior_K = outcome.log_reader_BK[0].exp(), outcome.log_prior_BK[0].exp()
        r_K = (likelihood_K / (likelihood_K * prior_K).sum() - 1) * prior_K
        engine_K = score_gradient(outcome.log_prior_BK, outcome.log_reader_BK)[0]
    torch.testing.assert_close(engine_K, r_K, atol=1e-12, rtol=0)
    expected = {name: torch.zeros_like(value) for name, value in found.items()}
    retriever = system.retriever()
    for k in range(8):
        score_11 = retriever.score(retriever.embed_queries([masked[0].tokens]), rows_1K[:, k : k + 1])
        for name, gradient in gradients(score_11.sum(), system.embedder).items():
            expected[name] += r_K[k] * gradient
    assert_equal(found, expected, 1e-11)
    learned = [name for name, value in found.items() if value.abs().max() > 0]
    for part in ("query_encoder", "query_projection"):  # the gradient is not empty
        assert any(name.startswith(part) for name in learned)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_the_finite_differences_of_the_likelihood(corpus: PreparedCorpus, variant: str) -> None:
    # Of every tensor of the towers and of the reader, along a random direction.
    system = build(corpus, variant)
    masked = sentences(system, 1)
    rows_1K = top(system, masked, 4)
    value = compute(system, masked, rows_1K).log_likelihood_B.sum()
    generator = torch.Generator().manual_seed(0)
    step = 1e-5
    for module in (system.embedder, system.reader):
        for name, gradient in gradients(value, module).items():
            parameter = module.get_parameter(name)
            direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            direction /= direction.norm()
            with torch.no_grad():
                parameter.add_(direction, alpha=step)
                up = compute(system, masked, rows_1K).log_likelihood_B.sum()
                parameter.sub_(direction, alpha=2 * step)
                down = compute(system, masked, rows_1K).log_likelihood_B.sum()
                parameter.add_(direction, alpha=step)
            slope = (up - down).item() / (2 * step)
            assert slope == pytest.approx((gradient * direction).sum().item(), abs=1e-7, rel=1e-5), name


@pytest.mark.usefixtures("exact")
def test_appendix_b_one_perfect_passage_is_supervised_learning(corpus: PreparedCorpus) -> None:
    # p(y|z*,x) = 1 and 0 elsewhere: over the whole corpus, the towers learn log p(z*|x) and nothing else.
    system = build(corpus)
    masked = sentences(system, 1)
    rows_1N = np.array([[NULL, *range(len(system.passages))]])
    retriever = system.retriever()
    log_prior_1N = candidate_log_probs(retriever.score(retriever.embed_queries([masked[0].tokens]), rows_1N))
    gold = 17
    log_reader_1N = torch.full_like(log_prior_1N, -1e4)
    log_reader_1N[0, gold] = 0.0
    found = gradients(marginal_log_likelihood(log_prior_1N, log_reader_1N).sum(), system.embedder)
    assert_equal(found, gradients(log_prior_1N[0, gold], system.embedder), 1e-12)
    assert max(gradient.abs().max().item() for gradient in found.values()) > 1e-3


@pytest.mark.usefixtures("exact")
def test_eq_1_is_the_enumeration_of_the_whole_corpus(corpus: PreparedCorpus, tmp_path: Path) -> None:
    # The engine in batches against transformers in float64, one passage at a time, and the plain sum of Eq. 1.
    system = build(corpus)
    reference = Reference(system, tmp_path)
    masked = sentences(system, 1)
    [sentence] = masked
    rows_1N = top(system, masked, len(system.passages) + 1)
    with torch.no_grad():
        outcome = compute(system, masked, rows_1N)
    assert sorted(rows_1N[0].tolist()) == [NULL, *range(len(system.passages))]
    vector_D = reference.query(sentence.tokens)
    weights, likelihoods = [], []
    for row in rows_1N[0].tolist():
        body = system.passages.bodies[row] if row >= 0 else np.empty(0, np.int64)
        weights.append(np.exp((vector_D @ reference.document(row)).item()))
        words_MV = reference.masked_words(sentence.tokens, body, sentence.positions)
        likelihoods.append(np.exp(sum(words_MV[m, target].item() for m, target in enumerate(sentence.targets))))
    expected = sum(w / sum(weights) * p for w, p in zip(weights, likelihoods, strict=True))
    assert outcome.log_likelihood_B.item() == pytest.approx(np.log(expected), abs=1e-9)
    torch.testing.assert_close(outcome.log_reader_BK[0], torch.tensor(likelihoods).log(), atol=1e-9, rtol=0)


@pytest.mark.usefixtures("exact")
def test_the_top_k_approach_the_whole_corpus(corpus: PreparedCorpus) -> None:
    system = build(corpus)
    masked = sentences(system, 4)
    total = len(system.passages) + 1
    rows_BN = top(system, masked, total)
    with torch.no_grad():
        whole = compute(system, masked, rows_BN)
    exact_B, prior_BN = whole.log_likelihood_B.exp(), whole.log_prior_BK.exp()
    errors, left = [], []
    for count in (2, 4, 8, 16, 32, 64, 128, 256, total):
        rows_BK = top(system, masked, count)
        assert np.array_equal(rows_BK, rows_BN[:, :count])  # the search finds the best, in the same order
        log_prior_BK = candidate_log_probs(whole.score_BK[:, :count])
        found_B = marginal_log_likelihood(log_prior_BK, whole.log_reader_BK[:, :count]).exp()
        errors.append((found_B - exact_B).abs())
        left.append(1 - prior_BN[:, :count].sum(1))
        assert (errors[-1] <= left[-1] + 1e-12).all()  # off by no more than the probability left out
    assert torch.all(torch.stack(left).diff(dim=0) < 0)
    assert errors[-1].max() < 1e-14  # k = N is exact
    assert torch.all(torch.stack(errors[-3:]).diff(dim=0) < 0)  # and the end is approached


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-5)])
def test_padding_batch_and_order_of_candidates_do_not_matter(
    corpus: PreparedCorpus, request: pytest.FixtureRequest, dtype: torch.dtype, tolerance: float
) -> None:
    if dtype == torch.float64:
        request.getfixturevalue("exact")
    system = build(corpus, dtype=dtype)
    masked = sentences(system, 5)
    rows_BK = top(system, masked, 6)
    whole = compute(system, masked, rows_BK)
    expected = [gradients(whole.log_likelihood_B.sum(), module) for module in (system.embedder, system.reader)]

    def same(likelihood_B: Tensor) -> None:
        torch.testing.assert_close(likelihood_B, whole.log_likelihood_B, atol=tolerance, rtol=tolerance)
        for module, wanted in zip((system.embedder, system.reader), expected, strict=True):
            assert_equal(gradients(likelihood_B.sum(), module), wanted, 10 * tolerance)

    order = np.random.default_rng(0).permutation(6)
    shuffled = compute(system, masked, rows_BK[:, order])
    same(shuffled.log_likelihood_B)
    torch.testing.assert_close(shuffled.log_reader_BK, whole.log_reader_BK[:, order], atol=tolerance, rtol=tolerance)
    alone = [compute(system, [sentence], rows_BK[b : b + 1]) for b, sentence in enumerate(masked)]
    same(torch.cat([outcome.log_likelihood_B for outcome in alone]))
    backwards = compute(system, masked[::-1], rows_BK[::-1].copy())
    same(backwards.log_likelihood_B.flip(0))
    same(compute(system, masked, rows_BK, token_budget=1).log_likelihood_B)  # nothing is padded

    # RU of the null document is 0: to the bit if compared with itself, to rounding if it is read in another column.
    column = int(np.flatnonzero(order == 0)[0])
    assert torch.equal(
        retrieval_utility(whole.log_reader_BK, whole.log_reader_BK[:, 0])[:, 0], torch.zeros(5, dtype=dtype)
    )
    elsewhere_BK = retrieval_utility(shuffled.log_reader_BK, whole.log_reader_BK[:, 0])
    assert elsewhere_BK[:, column].abs().max() < tolerance
