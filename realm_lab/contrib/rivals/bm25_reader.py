"""BM25 with the span reader: BM25 finds the passages, p(z|x) is the softmax of its scores, and the reader is fine-tuned
on the passages. The system differs from the warm start only in retrieval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from realm_lab.engine.systems.bm25_options import Bm25Options
from realm_lab.engine.systems.reading import SpanReader
from realm_lab.engine.systems.realm import FINETUNE_READER, WARM_START
from realm_lab.engine.systems.registry import EVALUATE, Retrieved, Stage


class Bm25ReaderOptions(Bm25Options):
    """`system_options.bm25_reader`."""

    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """p(z|x) is the softmax of BM25's scores divided by the temperature."""


class Bm25Passages(SpanReader):
    """Base class of systems that retrieve by BM25 and read spans."""

    options = Bm25Options

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        return self.bm25.search(questions, k)


class Bm25Reader(Bm25Passages):
    """BM25 and a fine-tuned reader."""

    name = "bm25_reader"
    title = "BM25 with a reader"
    options = Bm25ReaderOptions
    stages: ClassVar[tuple[Stage, ...]] = (WARM_START, FINETUNE_READER, EVALUATE)

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        rows_QK, scores_QK = super().retrieve(questions, k)
        divisor_QK = np.where(rows_QK >= 0, np.float32(self.own.temperature), np.float32(1))  # NO_SCORE is kept
        return Retrieved(rows_QK, scores_QK / divisor_QK)
