"""The reader that selects the passage: its examples, its loss again by hand, and that it learns to select."""

import copy

import numpy as np
import pytest
import torch

from realm_lab.engine.core.seeding import EpochOrder
from realm_lab.engine.corpus.store import NO_ROW
from realm_lab.engine.training.optimiser import ScheduledAdamW
from tests.contrib.rivals.training.selecting import BATCH, PASSAGES, SEED, Found, by_hand, holds, make_task
from tests.tiny_system import TinySystem


@pytest.fixture(scope="module")
def found(system: TinySystem) -> Found:
    return Found(system)


def test_one_passage_with_the_answer_and_others_without_are_drawn_anew(system: TinySystem, found: Found) -> None:
    task, drawn = make_task(system, found), list[list[list[int]]]()
    numbers = np.arange(8)
    for step in (0, 1, 0):
        task._step = step
        rows_BK = task._find(numbers)[0].rows_BC
        for number, (positive, *negatives) in zip(numbers.tolist(), rows_BK.tolist(), strict=True):
            assert holds(system, number, positive)
            assert len({*negatives} - {NO_ROW}) == PASSAGES - 1
            assert not any(holds(system, number, row) for row in negatives)
        drawn.append(rows_BK.tolist())
    assert drawn[0] == drawn[2] != drawn[1]


def test_the_loss_and_its_gradient_are_those_of_the_paper(
    system: TinySystem, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScheduledAdamW, "step", lambda self, step: {})
    task = make_task(system, found)
    values = task.train_step(0)
    gradients = {name: p.grad for name, p in task.reader.named_parameters() if p.grad is not None}
    assert values["answerable_fraction"] == 1
    task.reader.zero_grad()
    loss = by_hand(task, system, lambda gold: gold.logsumexp(0))
    assert values["loss"] == pytest.approx(loss.item(), rel=1e-5)
    loss.backward()
    assert "selection.weight" in gradients
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, task.reader.get_parameter(name).grad, atol=2e-5, rtol=2e-3)


@pytest.mark.slow
def test_it_learns_to_select_the_passage(system: TinySystem, found: Found) -> None:
    """Retrieval scores play no part: they are not numbers here."""
    task = make_task(system, found)
    task._order = EpochOrder(BATCH, SEED)  # the same few questions in every step
    for step in range(40):
        task.train_step(step)
    task.reader.eval()
    task._step = 100  # negatives that were not drawn before, among others
    drawn = task._find(np.arange(BATCH))[0]
    with torch.no_grad():
        logits_BK = task._read(drawn)[1]
        untrained_BK = make_task(system, found)._read(drawn)[1]
    assert logits_BK.argmax(1).eq(0).float().mean() > 0.8 > untrained_BK.argmax(1).eq(0).float().mean() + 0.3


def test_fewer_passages_than_asked_for_and_questions_without_a_positive(system: TinySystem, found: Found) -> None:
    task, questions = make_task(system, found), system.corpus.questions("train")
    chosen = EpochOrder(len(questions), SEED, "finetune-questions").take(0, BATCH).tolist()
    few = copy.copy(found)
    few.rows = dict(found.rows)
    for place, number in enumerate(chosen):
        positive, *negatives = task._find(np.array([number]))[0].rows_BC[0].tolist()
        few.rows[questions.tokens[number].tobytes()] = np.array([positive if place % 2 else NO_ROW, *negatives[:2]])
    task.retriever = few
    values = task.train_step(0)
    assert values["answerable_fraction"] == 0.5
    assert 0 < values["loss"] < 100
    drawn = task._find(np.array(chosen[:2]))[0].rows_BC
    assert (drawn >= 0).sum(1).tolist() == [0, 3]
