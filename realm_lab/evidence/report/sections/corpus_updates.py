"""Finished runs evaluated with another corpus, without training: `realm-lab evaluate --corpus`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from realm_lab.evidence.report.frames import SIDES, UPDATES, column
from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.report.tables import mean_of
from realm_lab.evidence.statistics.paired import compare, step_down_max_t
from realm_lab.evidence.statistics.wording import interval, p_value, signed

if TYPE_CHECKING:
    import pandas as pd

UPDATED = {  # measure of a corpus update: its title and digits
    "log_likelihood": ("log p(y|x), nats", 2),
    "utility": ("utility, nats", 2),
    "answer_retrieved": ("a candidate has the answer", 3),
    "evidence_retrieved": ("a candidate supports the answer", 3),
    "exact_match": ("exact match", 3),
    "follows": ("follows the new version", 3),
    "stays": ("stays with the old", 3),
    "wrong": ("wrong", 3),
}


class CorpusUpdates(ReportSection):
    """Each measure with the old and the new corpus."""

    name = "corpus_updates"
    heading = "Finished runs with another corpus, without training"
    note = """\
From `realm-lab evaluate --corpus`. Means over the seeds with the old corpus and the new one, and the paired change \
with Student's 95 % interval. *p*: exact sign-flip test over the seeds, corrected for all rows of this table.
"""

    @functools.cached_property
    def rows(self) -> Rows:
        return update_rows(self.report.results, self.report.cells)


def update_rows(results: pd.DataFrame, cells: Sequence[tuple[str, str]]) -> Rows:
    """Return a row for each measure of each corpus update of a cell: both corpora, the change, and its p, corrected for
    all rows."""
    groups = dict.fromkeys(name.rsplit(".", 2)[0] for name in map(str, results) if name.startswith(f"{UPDATES}."))
    rows, changes = [], []
    for (name, title), group, (measure, (heading, digits)) in itertools.product(cells, groups, UPDATED.items()):
        before, after = (column(results, name, f"{group}.{side}.{measure}") for side in SIDES)
        if found := compare(after, before):
            row = {
                "variant": title,
                "update": group.partition(".")[2],
                "measure": heading,
                "seeds": str(len(found.seeds)),
            }
            row |= {"old": mean_of(before, 1, digits), "new": mean_of(after, 1, digits)}
            shown = f" [{interval(found.interval, digits)}]" if len(found.seeds) > 2 else ""
            rows.append(row | {"new − old [95 %]": f"{signed(found.mean, digits)}{shown}"})
            changes.append(found.by_seed)
    return [row | {"p": p_value(p)} for row, p in zip(rows, step_down_max_t(changes), strict=True)] if rows else []
