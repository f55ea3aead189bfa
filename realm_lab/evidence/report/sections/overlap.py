"""Exact match by the overlap of a question with training questions."""

from __future__ import annotations

from typing import ClassVar

from realm_lab.evidence.report.tables import Means


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
