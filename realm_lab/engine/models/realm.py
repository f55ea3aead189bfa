"""The equations of REALM (Guu et al. 2020), each in one function."""

# Shapes: B examples, K candidates, M masked tokens, D embedding size

from __future__ import annotations

import torch
from torch import Tensor


def retrieval_score(query_BD: Tensor, document_BKD: Tensor) -> Tensor:
    """f(x, z) = Embed_input(x)^T Embed_doc(z), section 3.2. Returns [B, K]."""
    return torch.einsum("bd,bkd->bk", query_BD, document_BKD)


def candidate_log_probs(score_BK: Tensor) -> Tensor:
    """log p(z|x) = f(x, z) - log sum_z' exp f(x, z') over the candidates, section 3.2. Returns [B, K]."""
    return score_BK.log_softmax(dim=1)


def reader_log_probs(token_log_probs_BKM: Tensor, is_masked_BM: Tensor) -> Tensor:
    """log p(y|z,x) = sum_j log p(y_j|z,x) over the masked tokens, section 3.2. Returns [B, K], in nats."""
    return (token_log_probs_BKM * is_masked_BM[:, None, :]).sum(dim=2)


def marginal_log_likelihood(candidate_log_probs_BK: Tensor, reader_log_probs_BK: Tensor) -> Tensor:
    """log p(y|x) = log sum_z p(y|z,x) p(z|x), Eq. 1. Returns [B], in nats."""
    return (candidate_log_probs_BK + reader_log_probs_BK).logsumexp(dim=1)


def marginal_log_likelihood_per_token(
    candidate_log_probs_BK: Tensor, token_log_probs_BKM: Tensor, is_masked_BM: Tensor
) -> Tensor:
    """sum_j log sum_z p(y_j|z,x) p(z|x): trained by the released code instead of Eq. 1. Returns [B], in nats."""
    marginal_BM = (candidate_log_probs_BK[:, :, None] + token_log_probs_BKM).logsumexp(dim=1)
    return (marginal_BM * is_masked_BM).sum(dim=1)


def candidate_posterior(candidate_log_probs_BK: Tensor, reader_log_probs_BK: Tensor) -> Tensor:
    """p(z|y,x) by Bayes' rule, Appendix A. Returns [B, K]."""
    return (candidate_log_probs_BK + reader_log_probs_BK).softmax(dim=1)


def score_gradient(candidate_log_probs_BK: Tensor, reader_log_probs_BK: Tensor) -> Tensor:
    """r(z) = [p(y|z,x) / p(y|x) - 1] p(z|x) = d log p(y|x) / d f(x, z), Appendix A. Returns [B, K]."""
    return candidate_posterior(candidate_log_probs_BK, reader_log_probs_BK) - candidate_log_probs_BK.exp()


def retrieval_utility(reader_log_probs_BK: Tensor, null_log_probs_B: Tensor) -> Tensor:
    """RU(z|x) = log p(y|z,x) - log p(y|null,x), Eq. 2. Returns [B, K], in nats."""
    return reader_log_probs_BK - null_log_probs_B[:, None]
