"""The health of candidates against plain loops, and bounds that flag a run exactly when they should."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from realm_lab.engine.retrieval.candidates import Candidates
from realm_lab.engine.retrieval.rows import ABSENT, NULL
from realm_lab.engine.training.pretrain import PretrainTask
from realm_lab.engine.training.watch import CollapseWatch, candidate_health, health_means
from realm_lab.records.bounds import BOUNDS, Bound
from realm_lab.records.run import COLLAPSED, Flag

# A full row, a row that a small corpus left short, and one with only the null document.
ROWS_BK = np.array([[NULL, 4, 7, 2], [NULL, 9, ABSENT, ABSENT], [NULL, 3, 8, 5], [NULL, ABSENT, ABSENT, ABSENT]])
GOLD_B = np.array([7, 4, -1, -1])


def made(
    rows_BK: np.ndarray, gold_B: np.ndarray = GOLD_B, null: bool = True, **kinds: Any
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return the health of these candidates with random scores and likelihoods, and these numbers."""
    generator = torch.Generator().manual_seed(0)
    score_BK = torch.randn(rows_BK.shape, generator=generator) * 3
    score_BK[torch.from_numpy(rows_BK == ABSENT)] = -1.0e4
    log_prior_BK, log_reader_BK = score_BK.log_softmax(1), -5 * torch.rand(rows_BK.shape, generator=generator)
    log_null_B = log_reader_BK[:, 0] - 0.25 if null else None
    health = candidate_health(Candidates(rows_BK, score_BK, log_prior_BK), log_reader_BK, log_null_B, gold_B, **kinds)
    numbers = {"score": score_BK, "prior": log_prior_BK, "reader": log_reader_BK, "null": log_null_B}
    return health, {name: value.tolist() for name, value in numbers.items() if value is not None}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_health_is_these_loops() -> None:
    health, numbers = made(ROWS_BK)
    likelihood, entropy, share, spread, gold, null, utility = ([] for _ in range(7))
    for b, rows in enumerate(ROWS_BK.tolist()):
        there = [k for k, row in enumerate(rows) if row != ABSENT]
        real = [k for k, row in enumerate(rows) if row >= 0]
        total = sum(math.exp(numbers["score"][b][k]) for k in there)
        prior = {k: math.exp(numbers["score"][b][k]) / total for k in there}
        entropy.append(-sum(p * math.log(p) for p in prior.values()))
        if len(there) > 1:
            share.append(entropy[-1] / math.log(len(there)))
        scores = [numbers["score"][b][k] for k in real]
        spread.append(math.sqrt(mean([(s - mean(scores)) ** 2 for s in scores])) if scores else 0.0)
        if GOLD_B[b] >= 0:
            gold.append(float(GOLD_B[b] in rows))
        null.append(prior[0])
        likelihood.append(math.log(sum(p * math.exp(numbers["reader"][b][k]) for k, p in prior.items())))
        utility.append(sum(p * (numbers["reader"][b][k] - numbers["null"][b]) for k, p in prior.items()))
    assert health_means(health) == pytest.approx(
        {
            "marginal_log_likelihood": mean(likelihood),
            "candidate_entropy": mean(entropy),
            "candidate_entropy_fraction": mean(share),
            "score_spread": mean(spread),
            "gold_among_candidates": 0.5,
            "null_probability": mean(null),
            "retrieval_utility_train": mean(utility),
        },
        rel=1e-5,
        abs=1e-6,
    )
    assert mean(gold) == 0.5


NULL_BOUND = Bound("null_probability", "p(null|x)", True, 0.9, "")


def test_two_quantities_are_also_summed_by_the_kind_of_the_masked_span() -> None:
    kind_B, kinds = ["object", "subject", "subject", "subject"], ["object", "subject", "unknown"]
    health, numbers = made(ROWS_BK, kind_B=kind_B, kinds=kinds)
    nulls = [math.exp(prior[0]) for prior in numbers["prior"]]
    assert (
        health_means(health, kinds)
        == pytest.approx(
            health_means(made(ROWS_BK)[0])
            | {
                "gold_among_candidates_object": 1.0,
                "gold_among_candidates_subject": 0.0,  # of the one whose gold passage is known
                "null_probability_object": nulls[0],
                "null_probability_subject": mean(nulls[1:]),  # of a kind without sentences there is nothing
            }
        )
    )


def watch(*bounds: Bound) -> CollapseWatch:
    return CollapseWatch(500, 10_000, bounds or BOUNDS)


