"""Training objectives: functions of log p(z|x) and log p(y|z,x) that define the retriever's training signal.

An objective is a function (log_prior_BK, log_reader_BK) -> [B], per example, in nats. Its options, if it has any, are a
third argument (records/plugins.py). A random objective draws from torch's generator, which every step seeds. An
objective is registered under a name, or `pretrain.objective` or `finetune.objective` names custom code,
`package.module:function`,
    def best_passage(log_prior_BK, log_reader_BK):
        return (log_prior_BK + log_reader_BK).amax(1)
`log_prior_BK` is log p(z|x) over the candidates and trains the retriever, `log_reader_BK` is log p(y|z,x) and trains
the reader; `detach()` stops a gradient. The null document is a candidate like any other. A column that a small corpus
left empty is not a candidate: its log p(z|x) is near -10,000, and `is_candidate` is false.

The training signals of other papers are in contrib/objectives.py.
"""

# Shapes: B examples, K candidates

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from realm_lab.engine.params.sections import Section
from realm_lab.errors import UserError
from realm_lab.records.plugins import Choice, Kind, Plugin

if TYPE_CHECKING:  # a study's file is checked without torch
    from torch import Tensor

Objective = Callable[["Tensor", "Tensor"], "Tensor"]
OBJECTIVES: Kind[Callable[..., Tensor]] = Kind("objective", "function", "log_prior_BK, log_reader_BK")
register_objective = OBJECTIVES.register  # makes an objective selectable as `pretrain.objective`, `finetune.objective`

LEAST_LOG_PRIOR = -5.0e3  # of a candidate; a column without a candidate has about NO_SCORE (retrieval/rows.py)
COMPARES_NULL = frozenset({"gated"})  # objectives whose column 0 is the null document even if that is no candidate
NOWHERE = -1.0e20  # log-likelihood in a column without a candidate: below NO_ANSWER (spans.py), and finite


class Gate(Section):
    """Option of the objective `gated`."""

    threshold: Annotated[float, Field(ge=0.0, le=1000.0)] = 2.0
    """Nats that the best candidate must add to log p(y|null,x) before its sentence trains the retriever."""


def training_objective(parameter: str, choice: Choice) -> Objective:
    """Return the objective that `parameter` names, with its options. The shape of the values that custom code returns
    is checked at every call. UserError: an unknown name, or a wrong option."""
    chosen = OBJECTIVES.choose(parameter, choice)
    return _checked(chosen) if chosen.is_own else chosen


def is_candidate(log_prior_BK: Tensor) -> Tensor:
    """True for columns that hold a candidate, bool [B, K]; the null document is one."""
    return log_prior_BK > LEAST_LOG_PRIOR


@register_objective("marginal")
def marginal(log_prior_BK: Tensor, log_reader_BK: Tensor) -> Tensor:
    """log p(y|x) = log sum_z p(y|z,x) p(z|x) (Guu et al. 2020, Eq. 1); nothing is detached."""
    from realm_lab.engine.models.realm import marginal_log_likelihood

    return marginal_log_likelihood(log_prior_BK, log_reader_BK)


@register_objective("gated")
def gated(log_prior_BK: Tensor, log_reader_BK: Tensor, options: Gate) -> Tensor:
    """Eq. 1, with the retriever trained only by sentences with `is_helped` true (in neither paper nor released code).

    The value and the reader's gradient come from Eq. 1. The retriever's gradient, r(z) = [p(y|z,x) / p(y|x) - 1] p(z|x)
    (Appendix A), is set to 0 for a sentence that no candidate helps: there r(z) follows small differences of p(y|z,x)
    between passages without the answer. A null document that is no candidate is read for the comparison only, and
    has no share of p(z|x).
    """
    helped_B = is_helped(log_prior_BK, log_reader_BK, options)
    return marginal(log_prior_BK.where(helped_B[:, None], log_prior_BK.detach()), log_reader_BK)


def is_helped(log_prior_BK: Tensor, log_reader_BK: Tensor, options: Gate) -> Tensor:
    """True if max_z log p(y|z,x) - log p(y|null,x), the best retrieval utility (Eq. 2) of a candidate, is above the
    threshold. Column 0 is the null document, a candidate or not. Returns bool [B]."""
    best_B = log_reader_BK.masked_fill(~is_candidate(log_prior_BK), NOWHERE).amax(1)
    return best_B - log_reader_BK[:, 0] > options.threshold


def _checked(chosen: Plugin[Callable[..., Tensor]]) -> Objective:
    def checked(log_prior_BK: Tensor, log_reader_BK: Tensor) -> Tensor:
        value_B: Tensor = chosen(log_prior_BK, log_reader_BK)
        shape = getattr(value_B, "shape", None)
        if shape != log_prior_BK.shape[:1]:
            given = type(value_B).__name__ if shape is None else f"the shape {tuple(shape)}"
            where = f"parameter '{chosen.parameter}': '{chosen.name}'"
            raise UserError(f"{where} returned {given}; return a tensor [{len(log_prior_BK)}], one number per example")
        return value_B

    return checked
