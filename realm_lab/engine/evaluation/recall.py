"""Recall@k: how often the first k passages contain an answer, the gold passage, a passage that supports the answer, or
the whole path to it (section 4.5)."""

# Shapes: B questions, K passages

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from realm_lab.engine.corpus.answers import passage_holds
from realm_lab.engine.corpus.records import AnswerKind
from realm_lab.engine.corpus.regex_answers import Patterns
from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.retrieval.retriever import Retriever

DEPTHS = (1, 5, 20)
QUESTIONS_AT_ONCE = 256


class Ranks(NamedTuple):
    """1-based ranks, per question, of the first passage with an answer, the first gold passage, the passage of the path
    that is found last, and the first passage that supports the answer. 0: beyond the depth. -1: not applicable, as the
    question has no answers, no known gold passage, no path, or no known passage that supports its answer."""

    answer: np.ndarray
    gold: np.ndarray
    path: np.ndarray
    evidence: np.ndarray

    def part(self, indices: Sequence[int]) -> Ranks:
        """Select some of the questions."""
        return Ranks(*(column[list(indices)] for column in self))


@torch.no_grad()
def search_questions(retriever: Retriever, queries: Sequence[np.ndarray], depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of the first `depth` passages per question, int64 [B, depth], and their scores in the index,
    float32."""
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
    paths: Sequence[Sequence[int]] = (),
    supporting: Sequence[Sequence[int]] = (),
) -> Ranks:
    """Return ranks of the answers (`passage_holds`), gold passages, paths and supporting passages among retrieved rows.
    Rows are negative beyond the corpus."""
    bodies = {row: str(passages.text.row(row)["body"]) for row in np.unique(rows_BK).tolist() if row >= 0}
    answer_rank, gold_rank = np.zeros(len(rows_BK), np.int64), np.zeros(len(rows_BK), np.int64)
    path_rank, evidence_rank = np.full((2, len(rows_BK)), -1)
    for number, rows in enumerate(rows_BK.tolist()):
        asked = answers[number], kinds[number], patterns, ids[number]
        holding = (rank for rank, row in enumerate(rows, 1) if row >= 0 and passage_holds(bodies[row], *asked))
        answer_rank[number] = next(holding, 0) if answers[number] else -1
        gold_rank[number] = _first(rows, gold[number].tolist()) if len(gold[number]) else -1
    for number, wanted in enumerate(supporting):
        if len(wanted):
            evidence_rank[number] = _first(rows_BK[number].tolist(), wanted)
    for number, path in enumerate(paths):
        if path:
            found = [np.flatnonzero(rows_BK[number] == row) for row in path]
            path_rank[number] = 1 + max(int(ranks[0]) for ranks in found) if all(map(len, found)) else 0
    return Ranks(answer_rank, gold_rank, path_rank, evidence_rank)


def _first(rows: Sequence[int], wanted: Sequence[int]) -> int:
    """Return the rank of the first row that is one of `wanted`, from 1; 0 if none is."""
    return next((rank for rank, row in enumerate(rows, 1) if row in {*wanted}), 0)


def recall_metrics(ranks: Ranks, suffix: str = "") -> dict[str, float]:
    """Return recall_at_k of an answer string, gold_recall_at_k of a gold passage, evidence_at_k of a passage that
    supports the answer, and path_recall_at_k of every passage of a path. Each is a mean over the questions that have
    such answers or passages."""
    values: dict[str, float] = {}
    for name, ranks_B, depths in (
        ("recall_at", ranks.answer, DEPTHS),
        ("gold_recall_at", ranks.gold, DEPTHS),
        ("evidence_at", ranks.evidence, DEPTHS),
        ("path_recall_at", ranks.path, DEPTHS[1:]),
    ):
        if len(known := ranks_B[ranks_B >= 0]):
            values |= {f"{name}_{k}{suffix}": float(((known > 0) & (known <= k)).mean()) for k in depths}
    return values
