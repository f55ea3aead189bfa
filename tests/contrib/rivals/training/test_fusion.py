"""Evidence in two passages: an answer of two words, each in another passage, and a question about both."""

import numpy as np
import pytest
import torch

from realm_lab.contrib.rivals.models.decoder import Example, new_generator
from realm_lab.contrib.rivals.training.generation import GenerationTask
from realm_lab.contrib.rivals.writing import write_marginal, write_together
from realm_lab.engine.models.encoder import Encoder, EncoderShape, initialise
from realm_lab.engine.models.spans import find_answer
from tests import tiny
from tests.contrib.rivals.training.test_generation import SPECIAL

FIRST, SECOND = 5, 6  # words of the two passages, which are in any order
VALUES = range(10, 20)
SHAPE = EncoderShape(vocabulary_size=20, hidden_size=32, layers=2, heads=2, intermediate_size=64, positions=64)


def problem(left: int, right: int, swapped: bool) -> Example:
    passages = [np.array([FIRST, left]), np.array([SECOND, right])]
    return Example(np.array([FIRST, SECOND]), passages[:: -1 if swapped else 1], np.array([left, right]))


@pytest.mark.slow
def test_fusion_puts_two_passages_together_and_one_at_a_time_cannot() -> None:
    params, generator = tiny.params(), np.random.default_rng(0)
    problems = [problem(left, right, bool(generator.integers(2))) for left in VALUES for right in VALUES]
    generator.shuffle(problems)
    unseen, seen = problems[:25], problems[25:]
    for example in unseen:  # no span of a passage is the answer, so that no span reader can be right
        assert not any(find_answer(second, [example.target], 3) for second in example.seconds)

    def draw(step: int) -> list[Example]:
        return [seen[number] for number in np.random.default_rng(step).integers(len(seen), size=32)]

    encoder = Encoder(SHAPE)
    initialise(encoder, torch.Generator().manual_seed(0))
    task = GenerationTask(params, 0, new_generator(encoder, 0), SPECIAL, draw, 400, 3e-3)
    for step in range(400):
        task.train_step(step)
    model, targets = task.model.eval(), [tuple(example.target.tolist()) for example in unseen]
    together = [each.wordpieces for each in write_together(params, model, SPECIAL, unseen)]
    assert np.mean([found == target for found, target in zip(together, targets, strict=True)]) > 0.9
    log_prior_QK = torch.full((len(unseen), 2), 0.5).log()
    apart = [each.wordpieces for each in write_marginal(params, model, SPECIAL, unseen, log_prior_QK, "sequence")]
    assert np.mean([found == target for found, target in zip(apart, targets, strict=True)]) < 0.3
