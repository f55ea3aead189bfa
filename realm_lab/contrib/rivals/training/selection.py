"""A reader that learns to select the passage and to read it, from one positive and several negatives of each question
(Karpukhin et al. 2020, section 6.1), whatever found the passages."""

# Shapes: B questions, C passages found, K passages read

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from realm_lab.core.seeding import numpy_generator
from realm_lab.corpus.store import NO_ROW
from realm_lab.models.spans import holds_answer
from realm_lab.training.finetune import FinetuneTask, Found

DEPTH = 100  # passages found in which positives and negatives are drawn (the paper's)


class SelectionTask(FinetuneTask):
    """-log p(z+|x) - log p(y|z+,x) for a positive z+ among `finetune.candidates` - 1 negatives, all drawn again in
    every step from the first DEPTH passages: one that contains the answer, and others that do not.

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
        """Return a positive followed by negatives, and the answer's spans in the positive; empty if there is none."""
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
