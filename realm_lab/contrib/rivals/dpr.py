"""DPR (Karpukhin et al. 2020): towers trained on questions with their passages, then a reader on retrieved passages,
which selects one by its [CLS] and answers with the best span of it (section 6.1). This reader with BM25's passages is
the system `bm25_dpr_reader` (the row BM25 of Table 4).

Simplified: the towers come from the warm start, not from plain BERT, and have its projection; the span head is the same
in all systems here, one softmax over the spans of a passage, and not two, over starts and ends; the last weights are
used, not the paper's checkpoint with the best validation rank. A step leaves out a question if none of its first 100
passages contains an answer; `answerable_fraction` is the share of questions that it keeps. The peak learning rate of
the towers is finetune.retriever's.
"""

from __future__ import annotations

from typing import ClassVar

from realm_lab.contrib.rivals.bm25_reader import Bm25Passages
from realm_lab.engine.params.sections import NonNegative, Positive
from realm_lab.engine.systems.bm25_options import Bm25Options
from realm_lab.engine.systems.reading import DenseRetriever, SpanReader
from realm_lab.engine.systems.realm import WARM_START
from realm_lab.engine.systems.registry import EVALUATE, Stage

FINETUNE_SELECTING = Stage(
    "finetune",
    ("system", "model", "finetune", "-finetune.answer_by"),
    "realm_lab.contrib.rivals.training.selection:finetune",
)


class SelectingOptions(Bm25Options):
    """Options of systems whose reader selects the passage."""

    negatives: NonNegative = 23
    """Passages without the answer that are read with the one that has it, per question in training (the paper's)."""


class DprOptions(SelectingOptions):
    """`system_options.dpr`."""

    steps: NonNegative = 18_400
    """Optimiser steps of the towers (40 epochs of the paper's 58,880 questions)."""
    batch_size: Positive = 128
    """Questions per step, which are each other's negatives (the paper's)."""


class SelectsPassage(SpanReader):
    """Mixin, listed before the class that retrieves. Evaluation reads `finetune.candidates` passages per question."""

    fixed: ClassVar = {
        "finetune.softmax": "selected",
        "finetune.objective": "marginal",
        "finetune.train_query_tower": False,
    }


class Dpr(SelectsPassage, DenseRetriever):
    """Dense retrieval trained only on questions."""

    name = "dpr"
    title = "DPR"
    options = DprOptions
    stages = (
        WARM_START,
        Stage(
            "dpr",
            ("model", "finetune.retriever", "system_options"),
            "realm_lab.contrib.rivals.training.dual_encoder:train_towers",
        ),
        FINETUNE_SELECTING,
        EVALUATE,
    )


class Bm25DprReader(SelectsPassage, Bm25Passages):
    """BM25 and a reader that selects the passage."""

    name = "bm25_dpr_reader"
    title = "BM25 with DPR's reader"
    options = SelectingOptions
    stages = (WARM_START, FINETUNE_SELECTING, EVALUATE)
