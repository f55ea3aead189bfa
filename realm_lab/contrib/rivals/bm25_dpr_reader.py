"""BM25 with the reader of DPR (Karpukhin et al. 2020, section 6.1 and the row BM25 of Table 4): the reader selects a
passage by its [CLS] and answers with the best span of it. What separates it from `dpr` is retrieval alone.

Simplified: the span head is that of all systems here, one softmax over the spans of a passage, where the paper has
two, over starts and ends. A question without a passage with its answer among the first 100 is left out of the step that
it is drawn in, which `answerable_fraction` shows.
"""

from __future__ import annotations

from realm_lab.contrib.rivals.selecting import FINETUNE_SELECTING, SelectingOptions, SelectsPassage
from realm_lab.systems.bm25_reader import Bm25Reader
from realm_lab.systems.realm import WARM_START
from realm_lab.systems.registry import EVALUATE


class Bm25DprReader(SelectsPassage, Bm25Reader):
    """BM25 and a reader that selects the passage."""

    name = "bm25_dpr_reader"
    title = "BM25 with DPR's reader"
    options = SelectingOptions
    stages = (WARM_START, FINETUNE_SELECTING, EVALUATE)
