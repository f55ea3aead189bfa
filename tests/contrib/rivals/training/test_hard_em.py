"""Hard EM, the first occurrence and the sum: their losses by hand, and the schedule."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.contrib.rivals.training.selection import HardEmTask, SelectionTask, best_answer_log_probs
from realm_lab.engine.core.seeding import EpochOrder
from realm_lab.engine.models.spans import NO_ANSWER, span_log_probs
from realm_lab.engine.training.optimiser import ScheduledAdamW
from tests.contrib.rivals.training.selecting import BATCH, Found, by_hand, make_task
from tests.tiny_system import TinySystem

TAU = 10
OVER_SPANS: dict[str, Callable[[Tensor], Tensor]] = {
    "hard_em": lambda gold: gold.max(),
    "first_only": lambda gold: gold[0],
    "mml": lambda gold: gold.logsumexp(0),
}


def hard_em_task(system: TinySystem, found: Found, variant: Any) -> Any:
    return make_task(system, found, partial(HardEmTask, variant=variant, tau_steps=TAU))


@pytest.mark.parametrize("variant", OVER_SPANS)
def test_the_loss_is_that_of_the_variant(system: TinySystem, monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    monkeypatch.setattr(ScheduledAdamW, "step", lambda self, step: {})
    task = hard_em_task(system, Found(system), variant)
    for number, answers in enumerate(task._answers):  # the name of its passage is in it more than once
        task._answers[number] = [*answers, system.passages.titles[system.corpus.questions("train").gold[number][0]]]
    monkeypatch.setattr("realm_lab.contrib.rivals.training.selection.MOST_HARD", 1.0)
    first = EpochOrder(len(task._answers), task.seed, "finetune-questions").take(0, BATCH)
    task._order = SimpleNamespace(take=lambda start, count: first)  # the batch that by_hand reads
    values = task.train_step(TAU)
    assert values["hard_update"] == float(variant == "hard_em")
    losses = {name: by_hand(task, system, over_spans).item() for name, over_spans in OVER_SPANS.items()}
    assert values["loss"] == pytest.approx(losses[variant], rel=1e-5)
    assert len({round(loss, 4) for loss in losses.values()}) == 3


def test_the_probability_of_a_hard_step_rises_to_its_most(system: TinySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SelectionTask, "train_step", lambda self, step: {})
    found = Found(system)
    task = hard_em_task(system, found, "hard_em")
    task._tau_steps = 2000
    hard = [task.train_step(step)["hard_update"] for step in range(4000)]
    assert hard[0] == 0
    assert np.mean(hard[:1000]) == pytest.approx(0.25, abs=0.04)
    assert np.mean(hard[1000:1600]) == pytest.approx(0.65, abs=0.06)
    assert np.mean(hard[1600:]) == pytest.approx(0.8, abs=0.03)
    assert [task.train_step(step)["hard_update"] for step in (3000, 3001)] == hard[3000:3002]  # whatever was before
    for variant in ("first_only", "mml"):
        other = hard_em_task(system, found, variant)
        assert not any(other.train_step(step)["hard_update"] for step in range(0, 400, 7))


def test_the_likeliest_place_is_the_largest_of_those_marked() -> None:
    generator = torch.Generator().manual_seed(0)
    log_probs_NLW = span_log_probs(torch.randn(5, 7, 3, generator=generator))
    marked_NLW = torch.rand(5, 7, 3, generator=generator) < 0.2
    marked_NLW[2] = False
    found = best_answer_log_probs(log_probs_NLW, marked_NLW).tolist()
    for number, value in enumerate(found):
        places = marked_NLW[number].nonzero().tolist()
        expected = max((log_probs_NLW[number, s, w].item() for s, w in places), default=NO_ANSWER)
        assert value == pytest.approx(expected)
