"""Fusion-in-Decoder (Izacard and Grave 2021): the question is read with each passage apart, and one decoder looks at
the states of all of them, so that it can put together what several passages say.

The passages are BM25's or those of the warm start's towers. With `retriever: distilled` the query tower learns from
the decoder's attention (Izacard and Grave 2021b).

Simplified: the encoder of the warm start with a decoder that learned to write from its pairs (`denoise`), instead of
T5; passages without titles, as all systems here read them; AdamW with warm-up and decay instead of Adam at a constant
learning rate; the first answer is the target. Attention is distilled in the second half of the reader's steps, with
one frozen index of the warm start, instead of in rounds of reader, retriever and new passages; p(z|x) is the softmax of
f(x, z), not of f(x, z) over the square root of its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from realm_lab.evaluation.answers import Answer
from realm_lab.params.sections import Candidates, Fraction, NonNegative, Positive
from realm_lab.systems.generative import (
    DENOISE,
    PassageWriter,
    WriterOptions,
    finetune_stage,
    learn,
    load_generator,
    question_examples,
)
from realm_lab.systems.realm import WARM_START
from realm_lab.systems.registry import EVALUATE, Retrieved, register_system

if TYPE_CHECKING:
    from torch import nn

    from realm_lab.models.decoder import Example
    from realm_lab.systems.context import Context
    from realm_lab.tracking.run_dir import StageRun


class FidOptions(WriterOptions):
    """`system_options.fid`."""

    steps: NonNegative = 10_000
    """Steps on questions (the paper's)."""
    batch_size: Positive = 64
    """Questions a step (the paper's)."""
    learning_rate: Fraction = 1e-4
    """Peak learning rate of these (the paper's, constant); that of a query tower is finetune.retriever's."""
    passages: Candidates = 100
    """Passages read for each question (the paper's)."""
    retriever: Literal["bm25", "warm_start", "distilled"] = "bm25"
    """Whose passages are read (the paper: BM25's or DPR's); `distilled`: the query tower learns from attention."""


@register_system
class Fid(PassageWriter):
    """An encoder-decoder over the joined states of many passages."""

    name = "fid"
    title = "Fusion-in-Decoder"
    options = FidOptions
    stages = (
        WARM_START,
        DENOISE,
        finetune_stage("realm_lab.systems.fid:finetune"),
        EVALUATE,
    )

    @cached_property
    def own(self) -> FidOptions:
        """Its options."""
        return self.context.options(FidOptions)

    @property
    def embedder_stage(self) -> str:
        return "finetune" if self.own.retriever == "distilled" else "warm_start"

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        return self.bm25.search(questions, k) if self.own.retriever == "bm25" else super().retrieve(questions, k)

    def modules(self) -> Sequence[nn.Module]:
        return [self.model] if self.own.retriever == "bm25" else super().modules()

    def before_finetuning(self) -> PassageWriter:
        return super().before_finetuning() if self.own.retriever == "distilled" else self

    def answer(
        self, questions: Sequence[str], retrieved: Retrieved | None = None, k: int | None = None
    ) -> list[Answer]:
        from realm_lab.evaluation.writing import answer_of, write_together

        context = self.context
        found = retrieved or self.retrieve(questions, k or self.own.passages)
        written = write_together(self.params, self.model, context.special, self.examples(questions, found.rows_QK))
        each = zip(written, found.rows_QK, self.log_priors(found).cpu().numpy(), strict=True)
        return [answer_of(context.tokenizer, self.passages, *one) for one in each]


def finetune(context: Context, run: StageRun) -> None:
    """Questions with their passages, found once, or anew in every step by a query tower that learns."""
    from realm_lab.training.generation import GenerationTask, drawing
    from realm_lab.training.retrieving import RetrievingTask, with_passages

    options, seed, system = context.options(FidOptions), context.plan.seed, Fid(context)
    model = load_generator(context, "denoise").to(context.device)

    def task(kind: type[GenerationTask], examples: Sequence[Example], *more: Any) -> GenerationTask:
        draw = drawing(len(examples), options.batch_size, seed, "fid-questions", lambda item, _: examples[item])
        given = context.params, seed, model, context.special, draw, options.steps, options.learning_rate
        return kind(*given, *more)

    examples = question_examples(context)
    if options.retriever == "distilled":
        retriever = system.before_finetuning().retriever
        retriever.embedder.split_towers()
        distilled = task(RetrievingTask, examples, retriever, options.passages, "distilled")
        learn(context, run, distilled, retriever.embedder)
    else:
        rows_QK = system.retrieve(context.corpus.questions("train").texts, options.passages).rows_QK
        learn(context, run, task(GenerationTask, with_passages(examples, context.passages, rows_QK)))
