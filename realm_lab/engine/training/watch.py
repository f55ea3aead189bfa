"""Early warnings of a collapse: the health of the candidates, and bounds with patience."""

# Shapes: B sentences, K candidates, Q quantities, those by kind included

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from realm_lab.engine.core.process import to_device
from realm_lab.engine.models.realm import marginal_log_likelihood, retrieval_utility
from realm_lab.engine.retrieval.candidates import Candidates
from realm_lab.engine.retrieval.rows import ABSENT, NULL
from realm_lab.records.bounds import BOUNDS, RETRIEVAL, Bound, retrieval_bound
from realm_lab.records.run import COLLAPSED, Flag

QUANTITIES = (
    "marginal_log_likelihood",  # log p(y|x), nats
    "candidate_entropy",  # of p(z|x), nats
    "candidate_entropy_fraction",  # as a share of log k, for the k candidates of the query
    "score_spread",  # standard deviation of f(x,z) over passages
    "gold_among_candidates",  # if the gold passage is known
    "null_probability",  # if the null document is a candidate
    "retrieval_utility_train",  # sum_z p(z|x) RU(z|x), nats, if the sentences were also read without a passage
)
START = tuple(name for metric, items, _ in RETRIEVAL for name in (metric, items))
BY_KIND = ("gold_among_candidates", "null_probability")  # also logged for each kind of masked span, as NAME_KIND


def quantities(kinds: Sequence[str]) -> list[str]:
    """Return the names of the sums in `candidate_health` for sentences of these kinds."""
    return [*QUANTITIES, *(f"{name}_{kind}" for name in BY_KIND for kind in kinds)]


def health_means(health_2Q: Tensor, kinds: Sequence[str] = ()) -> dict[str, float]:
    """Return means by name of the sums in `candidate_health`; names without a sentence are left out."""
    sums = zip(quantities(kinds), *health_2Q.tolist(), strict=True)
    return {name: value / count for name, value, count in sums if count}


@torch.no_grad()
def candidate_health(
    candidates: Candidates,
    log_reader_BK: Tensor,
    log_null_B: Tensor | None,
    gold_B: np.ndarray,
    kind_B: Sequence[str] = (),
    kinds: Sequence[str] = (),
) -> Tensor:
    """Return indicators of the retriever's health in a training step: sums over sentences and the numbers of sentences
    summed, float64 [2, Q] in the order of `quantities(kinds)`. Results of micro-batches and ranks can be added.

    `log_reader_BK` is log p(y|z,x); `log_null_B` is log p(y|null,x), None if nothing was read without a passage;
    -1 in `gold_B` is an unknown gold passage; `kind_B` is the kind of each sentence, one of `kinds`.
    """
    rows_BK, score_BK, log_prior_BK = candidates
    rows = to_device(rows_BK, score_BK.device)
    real_BK, prior_BK = rows >= 0, log_prior_BK.exp()
    passages_B, present_B = real_BK.sum(1), (rows != ABSENT).sum(1)
    entropy_B = -(prior_BK * log_prior_BK).sum(1)
    center_B1 = (score_BK.masked_fill(~real_BK, 0.0).sum(1) / passages_B.clamp(min=1))[:, None]
    variance_B = (score_BK - center_B1).masked_fill(~real_BK, 0.0).square().sum(1) / passages_B.clamp(min=1)
    has_null_B = (rows == NULL).any(1)
    gold = to_device(np.asarray(gold_B, np.int64), rows.device)
    everyone_B = torch.ones_like(has_null_B)
    utility_B = torch.zeros_like(entropy_B)
    if log_null_B is not None:
        utility_B = (prior_BK * retrieval_utility(log_reader_BK, log_null_B)).sum(1)
    measured: list[tuple[Tensor, Tensor]] = [
        (marginal_log_likelihood(log_prior_BK, log_reader_BK), everyone_B),
        (entropy_B, everyone_B),
        (entropy_B / present_B.clamp(min=2).log(), present_B > 1),
        (variance_B.sqrt(), everyone_B),
        ((rows == gold[:, None]).any(1), gold >= 0),
        ((prior_BK * (rows == NULL)).sum(1), has_null_B),
        (utility_B, everyone_B if log_null_B is not None else ~everyone_B),
    ]
    for name in BY_KIND:
        value, entered = measured[QUANTITIES.index(name)]
        measured += [(value, entered & entered.new_tensor([own == kind for own in kind_B])) for kind in kinds]
    sums = torch.stack([torch.where(entered, value.double(), 0.0).sum() for value, entered in measured])
    counts = torch.stack([entered.sum() for _, entered in measured])
    return torch.stack([sums, counts.double()])


class CollapseWatch:
    """Bounds with patience: a flag is raised once a quantity was out of bounds in every update for `patience_steps`.

    Only calls of `update` with a value of the quantity count; one value inside the bounds restarts the count.
    Values of single batches are noisy, so a run near a bound may cross it and not be flagged. The bound of held-out
    retrieval is half of its value at step 0; if it is out of bounds at the last step, it is flagged without patience.
    """

    def __init__(self, patience_steps: int, total_steps: int, bounds: Sequence[Bound] = BOUNDS):
        self._bounds, self._patience_steps, self._total_steps = [*bounds], patience_steps, total_steps
        self._start: dict[str, float] = {}  # values at step 0 that the bound on retrieval is computed from
        self._since = [-1] * len(bounds)  # step since which the quantity is out of bounds; -1: it is inside
        self._seen = [-1] * len(bounds)  # latest step with a value of the quantity

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Compare values measured after `step` steps with the bounds."""
        if step == 0:
            self._bound_retrieval({name: values[name] for name in START if name in values})
        for number, bound in enumerate(self._bounds):
            value = values.get(bound.metric)
            if value is not None:
                self._seen[number] = step
                if not bound.is_crossed(value):
                    self._since[number] = -1
                elif self._since[number] < 0:
                    self._since[number] = step

    def _bound_retrieval(self, start: dict[str, float]) -> None:
        if bound := retrieval_bound(start):
            self._start = start
            self._bounds.append(bound)
            self._since.append(-1)
            self._seen.append(-1)

    def flags(self) -> tuple[Flag, ...]:
        """Return the raised flags, for example "collapsed: p(null|x) above 0.99 since step 1200"."""
        return tuple(
            Flag(COLLAPSED, f"collapsed: {bound.quantity} {bound.crossed} since step {since}")
            for bound, since, seen in zip(self._bounds, self._since, self._seen, strict=True)
            if since >= 0
            and (seen - since >= self._patience_steps or (bound.counts_at_end and seen == self._total_steps))
        )

    def state(self) -> dict[str, Tensor]:
        start = [self._start.get(name, 0.0) for name in START]
        return {
            "watch": torch.tensor([self._since, self._seen], dtype=torch.int64),
            "watch.start": torch.tensor(start, dtype=torch.float64),
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of `state`."""
        self._bound_retrieval(dict(zip(START, tensors["watch.start"].tolist(), strict=True)))
        self._since, self._seen = tensors["watch"].tolist()
