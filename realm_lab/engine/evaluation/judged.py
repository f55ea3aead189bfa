"""Retrieval of documents with judged relevance: the measures of trec_eval, as BEIR reports them."""

# Shapes: Q questions, K passages, J judged passages of a question

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from realm_lab.engine.corpus.store import NO_ROW, Passages

MEASURES = ("ndcg_at_10", "judged_recall_at_100")  # of a run's evaluation, which retrieves RECALL_DEPTH documents
RECALL_DEPTH = 100
DEPTHS, SUCCESS_DEPTHS = (5, 10, 20, 30, 100, 1000), (1, 5, 10)


class Judged(NamedTuple):
    """The judgements of a question; a row is NO_ROW if its document is not in the corpus."""

    rows_J: np.ndarray
    relevance_J: np.ndarray


def find_documents(
    retrieve: Callable[[int], np.ndarray], passages: Passages, left_out: Sequence[str], depth: int = RECALL_DEPTH
) -> list[list[str]]:
    """Return the first `depth` documents for each question, best passage first, except the question's entry in
    `left_out`. `retrieve(k)` returns the rows of the best k passages, [Q, K], negative beyond the corpus. k is doubled
    until the passages are from enough documents."""
    k = min(depth, len(passages))
    while True:
        rows_QK = retrieve(k)
        rows, inverse = np.unique(rows_QK, return_inverse=True)
        names = ["" if row < 0 else name for row, name in zip(rows, _documents(passages, rows), strict=True)]
        found = [
            [name for name in dict.fromkeys(names[at] for at in positions_K) if name and name != own][:depth]
            for own, positions_K in zip(left_out, np.reshape(inverse, rows_QK.shape), strict=True)
        ]
        has_more_Q = rows_QK.min(1) >= 0  # BM25 finds only passages that share a word with the question
        if k >= len(passages) or not any(len(own) < depth for own, more in zip(found, has_more_Q, strict=True) if more):
            return found
        k = min(2 * k, len(passages))


def document_grades(judged: Judged, passages: Passages) -> dict[str, int]:
    """Return document -> grade. Documents missing in the corpus count too, under names that no document has."""
    grades: dict[str, int] = {}
    for position, (row, name) in enumerate(zip(judged.rows_J, _documents(passages, judged.rows_J), strict=True)):
        key = f"\0{position}" if row == NO_ROW else name
        grades[key] = max(grades.get(key, 0), int(judged.relevance_J[position]))
    return grades


def own_document(question: str, grades: Mapping[str, int]) -> str:
    """Return the id of the document that is the question itself, to be left out of the results as in BEIR. This is the
    question's id, or "" if a document with this id is relevant: then the two kinds of ids are unrelated."""
    return "" if grades.get(question, 0) > 0 else question


def is_question(passage: Mapping[str, Any], identity: str, text: str) -> bool:
    """True if a passage is the question itself, by its document's id or its text, and so no hard negative."""
    return bool(passage["document"] == identity or passage["body"] == text)


def graded_scores(found: Sequence[str], grades: Mapping[str, int]) -> dict[str, float]:
    """Return the measures of found documents, best first. Relevant documents have a grade above 0; without any, all
    measures are 0. nDCG's gain is the grade, divided by log2(1 + rank) (trec_eval's ndcg_cut). `map` is the mean over
    the relevant documents of the precision at their ranks, 0 for a document not found."""
    gain = {name: max(grade, 0) for name, grade in grades.items()}  # TREC has grades below 0
    gains = np.array([gain.get(name, 0) for name in found], np.float64)
    ideal = np.array(sorted(gain.values(), reverse=True), np.float64)
    hits, relevant = np.cumsum(gains > 0), int(np.count_nonzero(ideal)) or 1
    precision = (hits / np.arange(1, len(hits) + 1))[gains > 0]
    scores = {"map": float(precision.sum() / relevant)}
    for k in DEPTHS:
        found_at_k = np.count_nonzero(gains[:k])
        scores[f"ndcg_at_{k}"] = _dcg(gains[:k]) / (_dcg(ideal[:k]) or 1.0)
        scores[f"judged_recall_at_{k}"] = found_at_k / relevant
        scores[f"precision_at_{k}"] = found_at_k / k
    return scores | {f"success_at_{k}": float(gains[:k].any()) for k in SUCCESS_DEPTHS}


def _dcg(gains: np.ndarray) -> float:
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())


def _documents(passages: Passages, rows: np.ndarray) -> list[str]:
    """Return the document of each row; for a negative row any document."""
    return passages.text.taken("document", np.maximum(rows, 0))
