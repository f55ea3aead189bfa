"""Closed-book question answering (Roberts et al. 2020; the T5 rows of Guu et al. 2020, Table 1): no retrieval, facts
are stored in weights.

Trained by span corruption on the pre-training corpus X and on the passages of Z, which it would not see otherwise; then
on salient spans of X; then on questions. Facts of Z are answered as far as the weights hold them, and a corpus update
changes nothing.

Simplified: one model from scratch (or from model.checkpoint) of the size of the other systems' encoder, with a decoder
of that size, instead of T5; BERT's post-norm layers with absolute positions; one [MASK] for T5's numbered sentinels;
AdamW with warm-up and decay instead of Adafactor at a constant learning rate; no mixture of tasks; the first answer is
the target, and the answer is decoded from wordpieces, in lower case if the vocabulary is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from realm_lab.contrib.rivals.generative import load_generator
from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.evaluation.answers import Answer
from realm_lab.engine.params.sections import Fraction, NonNegative, Positive, Section
from realm_lab.engine.systems.registry import EVALUATE, Retrieved, Stage, System, Unsupported

if TYPE_CHECKING:
    from torch import nn

    from realm_lab.contrib.rivals.models.decoder import Generator
    from realm_lab.engine.systems.context import Context

STEPS = "system_options.salient_span_steps"
BATCH = (
    "model",
    "finetune.span_hidden_size",  # the encoder is drawn as part of a reader with this span head
    "system_options.batch_size",
    "system_options.learning_rate",
)


class ClosedBookOptions(Section):
    """`system_options.closed_book`."""

    corruption_steps: NonNegative = 1_000_000
    """Steps of span corruption (Raffel et al. 2020)."""
    salient_span_steps: NonNegative = 100_000
    """Steps on salient spans (Roberts et al. 2020)."""
    question_steps: NonNegative = 10_000
    """Steps on questions (Roberts et al. 2020)."""
    batch_size: Positive = 384
    """Texts per step (the paper's 196,608 tokens in texts of 512)."""
    learning_rate: Fraction = 1e-3
    """Peak learning rate of each stage (the paper's, constant)."""


def _stage(name: str, work: str, *more: str) -> Stage:
    work = f"realm_lab.contrib.rivals.training.writers:{work}"
    return Stage(name, (*BATCH, *more), work, uses_ranks=False)


class ClosedBook(System):
    """An encoder-decoder that reads only the question."""

    name = "closed_book"
    title = "closed book"
    only_bert = True
    options = ClosedBookOptions
    stages = (
        _stage("span_corruption", "corrupt", "system_options.corruption_steps"),
        _stage("salient_spans", "write_salient_spans", "pretrain.recurring_spans", STEPS),
        _stage("finetune", "answer_questions", "system_options.question_steps", "finetune.max_span_wordpieces"),
        EVALUATE,
    )

    context: Context

    @cached_property
    def model(self) -> Generator:
        """Return the fine-tuned encoder-decoder."""
        return load_generator(self.context, "finetune").to(self.context.device).eval()

    def answer(
        self, questions: Sequence[str], retrieved: Retrieved | None = None, k: int | None = None
    ) -> list[Answer]:
        from realm_lab.contrib.rivals.models.decoder import Example
        from realm_lab.contrib.rivals.writing import write_together

        if retrieved is not None:
            raise Unsupported(f"system {self.name} reads no passages")
        context = self.context
        examples = [Example(tokens, ()) for tokens in context.question_tokens(questions)]
        written = write_together(self.params, self.model, context.special, examples)
        return [Answer(context.tokenizer.decode(list(each.wordpieces))) for each in written]

    def modules(self) -> Sequence[nn.Module]:
        return [self.model]

    def on_corpus(self, passages: Passages, digest: str) -> System:
        """Return itself: it reads no corpus."""
        return self
