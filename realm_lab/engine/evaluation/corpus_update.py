"""Effect of an updated corpus on answers: they follow it, stay with the old one, or are wrong (Table 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def question_summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return shares of answers to changed questions (follows, stays, wrong), and exact match of unchanged questions.

    Each row has `changed`, and for each corpus, `old` and `new`, the answer's flags `matches_old` and `matches_new`. A
    changed question is `known` if it was right with the old corpus. An answer that matches both references follows.
    """
    changed = [row for row in rows if row["changed"]]
    unchanged = [row for row in rows if not row["changed"]]
    known = [row for row in changed if row["old"]["matches_old"]]
    return {
        "changed_questions": len(changed),
        "unchanged_questions": len(unchanged),
        "old_corpus": _shares(changed, "old"),
        "new_corpus": _shares(changed, "new"),
        "known_questions": len(known),
        "new_corpus_of_known": _shares(known, "new"),
        "unchanged_exact_match_before": _mean([row["old"]["matches_old"] for row in unchanged]),
        "unchanged_exact_match_after": _mean([row["new"]["matches_old"] for row in unchanged]),
    }


def _shares(rows: Sequence[dict[str, Any]], corpus: str) -> dict[str, float] | None:
    """Return follows, stays and wrong, which sum to 1."""
    if not rows:
        return None
    follows = float(np.mean([row[corpus]["matches_new"] for row in rows]))
    stays = float(np.mean([row[corpus]["matches_old"] and not row[corpus]["matches_new"] for row in rows]))
    return {"follows": follows, "stays": stays, "wrong": 1 - follows - stays}


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None
