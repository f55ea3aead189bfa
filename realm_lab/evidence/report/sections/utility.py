"""Retrieval utility by its parts, before and after pre-training."""

from __future__ import annotations

from typing import ClassVar

from realm_lab.evidence.report.tables import Means


class Utility(Means):
    """Retrieval utility by its parts, before and after pre-training."""

    name = "utility"
    heading = "Retrieval utility by its parts"
    columns: ClassVar = {
        f"cloze_{name}_{when}": f"{title}, {when}"
        for name, title in (
            ("gold_log_likelihood", "log p(y|gold,x)"),
            ("null_log_likelihood", "log p(y|null,x)"),
            ("gold_rank", "median rank of gold"),
        )
        for when in ("start", "end")
    }
    note = """\
On held-out sentences, in nats, before and after pre-training. The null document, which utility is measured against, \
drifts: if log p(y|null,x) falls, utility rises without any better passage. *Rank*: of the passage with the fact, \
among all passages of a fresh index.
"""
