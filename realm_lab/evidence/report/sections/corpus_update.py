"""Answers after the corpus was replaced, as every evaluation measures them."""

from __future__ import annotations

from typing import ClassVar

from realm_lab.evidence.report.tables import Means


class CorpusUpdate(Means):
    """Answers after the corpus was replaced, as every evaluation measures them."""

    name = "corpus_update"
    heading = "Answers after the corpus was replaced, without training"
    columns: ClassVar = {
        "corpus_update.follows": "follows the new version",
        "corpus_update.stays": "stays with the old",
        "corpus_update.wrong": "wrong",
        "corpus_update.unchanged_exact_match_before": "unchanged facts: exact match before",
        "corpus_update.unchanged_exact_match_after": "after",
    }
    note = """\
Share of the questions whose fact changed that are answered as in the new version, as in the old one, or otherwise \
(means, from three seeds on with the standard deviation). Unchanged facts are the control: an update should not hurt \
them.
"""
