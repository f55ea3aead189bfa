"""Training of a model that judges the linked passages of a question together (models/linked.py)."""

# Shapes: P passages of a question, D hidden size

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from realm_lab.contrib.rivals.linked import KEPT, Example, LinkedReader
from realm_lab.contrib.rivals.models.linked import PairEncoder
from realm_lab.engine.core.process import ranks, share, summed
from realm_lab.engine.core.seeding import EpochOrder, numpy_generator
from realm_lab.engine.corpus.store import Questions
from realm_lab.engine.models.folders import write_tensors
from realm_lab.engine.models.initial import frozen_names
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.stages.ending import close, compile_encoders
from realm_lab.engine.training.loop import train
from realm_lab.engine.training.optimiser import ModelsTask, TrainedModels
from realm_lab.errors import UserError
from realm_lab.records.digests import write_digests
from realm_lab.records.files import atomic_directory
from realm_lab.records.run import StageRun

Loss = Callable[[Tensor, np.ndarray, Example], Tensor]
"""Loss of the vectors [P, D] and rows [P] of an example's passages, the kept ones first."""


class LinkedTask(ModelsTask):
    """The mean of a loss over questions, each with its passages: the kept ones and some negatives, drawn again in
    every step."""

    def __init__(
        self,
        params: Params,
        seed: int,
        settings: Any,  # options with `steps`, `batch_size` and `negatives`
        model: nn.Module,
        encoder: PairEncoder,
        loss: Loss,
        examples: Sequence[Example],
        questions: Questions,
    ):
        self.seed, self.total_steps, self._settings = seed, settings.steps, settings
        self._model, self._encoder, self._loss, self._micro_batch = model, encoder, loss, params.launch.micro_batch
        self._examples, self._questions = examples, questions
        self._order = EpochOrder(len(examples), seed, "linked-questions")
        self._models = TrainedModels(model, nn.Module())
        frozen = frozen_names(model, params)
        self._models.train("retriever", model, params.finetune.reader, settings.steps, frozen)

    def train_step(self, step: int) -> dict[str, float]:
        """Run one step on the mean loss of `batch_size` questions."""
        size = self._settings.batch_size
        mine = self._order.take(step * size, size)[share(size)]
        self._model.train()
        self._models.zero_grad()
        total, at_once = 0.0, self._micro_batch or size
        for start in range(0, len(mine), at_once):
            loss = self._sum([self._examples[number] for number in mine[start : start + at_once]], step) / size
            loss.backward()
            total += loss.item()
        return {"loss": summed(total)[0], **self._models.step(step)}

    def _sum(self, examples: Sequence[Example], step: int) -> Tensor:
        """Return the sum of some questions' losses."""
        rows = [self._rows(example, step) for example in examples]
        queries = [self._questions.tokens[e.number] for e, own in zip(examples, rows, strict=True) for _ in own]
        vectors = self._encoder.vectors(queries, np.concatenate(rows).tolist()).split([len(own) for own in rows])
        return torch.stack([self._loss(*each) for each in zip(vectors, rows, examples, strict=True)]).sum()

    def _rows(self, example: Example, step: int) -> np.ndarray:
        """Return the passages of a question in a step, int64 [P]."""
        rng = numpy_generator(self.seed, "linked-negatives", step, example.number)
        count = min(self._settings.negatives, len(example.others))
        return np.concatenate([example.kept, rng.choice(example.others, count, replace=False)])


def train_retriever(context: Context, run: StageRun) -> None:
    """Train a system's retriever; fine-tuning afterwards starts with the reader of the warm start."""
    system, params, questions = context.system, context.params, context.corpus.questions("train")
    assert isinstance(system, LinkedReader)
    examples = system.examples(questions)
    if not examples:
        raise UserError("no passage answers training questions; name others in corpus.files.questions_train")
    model = system.initial_model()
    compile_encoders(params, model.encoder)
    encoder = system.pair_encoder(model)
    loss = partial(system.loss, model)
    task = LinkedTask(params, context.order_seed(run.stage), system.own, model, encoder, loss, examples, questions)
    train(task, run, params.launch, context.device)
    if ranks().rank == 0:
        with atomic_directory(run.path / KEPT) as scratch:
            write_tensors(scratch / "model.safetensors", dict(model.named_parameters()))
            write_digests(scratch)
        counts = {
            "questions_trained": len(examples),
            "questions_without_passage": len(questions) - len(examples),
            "passages_without_links": system.links.passages_without,
        }
        close(run, **counts)
