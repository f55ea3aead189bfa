"""Recall@k: how often an answer, or the gold passage, is among the first k passages (section 4.5)."""

# Shapes: B questions, K passages

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from realm_lab.corpus.answers import normalise_answer
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


class NormalisedBodies:
    """Passage bodies in the normal form of answers, with a blank at either end, each made once."""

    def __init__(self, passages: Passages):
        self._passages = passages
        self._known: dict[int, str] = {}

    def __getitem__(self, row: int) -> str:
        if row not in self._known:
            self._known[row] = f" {normalise_answer(self.raw(row))} "
        return self._known[row]

    def raw(self, row: int) -> str:
        """A body as it is written: regular expressions are searched in it."""
        return str(self._passages.text.row(row)["body"])


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
    bodies: NormalisedBodies,
    answers: Sequence[Sequence[str]],
    gold: Sequence[np.ndarray],
    kinds: Sequence[str],
    ids: Sequence[str],
    patterns: Patterns,
) -> Ranks:
    """Ranks of the answers and of the gold passages in retrieved rows.

    An answer that is a text must be in the passage as whole words, both normalised; one that is a regular expression
    (`kinds`) must match anywhere in it; `patterns` remembers what is wrong with it, by the question's id.
    """
    answer_rank, gold_rank = np.zeros(len(rows_BK), np.int64), np.zeros(len(rows_BK), np.int64)
    for number, rows in enumerate(rows_BK.tolist()):
        own_gold = set(gold[number].tolist())
        wanted = [f" {normalised} " for normalised in map(normalise_answer, answers[number]) if normalised]
        for place, row in enumerate(rows, 1):
            if row < 0:
                continue
            if not answer_rank[number]:
                if kinds[number] == "regex":
                    held = patterns.found_in(bodies.raw(row), answers[number], ids[number])
                else:
                    held = any(answer in bodies[row] for answer in wanted)
                answer_rank[number] = place * held
            if not gold_rank[number] and row in own_gold:
                gold_rank[number] = place
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
