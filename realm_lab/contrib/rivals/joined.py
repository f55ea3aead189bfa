"""Join several passages to one text for a reader of paths, and find the passage of a span in it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from realm_lab.corpus.store import Passages, Ragged, TextTable


class JoinedPassages(Passages):
    """A view of a corpus in which row i is the bodies of `rows[i]`, one after the other with blanks between; without
    titles."""

    def __init__(self, passages: Passages, rows: Sequence[Sequence[int]]):
        self._rows = rows
        self._texts = [[str(passages.text.row(row)["body"]) for row in own] for own in rows]
        self.text = TextTable(pa.table({"body": pa.array([" ".join(texts) for texts in self._texts], pa.string())}))
        bodies = [np.concatenate([passages.bodies[row] for row in own]) for own in rows]
        offsets = np.array([0, *accumulate(map(len, bodies))])
        self.bodies = Ragged.of(offsets, np.concatenate([np.empty(0, np.int64), *bodies]).astype(np.int64))

    def __len__(self) -> int:
        return len(self._rows)

    def place(self, number: int, span: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        """Return the passage that a span of characters starts in, and the span in its body, cut at the end of that."""
        start, end = span
        for row, text in zip(self._rows[number], self._texts[number], strict=True):
            if start <= len(text):
                return row, (start, min(end, len(text)))
            start, end = start - len(text) - 1, end - len(text) - 1
        raise AssertionError("a span lies in the text")
