"""The paper's equations against derivatives, enumeration and its appendices."""

import torch
from torch import Tensor

from realm_lab.engine.models.realm import (
    candidate_log_probs,
    marginal_log_likelihood,
    marginal_log_likelihood_per_token,
    reader_log_probs,
    score_gradient,
)

# Shapes: B examples, K candidates, M masked tokens, D embedding size, N passages of a corpus


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def log_likelihood(score_BK: Tensor, log_reader_BK: Tensor) -> Tensor:
    return marginal_log_likelihood(candidate_log_probs(score_BK), log_reader_BK)


def test_gradient_in_the_scores_is_that_of_appendix_a() -> None:
    score_BK, log_reader_BK = 3 * draw(4, 6), -4 * draw(4, 6, seed=1).abs()
    (by_autograd,) = torch.autograd.grad(log_likelihood(score_BK.requires_grad_(), log_reader_BK).sum(), score_BK)
    with torch.no_grad():
        log_prior_BK = candidate_log_probs(score_BK)
        found = score_gradient(log_prior_BK, log_reader_BK)
        torch.testing.assert_close(found, by_autograd, atol=1e-12, rtol=1e-10)
        likelihood_B1 = (log_reader_BK.exp() * log_prior_BK.exp()).sum(1, keepdim=True)
        literal_BK = (log_reader_BK.exp() / likelihood_B1 - 1) * log_prior_BK.exp()  # r(z) as printed
        torch.testing.assert_close(found, literal_BK, atol=1e-12, rtol=1e-10)


def _values(score_BK: Tensor, token_BKM: Tensor, is_masked_BM: Tensor) -> tuple[Tensor, Tensor]:
    log_prior_BK = candidate_log_probs(score_BK)
    return (
        marginal_log_likelihood(log_prior_BK, reader_log_probs(token_BKM, is_masked_BM)),
        marginal_log_likelihood_per_token(log_prior_BK, token_BKM, is_masked_BM),
    )


def test_the_marginals_differ_by_how_passages_help_tokens_together() -> None:
    # log E_z[p1 p2] - log E_z[p1] E_z[p2] has the sign of the covariance over p(z|x). Passages that help both tokens
    # or none favour Eq. 1 (Jensen, where p1 = p2); passages that help one at the cost of the other, the released code.
    score_BK, log_first_BK = draw(6, 5), -draw(6, 5, seed=1).abs()
    both = torch.ones(6, 2, dtype=torch.bool)
    prior_BK = candidate_log_probs(score_BK).exp()
    against_BK = torch.log(1.001 - log_first_BK.exp())
    for log_second_BK, sign in ((log_first_BK, 1), (against_BK, -1)):
        example_B, token_B = _values(score_BK, torch.stack([log_first_BK, log_second_BK], dim=2), both)
        first, second = log_first_BK.exp(), log_second_BK.exp()
        mean_first, mean_second = (prior_BK * first).sum(1), (prior_BK * second).sum(1)
        covariance_B = (prior_BK * (first - mean_first[:, None]) * (second - mean_second[:, None])).sum(1)
        assert (sign * (example_B - token_B) > 1e-6).all()
        expected_B = torch.log1p(covariance_B / (mean_first * mean_second))
        torch.testing.assert_close(example_B - token_B, expected_B, atol=1e-10, rtol=0)
