"""Fusion-in-Decoder (Izacard and Grave 2021): the question is read with each passage separately, and one decoder
attends to the states of all of them, so that it can combine several passages.

The passages come from BM25 or from the warm start's towers.

Simplified: the warm start's encoder with a decoder that learned to write from the warm start's pairs (`denoise`), not
T5; passages without titles, as in all systems here; AdamW with warm-up and decay instead of Adam at a constant
learning rate; the first answer is the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from realm_lab.contrib.rivals.generative import DENOISE, FINETUNE, PassageWriter, WriterOptions
from realm_lab.engine.params.sections import Candidates, Fraction, NonNegative, Positive
from realm_lab.engine.systems.bm25_options import Bm25Options
from realm_lab.engine.systems.realm import WARM_START
from realm_lab.engine.systems.registry import EVALUATE, Retrieved

if TYPE_CHECKING:
    from torch import Tensor, nn

    from realm_lab.contrib.rivals.models.decoder import Example
    from realm_lab.contrib.rivals.writing import Written


class FidOptions(WriterOptions, Bm25Options):
    """`system_options.fid`."""

    steps: NonNegative = 10_000
    """Steps on questions (the paper's)."""
    batch_size: Positive = 64
    """Questions per step (the paper's)."""
    learning_rate: Fraction = 1e-4
    """Peak learning rate on questions (the paper's, constant)."""
    passages: Candidates = 100
    """Passages read for each question (the paper's)."""
    retriever: Literal["bm25", "warm_start"] = "bm25"
    """Source of passages (the paper: BM25 or DPR)."""


class Fid(PassageWriter):
    """An encoder-decoder over the joined states of many passages."""

    name = "fid"
    title = "Fusion-in-Decoder"
    options = FidOptions
    stages = (WARM_START, DENOISE, FINETUNE, EVALUATE)

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        return self.bm25.search(questions, k) if self.own.retriever == "bm25" else super().retrieve(questions, k)

    def modules(self) -> Sequence[nn.Module]:
        return [self.model] if self.own.retriever == "bm25" else super().modules()

    def write(self, examples: Sequence[Example], log_prior_QK: Tensor) -> Iterable[Written]:
        from realm_lab.contrib.rivals.writing import write_together

        return write_together(self.params, self.model, self.context.special, examples)
