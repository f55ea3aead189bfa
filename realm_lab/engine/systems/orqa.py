"""ORQA (Lee et al. 2019): the Inverse Cloze Task, then fine-tuning with the early loss over many frozen passages.

As published: one softmax over the spans of all passages that are read ("Learning", S_retr + S_read), and the
early loss as a second term. Simplified: the span head and the optimiser are the same in all systems here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from realm_lab.engine.systems.reading import DenseRetriever
from realm_lab.engine.systems.realm import WARM_START
from realm_lab.engine.systems.registry import EVALUATE, Stage

if TYPE_CHECKING:
    from realm_lab.engine.systems.context import Context
    from realm_lab.records.run import StageRun

EARLY_CANDIDATES = 5000  # Lee et al.'s number; all passages if a corpus has fewer


class Orqa(DenseRetriever):
    """REALM's baseline as published: `warm_start` with one softmax over all passages' spans, always with early loss."""

    name = "orqa"
    title = "ORQA"
    stages = (
        WARM_START,
        Stage("finetune", ("model", "finetune", "-finetune.answer_by"), f"{__name__}:finetune"),
        EVALUATE,
    )
    fixed: ClassVar[Mapping[str, Any]] = {"finetune.softmax": "joint"}


def finetune(context: Context, run: StageRun) -> None:
    """Open-QA fine-tuning with the early loss, over EARLY_CANDIDATES passages unless the parameters have a number."""
    from realm_lab.engine.systems.initial import initial_state
    from realm_lab.engine.systems.stages.finetune import tune

    settings, passages = context.params.finetune, len(context.passages)
    early = settings.early_loss_candidates or min(EARLY_CANDIDATES, passages)
    initial = initial_state(context, "finetune")
    settings = settings.model_copy(update={"early_loss_candidates": early})
    tune(context, run, initial, context.retriever(initial.embedder), settings)
