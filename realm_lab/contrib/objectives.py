"""Training objectives of other papers: functions of log p(z|x) and log p(y|z,x) as in engine/models/objectives.py.

EMDR2 and Atlas have a reader of all passages at once, p(y|x,Z), independent of p(z|x). The reader here reads one
passage at a time, and `set_log_likelihood` replaces p(y|x,Z). To train the retriever, both papers read the passages
without dropout; realm_lab uses the likelihoods of the training step, with dropout.
"""

# Shapes: B examples, K candidates

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from realm_lab.engine.models.objectives import NOWHERE, is_candidate, marginal, register_objective
from realm_lab.engine.params.sections import Section

if TYPE_CHECKING:  # a study's file is read without torch, and imports this
    from torch import Tensor


class Distillation(Section):
    """Options of perplexity_distillation and leave_one_out."""

    temperature: Annotated[float, Field(ge=0.001, le=1000.0)] = 1.0
    """Divides the log-likelihoods before their softmax, the target of p(z|x). Atlas has 1 in its equations, and 0.01 in
    its code, for the mean over an answer's tokens; REPLUG (Shi et al. 2023) calls it beta."""


def set_log_likelihood(log_prior_BK: Tensor, log_reader_BK: Tensor) -> Tensor:
    """log p(y|x,Z) = log 1/|Z| sum_z p(y|z,x), independent of the retriever's p(z|x). Returns [B], in nats.

    The mean of log p(y|z,x) would instead train the reader to answer from passages without the answer.
    """
    real_BK = is_candidate(log_prior_BK)
    size_B = real_BK.sum(1, dtype=log_reader_BK.dtype)
    return log_reader_BK.masked_fill(~real_BK, NOWHERE).logsumexp(1) - size_B.log()


@register_objective("emdr2")
def emdr2(log_prior_BK: Tensor, log_reader_BK: Tensor) -> Tensor:
    """log p(y|x,Z) + log sum_z sg(p(y|z,x)) p(z|x) (EMDR2; Sachan et al. 2021, "End-to-End Training of ...").

    The first term trains only the reader, the second only the retriever: sg detaches the reader. At equal weights the
    retriever's gradient equals that of `marginal`. The reader's gradient weighs passages by p(y|z,x), and in `marginal`
    by p(y|z,x) p(z|x).
    """
    retriever_B = marginal(log_prior_BK, log_reader_BK.detach())
    return set_log_likelihood(log_prior_BK.detach(), log_reader_BK) + retriever_B


@register_objective("perplexity_distillation")
def perplexity_distillation(log_prior_BK: Tensor, log_reader_BK: Tensor, options: Distillation) -> Tensor:
    """log p(y|x,Z) - KL(sg(t) || p(z|x)), t(z) ∝ p(y|z,x)^(1/temperature) (PDist; Izacard et al. 2022, Atlas).

    The first term trains only the reader, the second only the retriever: t is detached. With a reader that does not
    train it is REPLUG's LSR (Shi et al. 2023, temperature beta). t uses the likelihood of the whole answer, as in the
    papers; Atlas's code takes the mean over its tokens, and the mean of the KL's terms instead of their sum.
    """
    reader_B = set_log_likelihood(log_prior_BK.detach(), log_reader_BK)
    return reader_B + distilled(log_prior_BK, log_reader_BK, options.temperature)


@register_objective("leave_one_out")
def leave_one_out(log_prior_BK: Tensor, log_reader_BK: Tensor, options: Distillation) -> Tensor:
    """log p(y|x,Z) - KL(sg(t) || p(z|x)), t(z) ∝ p(y|x, Z without z)^(-1/temperature) (LOOP; Izacard et al. 2022).

    A passage is worth the drop in the answer's likelihood without it, so of two passages with the same content neither
    is worth much. t is detached, as in `perplexity_distillation`. A single candidate has all of t.
    """
    candidates = log_reader_BK.shape[1]
    itself_KK = is_candidate(log_prior_BK).new_zeros(candidates, candidates).fill_diagonal_(True)
    left_out_BKK = itself_KK | ~is_candidate(log_prior_BK)[:, None, :]  # [b, i, j]: Z without i lacks j
    others_BKK = log_reader_BK.detach()[:, None, :].masked_fill(left_out_BKK, NOWHERE)
    reader_B = set_log_likelihood(log_prior_BK.detach(), log_reader_BK)
    return reader_B + distilled(
        log_prior_BK, -others_BKK.logsumexp(2), options.temperature
    )  # the factor 1/(|Z| - 1) is the same for all passages


