"""RAG (Lewis et al. 2020): a decoder writes behind each passage apart, and the answer is marginal over the passages of
a retriever whose query tower learns with it.

Decoding is greedy. RAG-Token takes the likeliest word of the marginal at each place. RAG-Sequence writes one answer
from each passage and takes that of largest marginal probability, each answer scored under every passage (the paper's
"thorough decoding", with beams of 1).

Simplified: the encoder of the warm start with a decoder that learned to write from its pairs (`denoise`), instead of
BART; the warm start's towers instead of DPR's; passages without titles, as all systems here read them; the first answer
is the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

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
    from realm_lab.systems.context import Context
    from realm_lab.tracking.run_dir import StageRun


class RagOptions(WriterOptions):
    """`system_options.rag`."""

    steps: NonNegative = 10_000
    """Steps on questions (the paper names none; Fusion-in-Decoder's)."""
    batch_size: Positive = 64
    """Questions a step (the paper names none; Fusion-in-Decoder's)."""
    learning_rate: Fraction = 3e-5
    """Peak learning rate of the reader (the paper names none; BART's); that of the query tower is
    finetune.retriever's."""
    passages: Candidates = 5
    """Passages read for each question (the paper: 5 or 10)."""
    marginal: Literal["sequence", "token"] = "sequence"
    """Whether a passage is behind the whole answer or behind each word (section 2.1)."""


@register_system
class Rag(PassageWriter):
    """An encoder-decoder, marginal over passages."""

    name = "rag"
    title = "RAG"
    options = RagOptions
    stages = (
        WARM_START,
        DENOISE,
        finetune_stage("realm_lab.systems.rag:finetune"),
        EVALUATE,
    )

    def answer(
        self, questions: Sequence[str], retrieved: Retrieved | None = None, k: int | None = None
    ) -> list[Answer]:
        from realm_lab.evaluation.writing import answer_of, write_marginal

        context, options = self.context, self.context.options(RagOptions)
        found = retrieved or self.retrieve(questions, k or options.passages)
        examples, log_prior_QK = self.examples(questions, found.rows_QK), self.log_priors(found)
        models = self.params, self.model, context.special
        written = write_marginal(*models, examples, log_prior_QK, options.marginal)
        each = zip(written, found.rows_QK, log_prior_QK.cpu().numpy(), strict=True)
        return [answer_of(context.tokenizer, self.passages, *one) for one in each]


def finetune(context: Context, run: StageRun) -> None:
    """Questions with the passages that the query tower finds at each step, in the index of the warm start."""
    from realm_lab.training.generation import drawing
    from realm_lab.training.retrieving import RetrievingTask

    options, seed, examples = context.options(RagOptions), context.plan.seed, question_examples(context)
    retriever = Rag(context).before_finetuning().retriever
    retriever.embedder.split_towers()
    model = load_generator(context, "denoise").to(context.device)
    draw = drawing(len(examples), options.batch_size, seed, "rag-questions", lambda item, _: examples[item])
    given = context.params, seed, model, context.special, draw, options.steps, options.learning_rate
    learn(context, run, RetrievingTask(*given, retriever, options.passages, options.marginal), retriever.embedder)
