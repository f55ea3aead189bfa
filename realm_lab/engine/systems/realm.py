"""REALM (Guu et al. 2020): warm start, pre-training with a retriever that learns, fine-tuning on questions."""

from __future__ import annotations

from realm_lab.engine.systems.reading import DenseRetriever
from realm_lab.engine.systems.registry import EVALUATE, Stage

WARM_START = Stage(
    "warm_start",
    # span_hidden_size matters, since the span head is drawn before the masked-word head
    ("model", "warm_start", "finetune.span_hidden_size"),
    "realm_lab.engine.systems.stages.warm_start:warm_start",
)
PRETRAIN = Stage(
    "pretrain",
    ("model", "pretrain"),
    "realm_lab.engine.systems.stages.pretrain:pretrain",
    observes=("evaluate",),  # for the curves
)
FINETUNE = Stage(
    "finetune", ("model", "finetune", "-finetune.answer_by"), "realm_lab.engine.systems.stages.finetune:finetune"
)


FINETUNE_READER = Stage(  # only the reader, on passages that the system finds
    "finetune",
    ("system", "model", "finetune", "-finetune.answer_by"),
    "realm_lab.engine.systems.stages.finetune:finetune_reader",
)


class Realm(DenseRetriever):
    """The paper's system."""

    name = "realm"
    title = "REALM"
    stages = (WARM_START, PRETRAIN, FINETUNE, EVALUATE)
