"""A frozen sentence-embedding folder as the retriever (Reimers and Gurevych 2019, and what came after), and the span
reader, fine-tuned on what it finds. Nothing of the folder is trained.

Simplified: a passage is its prefix, title and body as one text, whatever its authors did with titles.
"""

# Shapes: N passages, Q questions, R rows, D hidden size

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from realm_lab.params.sections import FOLDER, Section
from realm_lab.systems.reading import SpanReader
from realm_lab.systems.realm import WARM_START
from realm_lab.systems.registry import EVALUATE, Retrieved, Stage, register_system

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from realm_lab.models.sentence import SentenceEncoder
    from realm_lab.retrieval.embeddings import Embeddings
    from realm_lab.retrieval.exact import ExactSearch


class EmbeddingOptions(Section):
    """`system_options.embedding`."""

    folder: Annotated[str, FOLDER]
    """Hugging Face folder of a BERT with WordPiece."""
    pooling: Literal["mean", "cls"] = "mean"
    """Of the last hidden states, [CLS] and [SEP] included, or that of [CLS]."""
    query_prefix: str = ""
    """Before each question, such as "query: " (E5)."""
    passage_prefix: str = ""
    """Before each passage, such as "passage: " (E5)."""
    normalise: bool = True
    """Vectors of length 1: the cosine, not the inner product."""
    temperature: Annotated[float, Field(gt=0.0)] = 0.05
    """p(z|x) is the softmax of the scores divided by it (Sentence-BERT trains with 0.05)."""


@register_system
class Embedding(SpanReader):
    """Passages of largest inner product with the question, both embedded by the folder."""

    name = "embedding"
    title = "sentence embeddings with a reader"
    options = EmbeddingOptions
    stages = (
        WARM_START,
        Stage(
            "finetune",
            ("model", "finetune", "system_options"),
            "realm_lab.systems.stages.finetune:finetune_reader",
            by_system=True,
        ),
        EVALUATE,
    )

    @cached_property
    def _encoder(self) -> SentenceEncoder:
        from realm_lab.models.sentence import SentenceEncoder

        return SentenceEncoder(Path(self.own.folder), self.own.pooling, self.own.normalise, self.context.device)

    @cached_property
    def vectors_ND(self) -> Embeddings:
        """The passages' vectors: from the store, or embedded now."""
        from realm_lab.core.files import digest
        from realm_lab.retrieval.embeddings import Identity
        from realm_lab.systems.context import embedding_store
        from realm_lab.systems.identity import digest_checkpoint

        own, text = self.own, self.passages.text
        weights = digest_checkpoint(Path(own.folder), f"system_options.{self.name}.folder")
        tower = digest([weights, own.pooling, own.normalise, own.passage_prefix])
        positions = self._encoder.encoder.shape.positions
        corpus = (self._knowledge or self.context.knowledge).digest
        identity = Identity(corpus, tower, positions, "float32", "float32", len(self.passages), self._encoder.size)

        def embed(rows_R: np.ndarray) -> Tensor:
            found = [text.row(row) for row in rows_R]
            texts = [f"{own.passage_prefix}{row['title']} {row['body']}".strip() for row in found]
            return self._encoder.encode(texts, self.context.params.launch.token_budget).cpu()

        store = embedding_store(self.context.root)
        return store.find(identity) or store.build(identity, embed)

    @cached_property
    def _search(self) -> ExactSearch:
        from realm_lab.retrieval.exact import ExactSearch

        return ExactSearch(self.vectors_ND.for_search(self.context.device))

    def modules(self) -> Sequence[nn.Module]:
        return [self.models.reader, self._encoder.encoder]

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        texts = [f"{self.own.query_prefix}{question}" for question in questions]
        query_QD = self._encoder.encode(texts, self.context.params.launch.token_budget)
        rows_QK, scores_QK = self._search.search(query_QD, k)
        return Retrieved(rows_QK.cpu().numpy(), (scores_QK / self.own.temperature).cpu().numpy())
