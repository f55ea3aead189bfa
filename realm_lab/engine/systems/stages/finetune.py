"""Open-QA fine-tuning of one run: of reader and query tower, or only of the reader."""

# Shapes: B questions, K passages

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from realm_lab.engine.core.seeding import derive_seed
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.params.parameters import Finetune
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.initial import Initial, initial_state
from realm_lab.engine.systems.reading import SpanReader
from realm_lab.engine.systems.stages.ending import compile_encoders, finish
from realm_lab.engine.training.finetune import FinetuneTask
from realm_lab.engine.training.loop import train
from realm_lab.records.run import StageRun


def finetune(context: Context, run: StageRun) -> None:
    """Open-QA fine-tuning; the document tower and its index stay as they are."""
    initial = initial_state(context, "finetune")
    tune(context, run, initial, context.retriever(initial.embedder), context.params.finetune)


def finetune_reader(context: Context, run: StageRun) -> None:
    """Open-QA fine-tuning of only the reader, on passages that the system finds beforehand. The query tower stays as
    it is, and the early loss, which would train only that tower, is left out."""
    fixed = {"train_query_tower": False, "early_loss_candidates": 0}
    settings = context.params.finetune.model_copy(update=fixed)
    initial = initial_state(context, "finetune")
    tune(context, run, initial, FixedPassages(context, initial.embedder, settings.candidates), settings)


class FixedPassages:
    """Passages of the training questions, found once by a fixed retriever, with the interface of `Retriever`. A
    "vector" is the number of a question. The embedder is carried along untrained."""

    def __init__(self, context: Context, embedder: Embedder, depth: int):
        self.embedder = embedder
        questions = context.corpus.questions("train")
        self._numbers = {questions.tokens[number].tobytes(): number for number in range(len(questions))}
        system = context.system.before_finetuning()
        assert isinstance(system, SpanReader)
        self.passages, (self._rows, self._scores) = system.readable(questions.texts, depth)
        self._device = context.device

    def embed_queries(self, queries: Sequence[np.ndarray]) -> Tensor:
        """Return the number of each question, [B, 1]."""
        return torch.tensor([[self._numbers[query.tobytes()]] for query in queries], device=self._device)

    def find(self, number_B1: Tensor, count: int) -> np.ndarray:
        """Return rows of the best `count` passages, [B, count]."""
        return self._rows[number_B1[:, 0].cpu().numpy(), :count]

    def indexed_score(self, number_B1: Tensor, rows_BK: np.ndarray) -> Tensor:
        """Return the retriever's scores of the passages that `find` returns, [B, K]."""
        scores_BK = self._scores[number_B1[:, 0].cpu().numpy(), : rows_BK.shape[1]]
        return torch.from_numpy(scores_BK).to(self._device)


def tune(
    context: Context,
    run: StageRun,
    initial: Initial,
    retriever: Any,
    settings: Finetune,
    make_task: Callable[..., FinetuneTask] = FinetuneTask,
) -> None:
    """Fine-tune a reader, and the query tower if `settings` ask for it, on the results of a retriever (or an object
    with its methods `embed_queries`, `find` and `indexed_score`)."""
    params = context.params.model_copy(update={"finetune": settings})
    reader, embedder, null_offset = initial
    compile_encoders(params, reader.encoder, embedder.query_encoder, embedder.document_encoder)
    questions = context.corpus.questions("train")
    if settings.softmax == "selected":
        reader.add_selection(torch.Generator().manual_seed(derive_seed(context.initial_seed, "passage-selection")))
    seed = context.order_seed(run.stage)
    task = make_task(params, seed, retriever, reader, questions, context.tokenizer, context.special)
    train(task, run, params.launch, context.device)
    reader.has_span_head |= settings.steps > 0
    finish(context, run, reader, embedder, null_offset)
