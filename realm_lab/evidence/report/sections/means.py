"""Tables of several means for each cell: utility by its parts, overlap with training, an updated corpus."""

from __future__ import annotations

import functools
from typing import ClassVar

from realm_lab.evidence.report.frames import column
from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.statistics.intervals import summarise
from realm_lab.evidence.statistics.wording import mean_sd


class Means(ReportSection):
    """Mean and spread of several `columns` (column -> heading), a row for each cell that has any of them."""

    columns: ClassVar[dict[str, str]]

    @functools.cached_property
    def rows(self) -> Rows:
        rows = []
        for name, title in self.report.cells:
            found = {key: summarise(column(self.report.results, name, key).values()) for key in self.columns}
            if any(found.values()):
                row = {"variant": title, "n": str(max(one.n for one in found.values() if one))}
                row |= {self.columns[key]: mean_sd(one, 0 if "questions" in key else 3) for key, one in found.items()}
                rows.append(row)
        return rows


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


class Overlap(Means):
    """Exact match by the overlap of a question with training questions."""

    name = "overlap"
    heading = "Exact match by overlap with training"
    columns: ClassVar = {
        f"{what}_{group}": f"{heading}{unit}"
        for group, heading in (
            ("no_overlap", "neither"), ("answer_overlap_only", "answer only"), ("question_overlap", "question"),
        )
        for what, unit in (("exact_match", ""), ("questions", ", how many"))
    }  # fmt: skip
    note = """\
After Lewis et al. 2021. *Question*: training has the question in the same words, after normalisation. *Answer only*: \
one of its reference answers is the answer to another training question. *How many*: the number of such questions, a \
mean over the seeds.
"""


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
