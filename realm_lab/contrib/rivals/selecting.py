"""Base of systems whose reader selects the passage that it answers from (Karpukhin et al. 2020, section 6.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, cast

from realm_lab.core.plugins import Choice
from realm_lab.params.sections import NonNegative, Section
from realm_lab.systems.reading import SpanReader
from realm_lab.systems.registry import Stage

if TYPE_CHECKING:
    from realm_lab.contrib.rivals.training.selection import SelectionTask
    from realm_lab.systems.context import Context
    from realm_lab.tracking.run_dir import StageRun

MakeTask = Callable[..., "SelectionTask"]
FINETUNE_SELECTING = Stage(
    "finetune", ("model", "finetune", "system_options"), "realm_lab.contrib.rivals.selecting:finetune", by_system=True
)


class SelectingOptions(Section):
    """Options of systems whose reader selects the passage."""

    negatives: NonNegative = 23
    """Passages without the answer that are read with the one that has it, per question in training (the paper's)."""


class SelectsPassage(SpanReader):
    """Mixin before the class that retrieves; `finetune.candidates` passages are read per question in evaluation."""

    fixed: ClassVar = {"softmax": "selected", "objective": Choice("marginal")}

    def task(self) -> MakeTask:
        """Return the training task of the reader."""
        from realm_lab.contrib.rivals.training.selection import SelectionTask

        return SelectionTask


def finetune(context: Context, run: StageRun) -> None:
    """Fine-tune the reader on passages drawn from those that the system finds."""
    from realm_lab.contrib.rivals.training.selection import DEPTH
    from realm_lab.systems.initial import initial_state
    from realm_lab.systems.stages.finetune import FixedPassages, tune

    system = cast(SelectsPassage, context.system)
    candidates = min(1 + system.own.negatives, len(context.passages))
    fixed = {"train_query_tower": False, "early_loss_candidates": 0, "candidates": candidates}
    settings = system.params.finetune.model_copy(update=fixed)
    initial = initial_state(context, "finetune")
    tune(context, run, initial, FixedPassages(context, initial.embedder, DEPTH), settings, system.task())
