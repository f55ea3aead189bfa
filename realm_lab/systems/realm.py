"""REALM (Guu et al. 2020): warm start, pre-training with a retriever that learns, fine-tuning on questions."""

from __future__ import annotations

from realm_lab.systems.registry import Stage, System, register_system

WARM_START = Stage("warm_start", ("model", "warm_start"), "realm_lab.systems.stages:warm_start")
PRETRAIN = Stage(
    "pretrain",
    # of `evaluate`, what shapes the log of pre-training
    ("model", "pretrain", "evaluate.interval_steps", "evaluate.cloze_sentences", "evaluate.questions"),
    "realm_lab.systems.stages:pretrain",
)
FINETUNE = Stage("finetune", ("model", "finetune"), "realm_lab.systems.stages:finetune")
EVALUATE = Stage(
    "evaluate",
    # of `pretrain`, how utility is measured; where it began is in the keys before
    ("pretrain", "-pretrain.initial_reader", "-pretrain.initial_retriever", "evaluate"),
    "realm_lab.systems.evaluate:evaluate",
    keeps="eval",
    uses_ranks=False,
)


@register_system
class Realm(System):
    """The paper's system."""

    name = "realm"
    title = "REALM"
    stages = (WARM_START, PRETRAIN, FINETUNE, EVALUATE)
