"""Retrieval utility by its parts, before and after pre-training."""

from __future__ import annotations

import functools

from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.report.tables import group_rows

UTILITY = {
    f"cloze_{name}_{when}": f"{title}, {when}"
    for name, title in (
        ("gold_log_likelihood", "log p(y|gold,x)"),
        ("null_log_likelihood", "log p(y|null,x)"),
        ("gold_rank", "median rank of gold"),
    )
    for when in ("start", "end")
}


class Utility(ReportSection):
    """Retrieval utility by its parts, before and after pre-training."""

    name = "utility"
    heading = "Retrieval utility by its parts"
    template = """<details markdown="1">
<summary>Retrieval utility by its parts</summary>

{{ table(rows) }}

On held-out sentences, in nats, before and after pre-training. The null document, which utility is measured against, \
drifts: if log p(y|null,x) falls, utility rises without any better passage. *Rank*: of the passage with the fact, \
among all passages of a fresh index.

</details>
"""

    @functools.cached_property
    def rows(self) -> Rows:
        """A row for each cell that has any of the values."""
        return group_rows(self.report.results, self.report.cells, UTILITY)
