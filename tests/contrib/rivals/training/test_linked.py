"""Training on the linked passages of questions: the mean of the examples' losses, and negatives drawn again."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.contrib.rivals.linked import Example
from realm_lab.contrib.rivals.models.linked import PairEncoder, PathModel
from realm_lab.contrib.rivals.training.linked import LinkedTask
from realm_lab.engine.core.seeding import EpochOrder
from realm_lab.engine.models.encoder import Encoder
from realm_lab.engine.models.inputs import join
from tests.tiny_system import TinySystem


class Settings:
    steps, batch_size, negatives = 12, 3, 2


EXAMPLES = [
    Example(number, np.array([10 * number, 10 * number + 1]), np.array([10 * number + 1]), np.arange(100, 105))
    for number in range(4)
]


def task(system: TinySystem, **launch: Any) -> tuple[LinkedTask, list[tuple[np.ndarray, Tensor]]]:
    assert isinstance(system.reader.encoder, Encoder)
    model = PathModel(copy.deepcopy(system.reader.encoder), torch.Generator().manual_seed(0))
    params = system.params.model_copy(update={"launch": system.params.launch.model_copy(update=launch)})
    seen: list[tuple[np.ndarray, Tensor]] = []

    def loss(vectors_PD: Tensor, rows_P: np.ndarray, example: Example) -> Tensor:
        seen.append((rows_P, vectors_PD.detach()))
        return model.loss(vectors_PD, len(example.kept))

    encoder = PairEncoder(params, model.encoder, system.passages, system.special)
    given = Settings(), model, encoder, loss, EXAMPLES, system.corpus.questions("train")
    return LinkedTask(params, 0, *given), seen


def test_a_step_is_the_mean_loss_of_its_questions_each_with_its_own_passages(system: TinySystem) -> None:
    trained, seen = task(system)
    model = copy.deepcopy(trained._model)
    found = trained.train_step(0)
    questions, losses = system.corpus.questions("train"), []
    chosen = EpochOrder(4, 0, "linked-questions").take(0, 3).tolist()
    assert len(seen) == 3
    for (rows, vectors_PD), number in zip(seen, chosen, strict=True):
        example = EXAMPLES[number]
        assert rows[:2].tolist() == example.kept.tolist()
        assert len(set(rows[2:].tolist()) & set(example.others.tolist())) == 2
        for row, vector in zip(rows, vectors_PD, strict=True):
            batch = join([questions.tokens[number]], [system.passages.bodies[row]], system.special, 99)
            expected = model.encoder(*batch)[0, 0]  # type: ignore[operator]
            torch.testing.assert_close(vector, expected, atol=1e-5, rtol=1e-4)
        losses.append(model.loss(vectors_PD, 2).item())  # type: ignore[operator]
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_parts_of_a_batch_and_recomputing_change_nothing(system: TinySystem) -> None:
    expected = task(system)[0].train_step(0)
    for changes in ({"micro_batch": 1}, {"micro_batch": 2, "recompute": True}):
        found = task(system, **changes)[0].train_step(0)
        assert found == pytest.approx(expected, rel=1e-4)


def test_negatives_are_drawn_anew_in_each_step(system: TinySystem) -> None:
    trained, seen = task(system)
    for step in range(4):
        trained.train_step(step)
    assert len({tuple(rows[2:].tolist()) for rows, _ in seen}) > 4
