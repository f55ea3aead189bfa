"""REALM without its pre-training: reader and retriever of the warm start, with the fine-tuning of REALM."""

from __future__ import annotations

from realm_lab.engine.systems.reading import DenseRetriever
from realm_lab.engine.systems.realm import FINETUNE, WARM_START
from realm_lab.engine.systems.registry import EVALUATE


class WarmStart(DenseRetriever):
    """The paper's baseline: masked language modelling and the Inverse Cloze Task only (section 3.4)."""

    name = "warm_start"
    title = "warm start only"
    stages = (WARM_START, FINETUNE, EVALUATE)
