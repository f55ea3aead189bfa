"""The bounds that pre-training watches for a collapse: their metrics and limits, and the text of a flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Bound(NamedTuple):
    """A bound on a metric of pre-training."""

    metric: str
    quantity: str  # its name for people
    is_upper: bool
    limit: float
    unit: str
    counts_at_end: bool = False  # a crossing at the last step flags the run even before `patience_steps`

    def is_crossed(self, value: float) -> bool:
        """True if a value is out of bounds or NaN."""
        return not (value <= self.limit if self.is_upper else value >= self.limit)

    @property
    def crossed(self) -> str:
        """Return, for example, "above 0.99"."""
        return f"{'above' if self.is_upper else 'below'} {self.limit:g}{self.unit}"


BOUNDS = (
    # p(z|x) no longer depends on z
    Bound("candidate_entropy_fraction", "entropy of p(z|x)", True, 0.999, " of log k"),
    # the retriever prefers the null document to every passage
    Bound("null_probability", "p(null|x)", True, 0.99, ""),
    # the reader does not gain from the passage that helps most
    Bound("probe_gold_utility", "utility of gold passages", False, 0.0, " nats a token"),
)

# Metrics of held-out retrieval, the best judge first: name of a share, name of the number of items, words for people
RETRIEVAL = (
    ("cloze_gold_among_candidates", "cloze_gold_known", "gold passages among the candidates of held-out sentences"),
    ("recall_at_5", "questions_dev", "recall@5 on development questions"),
)
LEAST_SHARE = 0.05
LEAST_HITS = 20  # chance leaves less than half of 20 hits in 1 of 200 samples (Poisson)


def retrieval_bound(start: Mapping[str, float]) -> Bound | None:
    """Return the bound on held-out retrieval: half of its value in `start`, the evaluation at step 0.

    It bounds the first metric of RETRIEVAL with at least LEAST_SHARE and LEAST_HITS in `start`; None if there is none.
    """
    for metric, items, quantity in RETRIEVAL:
        share = start.get(metric, 0.0)
        if share >= LEAST_SHARE and share * start[items] >= LEAST_HITS:
            return Bound(metric, quantity, False, share / 2, ", half of step 0,", counts_at_end=True)
    return None