@register_objective("hard_em")
def hard_em(log_prior_BK: Tensor, log_reader_BK: Tensor) -> Tensor:
    """max_z log [p(y|z,x) p(z|x)]: Eq. 1 with its best passage instead of the sum (Min et al. 2019).

    The reader is trained only on the best passage; p(z|x) also lowers the scores of the other candidates. Min et al.
    take the maximum, or with a probability of .2 or more the sum, over the spans of a passage: the system `hard_em`.
    """
    return (log_prior_BK + log_reader_BK).max(1).values


class Draws(Section):
    """Options of reinforce and jsa."""

    draws: Annotated[int, Field(ge=1, le=1000)] = 1
    """Passages drawn from p(z|x), independently."""


@register_objective("reinforce")
def reinforce(log_prior_BK: Tensor, log_reader_BK: Tensor, options: Draws) -> Tensor:
    """E_z~p(z|x) log p(y|z,x), a lower bound of Eq. 1, by drawn passages (Williams 1992).

    The retriever's gradient is the mean over the draws of [log p(y|z,x) - b] grad log p(z|x), with b the mean of
    log p(y|z,x) over the other draws (0 if there are none). The value is the mean of log p(y|z,x), which trains the
    reader.
    """
    drawn_BR = _drawn(log_prior_BK, options.draws)
    read_BR, others = log_reader_BK.gather(1, drawn_BR), max(1, options.draws - 1)
    reward_BR = read_BR.detach()
    base_BR = (reward_BR.sum(1, keepdim=True) - reward_BR) / others
    signal_B = ((reward_BR - base_BR) * log_prior_BK.gather(1, drawn_BR)).mean(1)
    return read_BR.mean(1) + signal_B - signal_B.detach()


@register_objective("jsa")
def jsa(log_prior_BK: Tensor, log_reader_BK: Tensor, options: Draws) -> Tensor:
    """log p(z|x) + log p(y|z,x) at a passage drawn from p(z|y,x) (joint stochastic approximation: Ou & Song 2020).

    The passage is the last state of a Metropolis chain whose proposals z are the draws from p(z|x). A proposal replaces
    the state z' with the probability p(y|z,x) / p(y|z',x), at most 1. With many draws the mean of the gradient tends to
    Eq. 1's gradient; with one draw, the passage is simply drawn from p(z|x).
    """
    import torch

    drawn_BR = _drawn(log_prior_BK, options.draws)
    read_BR = log_reader_BK.detach().gather(1, drawn_BR)
    chance_BR = torch.rand_like(read_BR).log()
    state_B = torch.zeros_like(drawn_BR[:, 0])  # number of the draw
    for number in range(1, options.draws):
        now_B = read_BR.gather(1, state_B[:, None])[:, 0]
        is_accepted_B = chance_BR[:, number] < read_BR[:, number] - now_B
        state_B = state_B.where(~is_accepted_B, number)
    chosen_B1 = drawn_BR.gather(1, state_B[:, None])
    return (log_prior_BK + log_reader_BK).gather(1, chosen_B1)[:, 0]


def _drawn(log_prior_BK: Tensor, draws: int) -> Tensor:
    """Draw columns from p(z|x) with replacement, int64 [B, draws]."""
    drawn_BR: Tensor = log_prior_BK.detach().exp().multinomial(draws, replacement=True)
    return drawn_BR


def distilled(log_prior_BK: Tensor, worth_BK: Tensor, temperature: float) -> Tensor:
    """-KL(sg(t) || p(z|x)), t the softmax of worth / temperature over the candidates. Returns [B], in nats."""
    real_BK = is_candidate(log_prior_BK)
    target_BK = (worth_BK.detach() / temperature).masked_fill(~real_BK, NOWHERE).softmax(1)
    cross_B = (target_BK * log_prior_BK.masked_fill(~real_BK, 0.0)).sum(1)
    return cross_B - target_BK.xlogy(target_BK).sum(1)
