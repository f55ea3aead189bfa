"""Effect of an updated corpus on answers: they follow it, stay with the old one, or are wrong (Table 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from realm_lab.engine.evaluation.cloze_items import ClozeReading


def question_summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares over questions whose answer changed, and exact match of the others with both corpora.

    Each row: `changed`, and for `old` and `new` (the corpus asked with) `matches_old` and `matches_new`. An answer
    that matches both references follows. `known` are the changed questions that were right with the old corpus.
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


def cloze_summary(old: Sequence[ClozeReading], new: Sequence[ClozeReading]) -> dict[str, Any]:
    """Return means with each corpus, and of new minus old with the paired `deltas`. Likelihoods in nats per answer. If
    all items name their evidence, the share of those with evidence among the candidates is one more."""
    values = {"old": _values(old), "new": _values(new)}
    pieces = sum(reading.wordpieces for reading in old)
    deltas = {name: values["new"][name] - values["old"][name] for name in values["old"]}
    difference = {name: {"mean": float(each.mean()), "deltas": each.tolist()} for name, each in deltas.items()}
    summary: dict[str, Any] = {"items": len(old), "wordpieces": pieces, "difference": difference}
    for corpus, own in values.items():
        summary[corpus] = {measure: float(each.mean()) for measure, each in own.items()}
    return summary


def _values(readings: Sequence[ClozeReading]) -> dict[str, np.ndarray]:
    """Return the measures of each item; utility is the gain by retrieval: log p(y|x) - log p(y|null, x)."""
    found = {
        "exact_match": np.array([reading.exact_match for reading in readings], float),
        "log_likelihood": np.array([reading.log_likelihood for reading in readings]),
        "utility": np.array([reading.log_likelihood - reading.null_log_likelihood for reading in readings]),
        "answer_retrieved": np.array([reading.answer_retrieved for reading in readings], float),
    }
    evidence = [reading.evidence_retrieved for reading in readings]
    return found if None in evidence else found | {"evidence_retrieved": np.array(evidence, float)}


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None
