"""GraphRetriever (Min et al. 2019): passages of BM25 and linked passages, judged together by their relations.

The first passages of BM25 and, hop by hop, the passages that they link to form a graph; each passage's vector is mixed
with the vectors of related passages before one is chosen (models/linked.py). The paper's reader was never released.
Simplified: seeds are passages of BM25, without entity linking. An edge is a title that a passage names (links.py), not
a relation of Wikidata; the three relations are links to, is linked from, and has the same title. One encoder chooses a
passage, and gives p(z|x); another one, trained after it, reads spans. The first one has the learning rate of
finetune.reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from realm_lab.contrib.rivals.linked import STAGES, Example, LinkedOptions, LinkedReader
from realm_lab.engine.params.sections import NonNegative, Positive
from realm_lab.engine.systems.registry import Retrieved

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from realm_lab.contrib.rivals.models.linked import GraphModel
    from realm_lab.engine.models.encoder import Encoder


class GraphRetrieverOptions(LinkedOptions):
    """`system_options.graph_retriever`."""

    negatives: Positive = 100
    """Passages of a question's graph in a step that are neither of its path nor hold the answer."""
    seeds: Positive = 10
    """Passages of BM25 at the start of the graph (10 titles of TF-IDF in the released code)."""
    hops: NonNegative = 2
    """Links between a seed and a passage of the graph, at most (released code)."""
    passages: Positive = 100
    """Passages of a graph; BM25 fills the rest after the links (released code)."""
    layers: NonNegative = 2
    """Mixing layers; 0: every passage is judged separately (ParReader++, the paper's baseline)."""


class GraphRetriever(LinkedReader):
    """Exchanges information between passages before one is chosen."""

    name = "graph_retriever"
    title = "GraphRetriever"
    options = GraphRetrieverOptions
    stages = STAGES

    def new_model(self, encoder: Encoder, generator: torch.Generator) -> GraphModel:
        from realm_lab.contrib.rivals.models.linked import GraphModel

        return GraphModel(encoder, self.own.layers, generator)

    def graph(self, bm25: np.ndarray) -> np.ndarray:
        """Return the rows of a graph: the seeds, passages that they link to, passages linked from those, then the other
        passages of BM25. Within a hop, those that BM25 found are first, in its order; the rest follow their linking
        passages' order."""
        own, rank = self.own, {int(row): number for number, row in enumerate(bm25)}
        rows = dict.fromkeys(bm25[: own.seeds].tolist())
        frontier = list(rows)
        for _ in range(own.hops):
            linked = dict.fromkeys(row for by in frontier for row in self.links.of(by).tolist() if row not in rows)
            frontier = sorted(linked, key=lambda row: rank.get(row, len(bm25)))[: own.passages - len(rows)]
            rows |= dict.fromkeys(frontier)
        return np.array([*(rows | dict.fromkeys(rank))][: own.passages], np.int64)

    def near(self, path: np.ndarray, bm25: np.ndarray) -> list[np.ndarray]:
        return [*super().near(path, bm25), self.graph(bm25)]

    def example(
        self, number: int, path: np.ndarray, is_gold: bool, bm25: np.ndarray, holding: np.ndarray
    ) -> Example | None:
        """Return the example of a question; None without a positive. The path is always read. The end of a gold path is
        the positive; without a gold path, the path and the graph's passages with the answer are positives."""
        graph = self.graph(bm25)
        positives = path[-1:] if is_gold else np.union1d(path, np.intersect1d(graph, holding))
        if not len(positives):
            return None
        kept = np.union1d(path, positives)
        return Example(number, kept, positives, np.setdiff1d(graph, np.concatenate([kept, holding])))

    def loss(self, model: GraphModel, vectors_PD: Tensor, rows_P: np.ndarray, example: Example) -> Tensor:
        import torch

        positive_P = torch.from_numpy(np.isin(rows_P, example.positives)).to(vectors_PD.device)
        return model.loss(vectors_PD, self._relations(rows_P, vectors_PD), positive_P)

    def _relations(self, rows_P: np.ndarray, like: Tensor) -> Tensor:
        import torch

        return torch.from_numpy(self.links.relations(rows_P)).to(like.device)

    def search(self, tokens: np.ndarray, bm25: np.ndarray) -> tuple[list[int], list[float]]:
        """Return the passages of the graph with their logits, the most likely choice first."""
        import torch

        rows_P = self.graph(bm25)
        if not len(rows_P):
            return [], []
        with torch.no_grad():
            vectors_PD = self.pair_encoder(self.model).vectors([tokens] * len(rows_P), rows_P.tolist())
            logits = self.model(vectors_PD, self._relations(rows_P, vectors_PD)).cpu()
        order = logits.argsort(descending=True, stable=True)
        return rows_P[order.numpy()].tolist(), logits[order].tolist()

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        return Retrieved.padded(self.found(questions), k)
