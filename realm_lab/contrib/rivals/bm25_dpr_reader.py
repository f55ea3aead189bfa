"""BM25 with the reader of DPR (Karpukhin et al. 2020, section 6.1 and the row BM25 of Table 4): the reader selects a
passage by its [CLS] and answers with the best span of it. It differs from `dpr` only in retrieval.

Simplified: the span head is the same in all systems here, one softmax over the spans of a passage; the paper has
two, over starts and ends. A question without a passage with its answer among the first 100 is left out of the step that
it is drawn in; `answerable_fraction` counts it.
"""

from __future__ import annotations

from realm_lab.contrib.rivals.selecting import FINETUNE_SELECTING, SelectingOptions, SelectsPassage
from realm_lab.systems.bm25_reader import Bm25Passages
from realm_lab.systems.realm import WARM_START
from realm_lab.systems.registry import EVALUATE


class Bm25DprReader(SelectsPassage, Bm25Passages):
    """BM25 and a reader that selects the passage."""

    name = "bm25_dpr_reader"
    title = "BM25 with DPR's reader"
    options = SelectingOptions
    stages = (WARM_START, FINETUNE_SELECTING, EVALUATE)
