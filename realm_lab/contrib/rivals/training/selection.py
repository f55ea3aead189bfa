"""A reader that learns to select the passage and to read it, from one positive and several negatives of each question
(Karpukhin et al. 2020, section 6.1), whatever retriever finds the passages. HardEmTask (Min et al. 2019) chooses the
occurrences of the answer that count: the most likely one, the first, or all."""

# Shapes: B questions, C passages found, K passages read, N passages, L positions, W widths

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from realm_lab.engine.core.seeding import numpy_generator
from realm_lab.engine.corpus.store import NO_ROW
from realm_lab.engine.models.spans import NO_ANSWER, answer_log_probs, holds_answer
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.initial import initial_state
from realm_lab.engine.systems.reading import PassageSystem
from realm_lab.engine.systems.stages.finetune import FixedPassages, tune
from realm_lab.engine.training.finetune import FinetuneTask, Found, Spans
from realm_lab.records.run import StageRun

DEPTH = 100  # positives and negatives are drawn from this many passages found (the paper's)
MOST_HARD = 0.8  # largest probability of a hard update (the released code's)


class SelectionTask(FinetuneTask):
    """-log p(z+|x) - log p(y|z+,x), with p(z|x) over a positive z+, which contains the answer, and at most `negatives`
    (the system's option) passages, which do not. All are drawn again in every step from the first DEPTH passages.

    This is the marginal likelihood of FinetuneTask over these passages, with p(z|x) from the passage-selection head
    (`finetune.softmax: selected`), since the answer is in only one of them.
    """

    _step = 0

    def train_step(self, step: int) -> dict[str, float]:
        """Run one step; a question without a positive is left out of it."""
        self._step = step
        return super().train_step(step)

    def _find(self, numbers: np.ndarray) -> tuple[Found, Tensor]:
        size = self._settings.candidates
        if not len(numbers):  # more ranks than questions
            return Found([], np.empty((0, size), np.int64), [], np.empty((0, 0), bool)), torch.empty(0)
        queries = [self._questions.tokens[int(number)] for number in numbers]
        query_BD = self.retriever.embed_queries(queries)
        found_BC = self.retriever.find(query_BD, DEPTH)
        drawn = [self._draw(int(number), rows) for number, rows in zip(numbers, found_BC, strict=True)]
        rows_BK = np.full((len(numbers), size), NO_ROW, np.int64)
        for own, (rows, _) in zip(rows_BK, drawn, strict=True):
            own[: len(rows)] = rows
        spans = [[positive, *[[]] * (size - 1)] for _, positive in drawn]
        return Found(queries, rows_BK, spans, np.zeros((len(numbers), 0), bool)), query_BD

    def _draw(self, number: int, rows_C: np.ndarray) -> tuple[list[int], Any]:
        """Return a positive followed by negatives, and the answer's spans in the positive; empty without a positive."""
        rng = numpy_generator(self.seed, "passages-read", self._step, number)
        held_C = holds_answer(self.retriever.passages.bodies, rows_C, self._answers[number])
        length = len(self._questions.tokens[number])
        spans = {int(row): found for row in rows_C[held_C] if (found := self._spans(int(row), number, length))}
        if not spans:
            return [], []
        positive = int(rng.choice(list(spans)))
        others = rows_C[~held_C & (rows_C >= 0)]
        negatives = rng.choice(others, min(len(others), self._settings.candidates - 1), replace=False)
        return [positive, *negatives.tolist()], spans[positive]


def best_answer_log_probs(log_probs_NLW: Tensor, is_answer_NLW: Tensor) -> Tensor:
    """Return log max over the spans in S(z, y) of p(s|z,x) (hard EM; Min et al. 2019); NO_ANSWER if z contains none.
    [N]."""
    return log_probs_NLW.masked_fill(~is_answer_NLW, NO_ANSWER).flatten(1).amax(1)


class HardEmTask(SelectionTask):
    """The solutions of a question are the answer's spans in its positive z. The loss takes as log p(y|z,x) one of

    mml         log sum_s p(s|z,x), the marginal likelihood;
    first_only  log p(s_1|z,x) of the first of them;
    hard_em     log max_s p(s|z,x), in a step t with probability min(t / tau, MOST_HARD), else the same as mml.

    The logged `marginal_log_likelihood` is minus the loss: in a hard step it has the maximum, not the sum.
    """

    def __init__(self, *models: Any, variant: str, tau_steps: int):
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


def finetune(context: Context, run: StageRun, make_task: Callable[..., SelectionTask] = SelectionTask) -> None:
    """Fine-tune the reader on passages drawn from those that the system finds."""
    system = cast(PassageSystem, context.system)
    candidates = min(1 + system.own.negatives, len(context.passages))
    fixed = {"train_query_tower": False, "early_loss_candidates": 0, "candidates": candidates}
    settings = context.params.finetune.model_copy(update=fixed)
    initial = initial_state(context, "finetune")
    tune(context, run, initial, FixedPassages(context, initial.embedder, DEPTH), settings, make_task)


def finetune_hard_em(context: Context, run: StageRun) -> None:
    """Fine-tune the reader with the objective that the option `variant` names (see HardEmTask)."""
    own = cast(PassageSystem, context.system).own
    finetune(context, run, partial(HardEmTask, variant=own.variant, tau_steps=own.tau_steps))
