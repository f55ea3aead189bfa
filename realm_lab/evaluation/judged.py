"""Retrieval of documents with judged relevance: nDCG@10 and recall@100, as trec_eval and BEIR compute them."""

# Shapes: Q questions, K passages, J judged passages of a question

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from realm_lab.corpus.store import NO_ROW, Passages

MEASURES = ("ndcg_at_10", "judged_recall_at_100")
GAIN_DEPTH, RECALL_DEPTH = 10, 100


class Judged(NamedTuple):
    """The judgements of a question; a row is NO_ROW if its document is not in the corpus."""

    rows_J: np.ndarray
    relevance_J: np.ndarray


def find_documents(
    retrieve: Callable[[int], np.ndarray], passages: Passages, left_out: Sequence[str], depth: int = RECALL_DEPTH
) -> list[list[str]]:
    """Return the first `depth` documents for each question, best passage first, without the one of `left_out`.
    `retrieve(k)` returns the rows of the best k passages, [Q, K], negative beyond the corpus; it is asked for more
    until they are of enough documents."""
    k = min(depth, len(passages))
    while True:
        rows_QK = retrieve(k)
        rows, inverse = np.unique(rows_QK, return_inverse=True)
        names = ["" if row < 0 else name for row, name in zip(rows, _documents(passages, rows), strict=True)]
        found = [
            [name for name in dict.fromkeys(names[place] for place in places_K) if name and name != own][:depth]
            for own, places_K in zip(left_out, np.reshape(inverse, rows_QK.shape), strict=True)
        ]
        has_more_Q = rows_QK.min(1) >= 0  # BM25 finds only passages that share a word with the question
        if k >= len(passages) or not any(len(own) < depth for own, more in zip(found, has_more_Q, strict=True) if more):
            return found
        k = min(2 * k, len(passages))


def document_grades(judged: Judged, passages: Passages) -> dict[str, int]:
    """Return document -> grade; documents missing in the corpus count, under names that none has."""
    grades: dict[str, int] = {}
    for place, (row, name) in enumerate(zip(judged.rows_J, _documents(passages, judged.rows_J), strict=True)):
        key = f"\0{place}" if row == NO_ROW else name
        grades[key] = max(grades.get(key, 0), int(judged.relevance_J[place]))
    return grades


def own_document(question: str, grades: Mapping[str, int]) -> str:
    """Return the document that is the question itself, of the same id: as in BEIR, it is left out of the
    retrieved documents. "" if that document is relevant: then the ids are of two lists."""
    return "" if grades.get(question, 0) > 0 else question


def is_question(passage: Mapping[str, Any], identity: str, text: str) -> bool:
    """True for a passage that is the question itself, by the id of its document or by its text: no hard negative."""
    return bool(passage["document"] == identity or passage["body"] == text)


def graded_scores(found: Sequence[str], grades: Mapping[str, int]) -> tuple[float, float]:
    """Return nDCG@10 and recall@100 of found documents, best first; 0 if none is relevant. A gain is the
    grade of a document, divided by log2(1 + rank) (trec_eval's ndcg_cut)."""
    gain = {name: max(grade, 0) for name, grade in grades.items()}  # TREC has grades below 0
    relevant = sum(grade > 0 for grade in gain.values())
    if not relevant:
        return 0.0, 0.0
    gains = [gain.get(name, 0) for name in found]
    ideal = sorted(gain.values(), reverse=True)
    return _dcg(gains) / _dcg(ideal), sum(own > 0 for own in gains[:RECALL_DEPTH]) / relevant


def _dcg(gains: Sequence[int]) -> float:
    top = np.array(gains[:GAIN_DEPTH], np.float64)
    return float((top / np.log2(np.arange(2, len(top) + 2))).sum())


def _documents(passages: Passages, rows: np.ndarray) -> list[str]:
    """Return the documents of rows, any for a negative one."""
    return passages.text.taken("document", np.maximum(rows, 0))
