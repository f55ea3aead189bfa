"""The bounds that pre-training watches for a collapse: what they bound, and how a flag says it."""

from __future__ import annotations

from typing import NamedTuple


class Bound(NamedTuple):
    """One bound, on one metric of pre-training."""

    metric: str
    quantity: str  # for people
    is_upper: bool
    limit: float
    unit: str

    @property
    def crossed(self) -> str:
        """For example "above 0.99"."""
        return f"{'above' if self.is_upper else 'below'} {self.limit:g}{self.unit}"


BOUNDS = (
    # p(z|x) no longer depends on z
    Bound("candidate_entropy_fraction", "entropy of p(z|x)", True, 0.999, " of log k"),
    # the retriever prefers no passage at all
    Bound("null_probability", "p(null|x)", True, 0.99, ""),
    # the reader does not gain from the passage that helps most
    Bound("probe_gold_utility", "utility of gold passages", False, 0.0, " nats a token"),
)
