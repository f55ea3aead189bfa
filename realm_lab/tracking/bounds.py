"""The bounds that pre-training watches for a collapse: what they bound, and how a flag says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Bound(NamedTuple):
    """One bound of `pretrain.watch`, on one metric of pre-training."""

    parameter: str
    metric: str
    quantity: str  # for people
    is_upper: bool
    unit: str
    off: float  # the value that means: no bound
    of_retriever: bool  # says nothing while the retriever is held

    def crossed(self, limit: float) -> str:
        """For example "above 0.99"."""
        return f"{'above' if self.is_upper else 'below'} {limit:g}{self.unit}"


BOUNDS = (
    Bound("min_entropy", "candidate_entropy", "entropy of p(z|x)", False, " nats", 0.0, True),
    Bound("max_entropy_fraction", "candidate_entropy_fraction", "entropy of p(z|x)", True, " of log k", 1.0, True),
    Bound("max_null_probability", "null_probability", "p(null|x)", True, "", 1.0, True),
    Bound("min_gold_utility", "probe_gold_utility", "utility of gold passages", False, " nats a token", -100.0, False),
)


def bounds_set(watch: Mapping[str, Any]) -> list[tuple[Bound, float]]:
    """The bounds that are switched on in the values of `pretrain.watch`, with their values."""
    named = [(bound, watch.get(bound.parameter, bound.off)) for bound in BOUNDS]
    return [(bound, float(value)) for bound, value in named if value != bound.off]
