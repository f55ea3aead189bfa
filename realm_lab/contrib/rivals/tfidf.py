"""DrQA's ranking (Chen et al. 2017, section 3.1, as released): hashed unigrams and bigrams, TF-IDF, inner products.

A text is decomposed (NFD), cut into runs of letters and digits and single other characters, and lower-cased; an n-gram
with a stop word or punctuation in it is dropped, the rest are counted by murmurhash3 mod 2^24. The weight of a bucket
that N_t of N texts have is log(1 + count) times log((N - N_t + 0.5) / (N_t + 0.5)), or 0 if that is negative. Texts and
questions have the same weights, so that the second factor enters squared, and no length is normalised.
"""

# Shapes: N texts, Q questions, U buckets that the texts use

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise

import mmh3
import numpy as np
import regex
from bm25s.stopwords import STOPWORDS_EN_PLUS
from scipy.sparse import csr_array

from realm_lab.engine.corpus.store import Passages

BUCKETS = 2**24
AT_ONCE = 256  # questions
WORD = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
PUNCTUATION = regex.compile(r"\p{P}+")
STOP_WORDS = frozenset(STOPWORDS_EN_PLUS)  # NLTK's, as in the released code


def terms(text: str) -> list[str]:
    """Return the unigrams and bigrams of a text without stop words and punctuation."""
    words = [word.lower() for word in WORD.findall(unicodedata.normalize("NFD", text))]
    kept = [word not in STOP_WORDS and not PUNCTUATION.fullmatch(word) for word in words]
    unigrams = [word for word, keep in zip(words, kept, strict=True) if keep]
    pairs = zip(pairwise(words), pairwise(kept), strict=True)
    return unigrams + [" ".join(pair) for pair, keep in pairs if all(keep)]


class TfidfTexts:
    """An index over texts."""

    def __init__(self, texts: Sequence[str]):
        owners, buckets, counts = _counts(texts)
        self._used_U, columns = np.unique(buckets, return_inverse=True)
        holders_U = np.bincount(columns)
        self._idf_U = np.log((len(texts) - holders_U + 0.5) / (holders_U + 0.5)).clip(0)
        self._weights_UN = self._weights(columns, owners, counts, len(texts))
        self._weights_UN.eliminate_zeros()

    def _weights(self, columns: np.ndarray, owners: np.ndarray, counts: np.ndarray, size: int) -> csr_array:
        """Return the weights of texts or questions, [U, size]."""
        values = np.log1p(counts) * self._idf_U[columns]
        return csr_array((values, (columns, owners)), shape=(len(self._used_U), size))

    def search(self, questions: Sequence[str], depth: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the best `depth` texts of each question, and their scores; score 0 is not a result. Among equal scores
        the earlier text is first."""
        found = []
        for start in range(0, len(questions), AT_ONCE):
            part = questions[start : start + AT_ONCE]
            owners, buckets, counts = _counts(part)
            columns = np.searchsorted(self._used_U[:-1], buckets)
            known = self._used_U[columns] == buckets
            weights_UQ = self._weights(columns[known], owners[known], counts[known], len(part))
            score_QN = (weights_UQ.T @ self._weights_UN).tocsr()
            for first, end in pairwise(score_QN.indptr):
                texts, scores = score_QN.indices[first:end], score_QN.data[first:end]
                order = np.lexsort((texts, -scores))[:depth]
                found.append((texts[order], scores[order]))
        return found


class TfidfArticles:
    """An index over articles: the passages of each in their order, with its title before them."""

    def __init__(self, passages: Passages):
        articles_N, titles, bodies = passages.articles, *(passages.text.column(part) for part in ("title", "body"))
        order_N = np.argsort(articles_N, kind="stable")
        starts = np.flatnonzero(np.diff(articles_N[order_N], prepend=-1))
        self._rows = np.split(order_N, starts[1:])
        self._index = TfidfTexts([" ".join([titles[rows[0]], *(bodies[row] for row in rows)]) for rows in self._rows])

    def search(self, questions: Sequence[str], depth: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the passages of the best `depth` articles of each question, best article first, with scores."""
        found = []
        for articles, scores in self._index.search(questions, depth):
            rows = [self._rows[article] for article in articles]
            joined = np.concatenate([np.empty(0, np.int64), *rows])
            found.append((joined, np.repeat(scores, [len(own) for own in rows])))
        return found


def _counts(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the buckets of some texts: text number, bucket and count."""
    hashed = [np.array([mmh3.hash(term, seed=0, signed=False) for term in terms(text)], int) for text in texts]
    parts = [np.unique(buckets % BUCKETS, return_counts=True) for buckets in hashed]
    owners = np.repeat(np.arange(len(texts)), [len(buckets) for buckets, _ in parts])
    return owners, *(np.concatenate(part) for part in zip(*parts, strict=True))  # type: ignore[return-value]
