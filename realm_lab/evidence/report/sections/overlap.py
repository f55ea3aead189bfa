"""Exact match by the overlap of a question with training questions."""

from __future__ import annotations

import functools

from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.report.tables import group_rows

OVERLAPS = {
    f"{what}_{group}": f"{heading}{unit}"
    for group, heading in (
        ("no_overlap", "neither"), ("answer_overlap_only", "answer only"), ("question_overlap", "question"),
    )
    for what, unit in (("exact_match", ""), ("questions", ", how many"))
}  # fmt: skip


class Overlap(ReportSection):
    """Exact match by the overlap of a question with training questions."""

    name = "overlap"
    heading = "Exact match by overlap with training"
    template = """<details markdown="1">
<summary>Exact match by overlap with training</summary>

{{ table(rows) }}

After Lewis et al. 2021. *Question*: training has the question in the same words, after normalisation. *Answer only*: \
one of its reference answers is the answer to another training question. *How many*: the number of such questions, a \
mean over the seeds.

</details>
"""

    @functools.cached_property
    def rows(self) -> Rows:
        """A row for each cell that has any of the values."""
        return group_rows(self.report.results, self.report.cells, OVERLAPS)
