"""What systems that write their answer share. Heavy imports are inside, so that declaring a system costs nothing."""

# Shapes: B questions, T wordpieces of a text

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from realm_lab.systems.registry import System

if TYPE_CHECKING:
    from torch import Tensor

    from realm_lab.models.decoder import Example, Generator
    from realm_lab.systems.context import Context
    from realm_lab.tracking.run_dir import StageRun
    from realm_lab.training.generation import GenerationTask


class Generative(System):
    """An encoder-decoder that fine-tuning left; a subclass says what it reads."""

    context: Context

    @cached_property
    def model(self) -> Generator:
        """The fine-tuned encoder-decoder."""
        return load_generator(self.context, "finetune").to(self.context.device).eval()

    def write(self, examples: Sequence[Example]) -> list[Tensor]:
        """A greedy text for each example, each from all of its passages together, int64 [T] with [CLS] and [SEP]."""
        import torch

        from realm_lab.core.process import autocast
        from realm_lab.models.decoder import join_examples, write

        context, params = self.context, self.params
        longest = params.corpus.sentence_length + params.corpus.passage_length
        passages = max(1, len(examples[0].seconds)) if examples else 1
        at_once = max(1, params.launch.token_budget // (longest * passages))
        written: list[Tensor] = []
        for start in range(0, len(examples), at_once):
            batch = join_examples(examples[start : start + at_once], context.special, longest).to(context.device)
            with torch.no_grad(), autocast(context.device, params.model.precision):
                source = self.model.encode(batch, passages)
                written += write(self.model, source, context.special, params.finetune.max_span_wordpieces)
        return written

    def text(self, written_T: Tensor) -> str:
        """A written text in letters."""
        found: str = self.context.tokenizer.decode(written_T.tolist())
        return found


def load_generator(context: Context, stage: str) -> Generator:
    """The encoder-decoder that a stage left, on the CPU."""
    from realm_lab.models.folders import read_generator

    return read_generator(context.model_folder(stage) / "generator")


def learn(context: Context, run: StageRun, task: GenerationTask) -> None:
    """Train the encoder-decoder of a task, and export it."""
    from realm_lab.models.folders import write_generator
    from realm_lab.systems.stages import compile_encoders, end_stage
    from realm_lab.training.loop import train

    compile_encoders(context.params, task.model.encoder)
    train(task, run, context.params.launch, context.device)

    def write(scratch: Path) -> None:
        write_generator(task.model, scratch / "generator")

    end_stage(run, write, {})


def question_examples(context: Context) -> list[Example]:
    """The training questions, each with its first answer.

    Raises:
        UserError: there are none.
    """
    from realm_lab.errors import UserError
    from realm_lab.models.decoder import Example

    questions = context.corpus.questions("train")
    if not len(questions):
        raise UserError("no training questions in the prepared corpus; name them in corpus.files.questions_train")
    targets = context.wordpieces([answers[0] for answers in questions.answers])
    return [Example(questions.tokens[number], (), np.array(target, np.int64)) for number, target in enumerate(targets)]
