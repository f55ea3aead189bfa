"""BM25 with the span reader: passages by their words, p(z|x) the softmax of BM25's scores, the reader fine-tuned on
them. What separates it from the warm start is retrieval alone."""

# Shapes: B questions, K passages

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from realm_lab.systems.reading import SpanReader
from realm_lab.systems.realm import WARM_START
from realm_lab.systems.registry import EVALUATE, Retrieved, Stage, register_system

if TYPE_CHECKING:
    from torch import Tensor

    from realm_lab.models.embedder import Embedder
    from realm_lab.systems.bm25 import Bm25
    from realm_lab.systems.context import Context
    from realm_lab.tracking.run_dir import StageRun

FINETUNE = Stage("finetune", ("model", "finetune"), "realm_lab.systems.bm25_reader:finetune", by_system=True)


@register_system
class Bm25Reader(SpanReader):
    """BM25 and a fine-tuned reader."""

    name = "bm25_reader"
    title = "BM25 with a reader"
    stages = (WARM_START, FINETUNE, EVALUATE)

    @cached_property
    def _bm25(self) -> Bm25:
        from realm_lab.systems.bm25 import Bm25

        return Bm25(self.passages) if self._knowledge else self.context.bm25

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        return self._bm25.search(questions, k)


class FixedPassages:
    """The training questions' passages by BM25, where fine-tuning expects a retriever: a "vector" is the number of a
    question. The embedder is carried along untrained."""

    def __init__(self, context: Context, embedder: Embedder, depth: int):
        self.embedder, self.passages = embedder, context.passages
        questions = context.corpus.questions("train")
        self._numbers = {questions.tokens[number].tobytes(): number for number in range(len(questions))}
        self._rows, self._scores = context.bm25.search(questions.texts, depth)
        self._device = context.device

    def embed_queries(self, queries: Sequence[np.ndarray]) -> Tensor:
        """The number of each question, [B, 1]."""
        import torch

        return torch.tensor([[self._numbers[query.tobytes()]] for query in queries], device=self._device)

    def find(self, number_B1: Tensor, count: int) -> np.ndarray:
        """Rows of the best `count` passages, [B, count]."""
        return self._rows[number_B1[:, 0].cpu().numpy(), :count]

    def indexed_score(self, number_B1: Tensor, rows_BK: np.ndarray) -> Tensor:
        """BM25 of those passages, [B, K]."""
        import torch

        scores_BK = self._scores[number_B1[:, 0].cpu().numpy(), : rows_BK.shape[1]]
        return torch.from_numpy(scores_BK).to(self._device)


def finetune(context: Context, run: StageRun) -> None:
    """Fine-tune the reader on what BM25 finds; the query tower stays as it is."""
    from realm_lab.systems.initial import initial_state
    from realm_lab.systems.stages import tune

    settings = context.params.finetune.model_copy(update={"train_query_tower": False})
    initial = initial_state(context, "finetune")
    depth = max(settings.candidates, settings.early_loss_candidates)
    tune(context, run, initial, FixedPassages(context, initial.embedder, depth), settings)
