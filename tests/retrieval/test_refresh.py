"""Refresh decisions against plain-Python models of the policies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from realm_lab.params.sections import Refresh
from realm_lab.retrieval.refresh import PartialRefresh, RefreshPlan, StaggeredRound

STEPS = 60


def searched(settings: Refresh, overlaps: dict[int, float] | None = None, at: int | None = None) -> list[int]:
    """The generation that each step searches; at step `at` everything goes through a checkpoint."""
    plan = RefreshPlan(settings)
    found = []
    for step in range(STEPS):
        if step == at:
            state = plan.state()
            plan = RefreshPlan(settings)
            plan.load_state(state)
        overlap = (overlaps or {}).get(step) if plan.checks_drift(step) else None
        if plan.asks(step, overlap):
            plan.ask(step)
        due = plan.due(step, lambda generation: True)
        if due is not None:
            plan.swap(due)
        found.append(plan.searched)
    return found


@pytest.mark.parametrize("interval", [1, 2, 7, 59, 100])
@pytest.mark.parametrize("delay", [0, 1, 3, 20])
@pytest.mark.parametrize("hold", [0, 1, 4])
def test_interval_delay_and_hold(interval: int, delay: int, hold: int) -> None:
    settings = Refresh(interval_steps=interval, delay_steps=delay, hold_generations=hold)
    expected = []
    for step in range(STEPS):
        there = [made for made in range(0, step + 1, interval) if made == 0 or made + delay <= step]
        expected.append(there[-1 - hold] if len(there) > hold else 0)
    assert searched(settings) == expected
    assert searched(settings, at=33) == expected


def test_thirty_times_staler_is_thirty_times_the_age() -> None:
    ages = np.arange(STEPS) - searched(Refresh(interval_steps=1, delay_steps=30))
    assert set(ages[30:]) == {30}
    assert list(ages[:30]) == list(range(30))


def test_never() -> None:
    assert set(searched(Refresh(policy="never"))) == {0}


@pytest.mark.parametrize("delay", [0, 3])
def test_schedule(delay: int) -> None:
    pairs = [[0, 4], [10, 3], [20, 0], [41, 100]]
    settings = Refresh(policy="schedule", schedule=pairs, delay_steps=delay)
    made = [0, 4, 8, 10, 13, 16, 19, 41]
    expected = [max(step for step in made if step == 0 or step + delay <= now) for now in range(STEPS)]
    assert searched(settings) == expected


@pytest.mark.parametrize("delay", [0, 3, 12])
def test_drift_asks_below_the_bound_and_not_while_one_is_under_way(delay: int) -> None:
    overlaps = {step: 0.5 if step % 15 else 0.8 for step in range(STEPS)}  # at 15, 30, 45 just enough
    settings = Refresh(policy="drift", drift_interval_steps=5, drift_overlap=0.8, delay_steps=delay)
    expected, current, under_way = [], 0, None
    for step in range(STEPS):
        if step and step % 5 == 0 and step % 15 and under_way is None:
            under_way = step
        if under_way is not None and under_way + delay <= step:
            current, under_way = under_way, None
        expected.append(current)
    assert searched(settings, overlaps) == expected
    assert searched(settings, overlaps, at=26) == expected


def test_ready_takes_one_after_the_other_when_it_is_there() -> None:
    plan = RefreshPlan(Refresh(interval_steps=2, swap="ready"))
    found = []
    for step in range(12):
        if plan.asks(step):
            plan.ask(step)
        due = plan.due(step, lambda generation: step >= generation + 3)  # noqa: B023 - asked at once
        if due is not None:
            plan.swap(due)
        found.append(plan.searched)
    assert found == [0, 0, 0, 0, 0, 2, 2, 2, 2, 6, 6, 6]


def test_round_robin_takes_every_passage_in_turn() -> None:
    partial = PartialRefresh(Refresh(scope="round_robin", scope_fraction=0.3), 10)
    for step, rows in enumerate(([0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 1, 9], [2, 3, 4]), 1):
        chosen = partial.choose()
        assert chosen.tolist() == rows
        partial.embedded(chosen, step)
        partial = through_a_checkpoint(partial, Refresh(scope="round_robin", scope_fraction=0.3), 10)
    assert partial.steps_N.tolist() == [4, 4, 5, 5, 5, 2, 3, 3, 3, 4]


def through_a_checkpoint(partial: PartialRefresh, settings: Refresh, passages: int) -> PartialRefresh:
    other = PartialRefresh(settings, passages)
    other.load_state({name: value.clone() for name, value in partial.state().items()})
    return other


def test_retrieved_takes_the_most_retrieved_then_the_oldest() -> None:
    settings = Refresh(scope="retrieved", scope_fraction=0.25)
    partial = PartialRefresh(settings, 10)
    model: list[dict[str, int]] = [{"count": 0, "step": 0, "row": row} for row in range(10)]
    generator = np.random.default_rng(0)
    for step in range(1, 30):
        candidates_BK = generator.integers(-2, 10, size=(2, 3))
        partial.note(candidates_BK)
        for row in candidates_BK.flatten():
            if row >= 0:
                model[row]["count"] += 1
        best = sorted(model, key=lambda each: (-each["count"], each["step"], each["row"]))[:3]
        chosen = partial.choose()
        assert chosen.tolist() == sorted(each["row"] for each in best)
        partial.embedded(chosen, step)
        for each in best:
            each.update(count=0, step=step)
        partial = through_a_checkpoint(partial, settings, 10)
        assert partial.steps_N.tolist() == [each["step"] for each in model]


def test_a_staggered_round_embeds_what_it_has_earned() -> None:
    cost_N = np.array([3.0, 1.0, 4.0, 1.0, 5.0])
    settings: Any = Refresh(policy="staggered", budget_fraction=0.5)
    staggered = StaggeredRound(settings, cost_N)
    earned, spent, done = 0.0, 0.0, []
    for step in range(40):
        staggered.earn(3.0)
        earned += 1.5
        rows = staggered.spend().tolist()
        done += rows
        spent += cost_N[rows].sum()
        assert spent <= earned
        following = cost_N[len(done) % 5]
        if staggered.is_complete:
            assert done[-5:] == [0, 1, 2, 3, 4]
            staggered.begin()
        else:
            assert spent + following > earned  # nothing is left that could be paid
        if step == 17:
            state, staggered = staggered.state(), StaggeredRound(settings, cost_N)
            staggered.load_state(state)
    assert len(done) >= 15
    assert isinstance(state["refresh.credit"], torch.Tensor)
