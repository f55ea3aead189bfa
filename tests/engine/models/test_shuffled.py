"""The controls of random_masks_rates.yaml and robust_controls.yaml."""

import torch

from experiments.shuffled import gated_shuffled, shuffled
from realm_lab.engine.models.objectives import Gate
from realm_lab.engine.models.realm import marginal_log_likelihood


def test_what_a_passage_is_rewarded_for_does_not_depend_on_its_own_likelihood() -> None:
    generator = torch.Generator().manual_seed(0)
    log_reader_BK = -8 + 0.1 * torch.randn(400, 6, generator=generator)
    log_reader_BK[:, 2] = 0.0 + 0.1 * torch.rand(400, generator=generator)  # the passage with the answer
    score_BK = torch.zeros(400, 6, requires_grad=True)

    log_prior_BK = score_BK.log_softmax(1)

    (rewarded_BK,) = torch.autograd.grad(
        marginal_log_likelihood(log_prior_BK, log_reader_BK).sum(), score_BK, retain_graph=True
    )
    (shuffled_BK,) = torch.autograd.grad(shuffled(log_prior_BK, log_reader_BK).sum(), score_BK)

    assert rewarded_BK.mean(0)[2] > 0.8
    assert shuffled_BK.mean(0).abs().max() < 0.1  # over all examples no passage is rewarded


def test_steps_are_as_large_and_are_the_same_again() -> None:
    log_reader_BK = -8 * torch.rand(50, 6, generator=torch.Generator().manual_seed(1))
    log_prior_BK = torch.zeros(50, 6).log_softmax(1)

    once_B = shuffled(log_prior_BK, log_reader_BK)
    torch.testing.assert_close(once_B, marginal_log_likelihood(log_prior_BK, log_reader_BK))  # equal priors: no effect
    assert torch.equal(once_B, shuffled(log_prior_BK, log_reader_BK))


def test_the_gate_leaves_the_shuffled_reward_of_the_helped_sentences() -> None:
    log_reader_BK = -8 * torch.rand(50, 6, generator=torch.Generator().manual_seed(2))
    score_BK = torch.zeros(50, 6, requires_grad=True)
    log_prior_BK = score_BK.log_softmax(1)
    helps_B1 = (log_reader_BK.amax(1) - log_reader_BK[:, 0] > 4.0)[:, None]
    assert 10 < helps_B1.sum() < 40

    value_B = gated_shuffled(log_prior_BK, log_reader_BK, Gate(threshold=4.0))
    (gated_BK,) = torch.autograd.grad(value_B.sum(), score_BK, retain_graph=True)
    (shuffled_BK,) = torch.autograd.grad(shuffled(log_prior_BK, log_reader_BK).sum(), score_BK)

    torch.testing.assert_close(gated_BK, shuffled_BK * helps_B1)
