"""BM25 over the knowledge corpus (bm25s): the reference line of every retrieval table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import bm25s
import numpy as np
import Stemmer

from realm_lab.corpus.store import Passages
from realm_lab.systems.registry import Retrieved

K1, B = 0.9, 0.4  # Anserini's, as in the open-domain question-answering literature


class Analysis(NamedTuple):
    """How a text becomes terms."""

    words: str  # expression of a word
    stop_words: str | tuple[str, ...]  # a list known to bm25s, or the words
    stems: str  # algorithm of the Snowball library


PLAIN = Analysis(r"(?u)\b\w\w+\b", "en", "english")  # words of two letters or more, Porter 2


class Bm25Texts:
    """An index over texts."""

    def __init__(self, texts: Sequence[str], analysis: Analysis = PLAIN):
        self._analysis = analysis
        self._stemmer = Stemmer.Stemmer(analysis.stems)
        self._size = len(texts)
        self._index = bm25s.BM25(k1=K1, b=B)
        tokens = self._tokens(texts)
        self._has_words = any(tokens.ids)  # pictures have none
        if self._has_words:
            self._index.index(tokens, show_progress=False)

    def _tokens(self, texts: Sequence[str]) -> bm25s.tokenization.Tokenized:
        words, stop_words, _ = self._analysis
        stop = list(stop_words) if isinstance(stop_words, tuple) else stop_words
        return bm25s.tokenize(
            list(texts), stopwords=stop, stemmer=self._stemmer, token_pattern=words, show_progress=False
        )

    def search(self, questions: Sequence[str], depth: int) -> Retrieved:
        """The best `depth` texts of each question; row -1 with score -inf beyond the corpus."""
        rows = np.full((len(questions), depth), -1, np.int64)
        scores = np.full((len(questions), depth), -np.inf, np.float32)
        if not self._has_words:
            return Retrieved(rows, scores)
        found, values = self._index.retrieve(self._tokens(questions), k=min(depth, self._size), show_progress=False)
        rows[:, : found.shape[1]], scores[:, : found.shape[1]] = found, values
        return Retrieved(rows, scores)


class Bm25(Bm25Texts):
    """An index over the titles and bodies of passages."""

    def __init__(self, passages: Passages, analysis: Analysis = PLAIN):
        titles, bodies = passages.text.column("title"), passages.text.column("body")
        super().__init__([f"{title} {body}" for title, body in zip(titles, bodies, strict=True)], analysis)
