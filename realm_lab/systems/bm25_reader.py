"""BM25 with the span reader: passages by their words, p(z|x) the softmax of BM25's scores, the reader fine-tuned on
them. It differs from the warm start only in retrieval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from realm_lab.systems.reading import SpanReader
from realm_lab.systems.realm import WARM_START
from realm_lab.systems.registry import EVALUATE, Retrieved, Stage

FINETUNE_READER = Stage(
    "finetune", ("model", "finetune"), "realm_lab.systems.stages.finetune:finetune_reader", by_system=True
)


class Bm25Reader(SpanReader):
    """BM25 and a fine-tuned reader."""

    name = "bm25_reader"
    title = "BM25 with a reader"
    stages: ClassVar[tuple[Stage, ...]] = (WARM_START, FINETUNE_READER, EVALUATE)

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        return self.bm25.search(questions, k)
