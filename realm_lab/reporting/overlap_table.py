"""Exact match split by what training had already said: the table of it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from realm_lab.reporting.document import NOTHING, Table, mean_sd, number
from realm_lab.reporting.table import column, summarise

GROUPS = {
    "no_overlap": "neither",
    "answer_overlap_only": "answer only",
    "question_overlap": "question",
}
NOTE = (
    "After Lewis et al. 2021. Question: training had it in the same words, after normalisation. Answer only: one of "
    "its references is an answer to another question of training. Numbers of questions: mean over seeds."
)


def overlap_table(rows: pd.DataFrame, cells: Sequence[tuple[str, str]]) -> Table | None:
    """Exact match of each (label, title) by group of questions; None where no run was measured so."""
    shown = []
    for label, title in cells:
        row: dict[str, str] = {"cell": title}
        for group, heading in GROUPS.items():
            values = column(rows, label, f"exact_match_{group}").values()
            questions = summarise(column(rows, label, f"questions_{group}").values())
            row[heading] = mean_sd(values)
            row[f"questions, {heading}"] = number(questions.mean, 0) if questions else NOTHING
        shown.append(row)
    if not any(f"questions_{group}" in rows for group in GROUPS):
        return None
    return Table("Exact match by overlap with training.", pd.DataFrame(shown), notes=(NOTE,))
