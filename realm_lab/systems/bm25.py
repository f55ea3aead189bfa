"""BM25 over the knowledge corpus (bm25s): the reference line of every retrieval table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import bm25s
import numpy as np
import Stemmer
import torch

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

    def _tokens(self, texts: Sequence[str], return_ids: bool = True) -> Any:
        """The terms of each text: as numbers for an index, or as words."""
        words, stop_words, _ = self._analysis
        stop = list(stop_words) if isinstance(stop_words, tuple) else stop_words
        how = {"stopwords": stop, "stemmer": self._stemmer, "token_pattern": words, "return_ids": return_ids}
        return bm25s.tokenize(list(texts), **how, show_progress=False)

    def search(self, questions: Sequence[str], depth: int) -> Retrieved:
        """The best `depth` texts of each question, of equal ones the first; row -1, score -inf beyond the corpus."""
        rows = np.full((len(questions), depth), -1, np.int64)
        scores = np.full((len(questions), depth), -np.inf, np.float32)
        count = min(depth, self._size) if self._has_words else 0
        for number, terms in enumerate(self._tokens(questions, return_ids=False) if count else ()):
            score_N = self._index.get_scores(terms) if terms else np.zeros(self._size, np.float32)
            rows[number, :count] = best = best_rows(score_N, count)
            scores[number, :count] = score_N[best]
        return Retrieved(rows, scores)


def best_rows(score_N: np.ndarray, count: int) -> np.ndarray:
    """The rows of the highest scores, the highest first; of equal scores the first row first, int64 [count].

    bm25s' own `retrieve` takes any of them, by numpy's partition: others on another processor, and slowly where many
    scores are equal, as they are where a passage has none of the words.
    """
    least = torch.from_numpy(score_N).topk(count).values[-1].item()
    above, equal = np.flatnonzero(score_N > least), np.flatnonzero(score_N == least)
    rows = np.concatenate([above, equal[: count - len(above)]])
    return rows[np.lexsort((rows, -score_N[rows]))]


class Bm25(Bm25Texts):
    """An index over the titles and bodies of passages."""

    def __init__(self, passages: Passages, analysis: Analysis = PLAIN):
        titles, bodies = passages.text.column("title"), passages.text.column("body")
        super().__init__([f"{title} {body}" for title, body in zip(titles, bodies, strict=True)], analysis)
