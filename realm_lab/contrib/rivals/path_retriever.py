"""PathRetriever (Asai et al. 2020): paths of passages over links, found by a recurrent beam search, read as one text.

As in the released code: a question is encoded with each passage, the states are normalised, every candidate is a binary
choice, a learned vector ends the path, and the two best candidates of a step stay for the next (models/linked.py).
Simplified: links are titles that a passage names (links.py), not hyperlinks, at most LINKED per passage; paths
start with passages of BM25, not of TF-IDF's articles; a path of the greatest length is scored with its end
too; the encoder is initialised by the warm start's reader, with the learning rate of finetune.reader. The reader sees a
path as one text, its last passage first. Instead of a head for "answerable", one softmax over the spans of all paths,
with each path's log-probability added to its logits (`finetune.softmax: joint`). Without gold paths, training takes the
gold passage, else BM25's best with the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from realm_lab.contrib.rivals.linked import STAGES, Example, LinkedOptions, LinkedReader
from realm_lab.engine.corpus.store import Passages, Ragged, TextTable
from realm_lab.engine.evaluation.answers import Answer
from realm_lab.engine.params.sections import Positive
from realm_lab.engine.systems.registry import Retrieved

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from realm_lab.contrib.rivals.models.linked import Path, PathModel
    from realm_lab.engine.models.encoder import Encoder

LINKED = 100  # links of a passage that are followed, the best by BM25's order first


class PathRetrieverOptions(LinkedOptions):
    """`system_options.path_retriever`."""

    negatives: Positive = 79
    """Passages of a question in a step that are not of its path (released code, for Natural Questions: 80 with it)."""
    first: Positive = 20
    """Passages of BM25 that a path may start with (20 articles of TF-IDF in the released code)."""
    beam: Positive = 8
    """Paths that are followed (released code); finetune.candidates of them are read."""
    longest: Positive = 2
    """Passages of the longest path (released code, for Natural Questions: 3 steps, the last one being the end)."""


class JoinedPassages(Passages):
    """A view of a corpus: passage i joins the bodies of the passages `rows[i]` with blanks, without their titles."""

    def __init__(self, passages: Passages, rows: Sequence[Sequence[int]]):
        self._rows = rows
        self._texts = [[str(passages.text.row(row)["body"]) for row in own] for own in rows]
        self.text = TextTable(pa.table({"body": pa.array([" ".join(texts) for texts in self._texts], pa.string())}))
        bodies = [np.concatenate([passages.bodies[row] for row in own]) for own in rows]
        offsets = np.array([0, *accumulate(map(len, bodies))])
        self.bodies = Ragged.of(offsets, np.concatenate([np.empty(0, np.int64), *bodies]).astype(np.int64))

    def __len__(self) -> int:
        return len(self._rows)

    def locate(self, number: int, span: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        """Return the passage that a span of characters starts in, and the span in its body, cut at the body's end."""
        start, end = span
        for row, text in zip(self._rows[number], self._texts[number], strict=True):
            if start <= len(text):
                return row, (start, min(end, len(text)))
            start, end = start - len(text) - 1, end - len(text) - 1
        raise AssertionError("a span lies in the text")


class PathRetriever(LinkedReader):
    """Finds passages one after the other, each with the help of those before it."""

    name = "path_retriever"
    title = "PathRetriever"
    options = PathRetrieverOptions
    stages = STAGES
    fixed: ClassVar = {"finetune.softmax": "joint"}

    def new_model(self, encoder: Encoder, generator: torch.Generator) -> PathModel:
        from realm_lab.contrib.rivals.models.linked import PathModel

        return PathModel(encoder, generator)

    def example(
        self, number: int, path: np.ndarray, is_gold: bool, bm25: np.ndarray, holding: np.ndarray
    ) -> Example | None:
        """Return a question's path, with negatives from BM25 and from links of the path and BM25's first passages."""
        if not len(path):
            return None
        near = np.concatenate([bm25, *map(self.links.of, [*path, *bm25[: self.own.first]])])
        others = np.setdiff1d(near, np.concatenate([path, holding]))
        return Example(number, path, path[-1:], others)

    def loss(self, model: PathModel, vectors_PD: Tensor, rows_P: np.ndarray, example: Example) -> Tensor:
        return model.loss(vectors_PD, len(example.kept))

    def search(self, tokens: np.ndarray, bm25: np.ndarray) -> list[Path]:
        """Return the best paths, best first."""
        from realm_lab.contrib.rivals.models.linked import best_paths

        encoder, own = self.pair_encoder(self.model), self.own
        rank = {int(row): number for number, row in enumerate(bm25)}

        def linked(row: int) -> list[int]:
            return sorted(self.links.of(row).tolist(), key=lambda other: rank.get(other, len(bm25)))[:LINKED]

        def encode(rows: Sequence[int]) -> Tensor:
            return encoder.vectors([tokens] * len(rows), rows)

        return best_paths(self.model, encode, bm25[: own.first].tolist(), linked, own.beam, own.longest)

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        """Return the passages of the best paths; within a path, from its last passage to its first."""
        found = []
        for paths in self.found(questions):
            scores: dict[int, float] = {}
            for path in paths:
                for row in path.rows[::-1]:
                    scores.setdefault(row, path.log_prob)
            found.append((list(scores), list(scores.values())))
        return Retrieved.padded(found, k)

    def readable(self, questions: Sequence[str], k: int) -> tuple[JoinedPassages, Retrieved]:
        """Return each path as one passage: the bodies of its passages, from the last to the first."""
        numbers: dict[tuple[int, ...], int] = {}
        found = [
            ([numbers.setdefault(path.rows, len(numbers)) for path in paths], [path.log_prob for path in paths])
            for paths in self.found(questions)
        ]
        return JoinedPassages(self.passages, [rows[::-1] for rows in numbers]), Retrieved.padded(found, k)

    def answer(
        self, questions: Sequence[str], retrieved: Retrieved | None = None, k: int | None = None
    ) -> list[Answer]:
        """Answer from the best paths; a candidate's row is the passage of its path that contains the span."""
        answers = super().answer(questions, retrieved, k)
        if retrieved is not None:
            return answers
        joined, _ = self.readable(questions, 1)
        placed = []
        for answer in answers:
            found = []
            for candidate in answer.candidates:
                row, span = joined.locate(candidate.row, candidate.span)
                found.append(candidate._replace(row=row, span=span))
            placed.append(answer._replace(candidates=found))
        return placed
