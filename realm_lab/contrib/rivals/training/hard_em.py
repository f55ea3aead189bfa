"""Learn from answers with only one right occurrence (Min et al. 2019): hard EM, the first occurrence, or the sum."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from realm_lab.contrib.rivals.training.selection import SelectionTask
from realm_lab.core.seeding import numpy_generator
from realm_lab.models.spans import NO_ANSWER, answer_log_probs
from realm_lab.training.finetune import Spans

# Shapes: N passages, L positions, W widths

MOST_HARD = 0.8  # largest probability of a hard update (the released code's)
Variant = Literal["hard_em", "first_only", "mml"]


def best_answer_log_probs(log_probs_NLW: Tensor, is_answer_NLW: Tensor) -> Tensor:
    """Return log max over the spans in S(z, y) of p(s|z,x) (hard EM; Min et al. 2019); NO_ANSWER if z contains none.
    [N]."""
    return log_probs_NLW.masked_fill(~is_answer_NLW, NO_ANSWER).flatten(1).amax(1)


class HardEmTask(SelectionTask):
    """The solutions of a question are the answer's spans in its positive; the objective is one of

    mml         log sum_s p(s|z,x), the marginal likelihood;
    first_only  log p(s_1|z,x) of the first of them;
    hard_em     log max_s p(s|z,x), in a step t with probability min(t / tau, MOST_HARD), else the same as mml.

    `marginal_log_likelihood` in the log is the same quantity as the loss.
    """

    def __init__(self, *models: Any, variant: Variant, tau_steps: int):
        super().__init__(*models)
        self._variant, self._tau_steps = variant, tau_steps

    def train_step(self, step: int) -> dict[str, float]:
        """Run one step, and report if it was a hard one."""
        drawn = numpy_generator(self.seed, "hard-update", step).random()
        hard = self._variant == "hard_em" and drawn < min(step / self._tau_steps, MOST_HARD)
        self._over_spans = best_answer_log_probs if hard else answer_log_probs
        return super().train_step(step) | {"hard_update": float(hard)}

    def _spans(self, row: int, number: int, query_length: int) -> Spans:
        spans = super()._spans(row, number, query_length)
        return spans[:1] if self._variant == "first_only" else spans
