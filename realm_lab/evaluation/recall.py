"""Recall@k: how often an answer, or the gold passage, is among the first k passages (section 4.5)."""

# Shapes: B questions, K passages

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from realm_lab.corpus.answers import passage_holds
from realm_lab.corpus.records import AnswerKind
from realm_lab.corpus.regex_answers import Patterns
from realm_lab.corpus.store import Passages
from realm_lab.retrieval.retriever import Retriever

DEPTHS = (1, 5, 20)
QUESTIONS_AT_ONCE = 256


class Ranks(NamedTuple):
    """1-based rank of the first passage with an answer, and of the first gold passage; 0 where beyond the depth."""

    answer: np.ndarray
    gold: np.ndarray
    gold_known: np.ndarray

    def part(self, places: Sequence[int]) -> Ranks:
        """Those of some of the questions."""
        return Ranks(*(column[list(places)] for column in self))


@torch.no_grad()
def search_questions(retriever: Retriever, queries: Sequence[np.ndarray], depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the first `depth` passages of each question, int64 [B, depth], and their scores in the index, float32."""
    rows, scores = [], []
    for start in range(0, len(queries), QUESTIONS_AT_ONCE):
        query_BD = retriever.search_queries(queries[start : start + QUESTIONS_AT_ONCE])
        rows.append(retriever.find(query_BD, depth))
        scores.append(retriever.indexed_score(query_BD, rows[-1]).cpu().numpy())
    return np.concatenate(rows), np.concatenate(scores)


def rank_answers(
    rows_BK: np.ndarray,
    passages: Passages,
    answers: Sequence[Sequence[str]],
    gold: Sequence[np.ndarray],
    kinds: Sequence[AnswerKind],
    ids: Sequence[str],
    patterns: Patterns,
) -> Ranks:
    """Ranks of the answers (`passage_holds`) and of the gold passages in retrieved rows, negative beyond the corpus."""
    bodies = {row: str(passages.text.row(row)["body"]) for row in np.unique(rows_BK).tolist() if row >= 0}
    answer_rank, gold_rank = np.zeros(len(rows_BK), np.int64), np.zeros(len(rows_BK), np.int64)
    for number, rows in enumerate(rows_BK.tolist()):
        asked = answers[number], kinds[number], patterns, ids[number]
        holding = (place for place, row in enumerate(rows, 1) if row >= 0 and passage_holds(bodies[row], *asked))
        answer_rank[number] = next(holding, 0)
        own_gold = set(gold[number].tolist())
        gold_rank[number] = next((place for place, row in enumerate(rows, 1) if row in own_gold), 0)
    return Ranks(answer_rank, gold_rank, np.array([len(rows) > 0 for rows in gold]))


def recall_metrics(ranks: Ranks, suffix: str = "") -> dict[str, float]:
    """recall_at_k by answer string, and gold_recall_at_k where gold passages are known."""
    values = {f"recall_at_{k}{suffix}": _share(ranks.answer, k) for k in DEPTHS}
    if ranks.gold_known.any():
        known = ranks.gold[ranks.gold_known]
        values |= {f"gold_recall_at_{k}{suffix}": _share(known, k) for k in DEPTHS}
    return values


def _share(rank: np.ndarray, depth: int) -> float:
    return float(((rank > 0) & (rank <= depth)).mean())
