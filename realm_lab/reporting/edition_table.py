"""The paper's Table 4 for a study: the corpus is swapped for its updated edition, and nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from realm_lab.reporting.document import NOTHING, Block, Table, Text, mean_sd
from realm_lab.reporting.table import column

SHARES = {
    "edition_swap.follows": "follows the new edition",
    "edition_swap.stays": "stays with the old",
    "edition_swap.wrong": "wrong",
    "edition_swap.unchanged_exact_match_before": "unchanged facts: exact match before",
    "edition_swap.unchanged_exact_match_after": "after",
}
NOTE = (
    "Questions whose fact changed are answered with the new edition: as it says, as the old one said, or otherwise; "
    "mean ± standard deviation over seeds of the shares. Unchanged facts are the control: a swap should not hurt them. "
    "The answers to single questions after the swap, and their probabilities, are not recorded by the evaluate stage, "
    "so that the paper's one example cannot be shown here."
)


def table_4(rows: pd.DataFrame, cells: Sequence[tuple[str, str]]) -> list[Block]:
    """The shares for each cell, (name, title), the baseline first; `rows` are the results of the runs."""
    found = []
    for name, title in cells:
        values = {metric: column(rows, name, metric) for metric in SHARES}
        if any(values.values()):
            count = max(len(one) for one in values.values())
            questions = column(rows, name, "edition_swap.changed_questions")
            shown = {words: mean_sd(values[metric].values()) for metric, words in SHARES.items()}
            found.append(
                {"cell": title, "n": str(count)} | shown | {"changed questions": mean_sd(questions.values(), 0)}
            )
    if not found:
        text = "No edition swap: no run measured it. It needs an updated edition of the corpus."
        return [Text(text, missing=True)]
    frame = pd.DataFrame(found).fillna(NOTHING)
    return [Table("Table 4 of the paper, regenerated: the knowledge corpus is replaced.", frame, notes=(NOTE,))]
