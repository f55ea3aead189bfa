"""Controls: the objectives `marginal` and `gated` with log p(y|z,x) shuffled among the candidates. random_masks_rates,
robust_controls and real_entities use them."""

from __future__ import annotations

from torch import Tensor

from realm_lab.engine.models.objectives import Gate, is_helped
from realm_lab.engine.models.realm import marginal_log_likelihood


def shuffled(log_prior_BK: Tensor, log_reader_BK: Tensor) -> Tensor:
    """log sum_z p(y|s(z),x) p(z|x), s a permutation of the candidates and the null document. [B], in nats.

    The permutation sorts them by the digits of log p(y|z,x) after the sixth decimal, which do not depend on the content
    of the passage. Equal numbers give equal permutations, so that a resumed run takes the same steps.
    """
    order_BK = (log_reader_BK.detach().double() * 1.0e6).frac().abs().argsort(dim=1)
    return marginal_log_likelihood(log_prior_BK, log_reader_BK.gather(1, order_BK))


def gated_shuffled(log_prior_BK: Tensor, log_reader_BK: Tensor, options: Gate) -> Tensor:
    """`shuffled` with the gate of `gated`: the same sentences pass it, but no passage is rewarded for its content."""
    helped_B = is_helped(log_prior_BK, log_reader_BK, options)
    return shuffled(log_prior_BK.where(helped_B[:, None], log_prior_BK.detach()), log_reader_BK)