def flags_after(collapse: CollapseWatch, metric: str, values: list[float], start: int = 100) -> list[tuple[Flag, ...]]:
    """Return the raised flags after each update, 100 steps apart from each other."""
    found = []
    for number, value in enumerate(values):
        collapse.update(start + 100 * number, {metric: value})
        found.append(collapse.flags())
    return found


@pytest.mark.parametrize(
    ("metric", "inside", "outside", "says"),
    [
        ("candidate_entropy_fraction", 0.999, 0.9991, "above 0.999 of log k"),
        ("null_probability", 0.99, 0.995, "p(null|x) above 0.99"),
        ("probe_gold_utility", 0.0, -0.01, "utility of gold passages below 0 nats a token"),
        ("null_probability", 0.0, math.nan, "p(null|x) above 0.99"),
    ],
)
def test_a_flag_is_up_exactly_after_the_patience(metric: str, inside: float, outside: float, says: str) -> None:
    found = flags_after(watch(), metric, [inside, *[outside] * 6, inside])
    assert found[:6] == [()] * 6  # out since step 200: at step 600 for 400 steps
    ((flag,),) = {found[6]}
    assert flag == Flag(COLLAPSED, f"collapsed: {flag.text.removeprefix('collapsed: ')}")
    assert flag.text.endswith(f"{says} since step 200")
    assert found[7] == ()


@pytest.mark.parametrize("killed_at", [0, 3, 6, 9])
def test_a_resumed_watch_says_what_one_that_never_stopped_says(killed_at: int) -> None:
    values = [0.95, 0.2, *[0.95] * 7, 0.1, 0.95]
    through = watch(NULL_BOUND, *BOUNDS[1:])
    expected = flags_after(through, "null_probability", values)
    first = watch(NULL_BOUND, *BOUNDS[1:])
    found = flags_after(first, "null_probability", values[:killed_at])
    second = watch(NULL_BOUND, *BOUNDS[1:])
    second.load_state({name: tensor.clone() for name, tensor in first.state().items()})
    assert second.flags() == first.flags()
    found += flags_after(second, "null_probability", values[killed_at:], start=100 + 100 * killed_at)
    assert found == expected
    assert any(expected)
    assert all(torch.equal(tensor, through.state()[name]) for name, tensor in second.state().items())


START = {"recall_at_5": 0.4, "questions_dev": 100.0}
LOST, KEPT = 0.19, 0.2


@pytest.mark.parametrize(
    ("recalls", "since"),
    [
        ([KEPT] * 9 + [LOST], [1000]),  # the final state
        ([KEPT, LOST, LOST, LOST, LOST, LOST, KEPT, KEPT, KEPT, KEPT], []),  # back before the patience was over
        ([LOST] * 6 + [KEPT] * 4, [100]),  # collapsed for all of it, though not at the end
        ([LOST] * 10, [100]),
    ],
)
@pytest.mark.parametrize("resumed_at", [None, 4])
def test_a_loss_of_retrieval_is_flagged_after_the_patience_and_at_the_end(
    recalls: list[float], since: list[int], resumed_at: int | None
) -> None:
    collapse, found = CollapseWatch(500, 1000), set[str]()
    collapse.update(0, START)
    collapse.update(0, {"null_probability": 0.1})  # the probes at step 0
    for number, recall in enumerate(recalls, 1):
        if number == resumed_at:
            state, collapse = collapse.state(), CollapseWatch(500, 1000)
            collapse.load_state(state)
        collapse.update(100 * number, START | {"recall_at_5": recall})
        found |= {flag.text for flag in collapse.flags()}
    says = "collapsed: recall@5 on development questions below 0.2, half of step 0, since step"
    assert sorted(found) == [f"{says} {step}" for step in since]


def test_every_evaluation_is_looked_at() -> None:
    found = iter([START, START | {"recall_at_5": LOST}])
    fresh = SimpleNamespace(adopt=lambda index: None)
    task: Any = SimpleNamespace(
        retriever=SimpleNamespace(searching_exactly=lambda: fresh),
        reader=None,
        _evaluation=lambda retriever: next(found),
        _index=SimpleNamespace(measure=lambda retriever: {"index_overlap": 1.0}, fresh=lambda step: None),
        _watch=CollapseWatch(500, 8),
        _at_end=None,
        total_steps=8,
    )
    for step in (0, 8):
        PretrainTask.evaluate(task, step)
    assert len(task._watch.flags()) == 1
