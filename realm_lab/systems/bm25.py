"""BM25 over the knowledge corpus (bm25s): the reference line of every retrieval table."""

from __future__ import annotations

from collections.abc import Sequence

import bm25s
import numpy as np
import Stemmer

from realm_lab.corpus.store import Passages

K1, B = 0.9, 0.4  # Anserini's, as in the open-domain question-answering literature


class Bm25:
    """An index over title and body, English stems and stop words."""

    def __init__(self, passages: Passages):
        titles, bodies = passages.text.column("title"), passages.text.column("body")
        texts = [f"{title} {body}" for title, body in zip(titles, bodies, strict=True)]
        self._stemmer = Stemmer.Stemmer("english")
        self._size = len(texts)
        self._index = bm25s.BM25(k1=K1, b=B)
        self._index.index(self._tokens(texts), show_progress=False)

    def _tokens(self, texts: Sequence[str]) -> bm25s.tokenization.Tokenized:
        return bm25s.tokenize(list(texts), stopwords="en", stemmer=self._stemmer, show_progress=False)

    def search(self, questions: Sequence[str], depth: int) -> np.ndarray:
        """Rows of the best `depth` passages of each question, int64 [questions, depth], -1 beyond the corpus."""
        rows = np.full((len(questions), depth), -1, np.int64)
        found, _ = self._index.retrieve(self._tokens(questions), k=min(depth, self._size), show_progress=False)
        rows[:, : found.shape[1]] = found
        return rows
