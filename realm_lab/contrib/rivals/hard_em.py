"""Hard EM (Min et al. 2019): the answer occurs in a passage several times, and the reader learns which occurrence is
meant. BM25 finds the passages; `variant` is the paper's comparison: hard EM, only the first occurrence, or all (MML).

Simplified: BM25 searches passages; the paper searches articles by TF-IDF, then paragraphs by BM25. The passage that
answers is chosen by a softmax of [CLS] scores over the positive and its negatives; the paper classifies each passage by
itself, from the maximum over its positions, and has classes "no answer", "yes" and "no". Nothing here is "yes" or "no".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from realm_lab.contrib.rivals.bm25_reader import Bm25Passages
from realm_lab.contrib.rivals.dpr import FINETUNE_SELECTING, SelectingOptions, SelectsPassage
from realm_lab.engine.params.sections import NonNegative, Positive
from realm_lab.engine.systems.realm import WARM_START
from realm_lab.engine.systems.registry import EVALUATE


class HardEmOptions(SelectingOptions):
    """`system_options.hard_em`."""

    negatives: NonNegative = 1
    """Passages without the answer that the reader is trained on (the released code's)."""
    variant: Literal["hard_em", "first_only", "mml"] = "hard_em"
    """Occurrences of the answer that count: the most likely one, the first, or all by their sum."""
    tau_steps: Positive = 8000
    """Step t uses the most likely occurrence with probability min(t / tau, 0.8), otherwise the sum (8000:
    the paper's for Natural Questions)."""


class HardEm(SelectsPassage, Bm25Passages):
    """BM25 and a reader trained on the most likely occurrence of the answer."""

    name = "hard_em"
    title = "hard EM"
    options = HardEmOptions
    stages = (
        WARM_START,
        replace(FINETUNE_SELECTING, work="realm_lab.contrib.rivals.training.selection:finetune_hard_em"),
        EVALUATE,
    )
