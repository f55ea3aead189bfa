"""Answers after the corpus was replaced, as every evaluation measures them."""

from __future__ import annotations

import functools

from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.report.tables import group_rows

CORPUS_UPDATE = {
    "corpus_update.follows": "follows the new version",
    "corpus_update.stays": "stays with the old",
    "corpus_update.wrong": "wrong",
    "corpus_update.unchanged_exact_match_before": "unchanged facts: exact match before",
    "corpus_update.unchanged_exact_match_after": "after",
}


class CorpusUpdate(ReportSection):
    """Answers after the corpus was replaced, as every evaluation measures them."""

    name = "corpus_update"
    heading = "Answers after the corpus was replaced, without training"
    template = """<details markdown="1">
<summary>Corpus update</summary>

**The knowledge corpus and its index are replaced by an updated version, without training**

{{ table(rows) }}

Share of the questions whose fact changed that are answered as in the new version, as in the old one, or otherwise \
(mean ± standard deviation over the seeds). Unchanged facts are the control: an update should not hurt them.

</details>
"""

    @functools.cached_property
    def rows(self) -> Rows:
        """A row for each cell that has any of the values."""
        return group_rows(self.report.results, self.report.cells, CORPUS_UPDATE)
