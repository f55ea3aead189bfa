"""ORQA (Lee et al. 2019): the Inverse Cloze Task, then fine-tuning with the early loss over many frozen passages.

As in the paper: one softmax over the spans of all passages that are read ("Learning", S_retr + S_read), and the
early loss, which is added to it. Simplified: the span head and the optimiser are the same in all systems here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from realm_lab.systems.reading import DenseRetriever
from realm_lab.systems.realm import WARM_START
from realm_lab.systems.registry import EVALUATE, Stage

if TYPE_CHECKING:
    from realm_lab.params.parameters import Params

EARLY_CANDIDATES = 5000  # of the paper; a smaller corpus as a whole


class Orqa(DenseRetriever):
    """The paper's baseline as it was published; without the early loss and with two softmaxes it is `warm_start`."""

    name = "orqa"
    title = "ORQA"
    stages = (
        WARM_START,
        Stage("finetune", ("model", "finetune"), "realm_lab.systems.stages.finetune:finetune", by_system=True),
        EVALUATE,
    )

    @property
    def params(self) -> Params:
        given = self.context.params
        early = given.finetune.early_loss_candidates or min(EARLY_CANDIDATES, len(self.context.passages))
        fixed = {"softmax": "joint", "early_loss_candidates": early}
        return given.model_copy(update={"finetune": given.finetune.model_copy(update=fixed)})
