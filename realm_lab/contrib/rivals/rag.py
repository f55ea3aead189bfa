"""RAG (Lewis et al. 2020): a decoder writes after each retrieved passage separately, and the answer's probability is
marginalised over these passages. The retriever's query tower is trained with the decoder.

Decoding is greedy. RAG-Token takes the most likely word of the marginal at each position. RAG-Sequence writes one
answer from each passage and takes the one of largest marginal probability, each answer scored under every passage (the
paper's "thorough decoding", with beams of 1).

Simplified: the warm start's encoder with a decoder that learned to write from the warm start's pairs (`denoise`), not
BART; the warm start's towers instead of DPR's; passages without titles, as in all systems here; the first answer
is the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from realm_lab.contrib.rivals.generative import DENOISE, FINETUNE, PassageWriter, WriterOptions
from realm_lab.engine.params.sections import Candidates, Fraction, NonNegative, Positive
from realm_lab.engine.systems.realm import WARM_START
from realm_lab.engine.systems.registry import EVALUATE

if TYPE_CHECKING:
    from torch import Tensor

    from realm_lab.contrib.rivals.models.decoder import Example
    from realm_lab.contrib.rivals.writing import Written


class RagOptions(WriterOptions):
    """`system_options.rag`."""

    steps: NonNegative = 10_000
    """Steps on questions (the paper names none; Fusion-in-Decoder's)."""
    batch_size: Positive = 64
    """Questions per step (the paper names none; Fusion-in-Decoder's)."""
    learning_rate: Fraction = 3e-5
    """Peak learning rate of the reader (the paper names none; BART's); that of the query tower is
    finetune.retriever's."""
    passages: Candidates = 5
    """Passages read for each question (the paper: 5 or 10)."""
    marginal: Literal["sequence", "token"] = "sequence"
    """Marginalise once per answer (`sequence`) or once per word (`token`; section 2.1)."""


class Rag(PassageWriter):
    """An encoder-decoder, marginal over passages."""

    name = "rag"
    title = "RAG"
    options = RagOptions
    stages = (WARM_START, DENOISE, FINETUNE, EVALUATE)

    @property
    def objective(self) -> str:
        return str(self.own.marginal)

    def write(self, examples: Sequence[Example], log_prior_QK: Tensor) -> Iterable[Written]:
        from realm_lab.contrib.rivals.writing import write_marginal

        models = self.params, self.model, self.context.special
        return write_marginal(*models, examples, log_prior_QK, self.own.marginal)
