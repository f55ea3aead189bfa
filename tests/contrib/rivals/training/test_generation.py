"""Texts with blanks, and the training of an encoder-decoder on them."""

import numpy as np
import pytest
import torch

from realm_lab.contrib.rivals.models.decoder import Example, Generator, join_examples, new_generator, pad_texts
from realm_lab.contrib.rivals.training.generation import CopyingTask, GenerationTask, blank, corrupt_spans, drawing
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.models.encoder import Encoder, EncoderShape, initialise
from tests import tiny

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
SHAPE = EncoderShape(vocabulary_size=60, hidden_size=32, layers=2, heads=2, intermediate_size=64, positions=64)


def new_model() -> Generator:
    encoder = Encoder(SHAPE)
    initialise(encoder, torch.Generator().manual_seed(0))
    return new_generator(encoder, 0)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 20, 40])
def test_a_corrupted_text_is_restored_by_what_is_to_be_written(length: int) -> None:
    generator, tokens = np.random.default_rng(length), np.arange(5, 5 + length)
    for _ in range(20):
        read, _, written = corrupt_spans(tokens, SPECIAL, generator)
        places = np.flatnonzero(written == SPECIAL.mask)
        spans = iter(np.split(written, places))
        restored = [next(spans) if token == SPECIAL.mask else [token] for token in read]
        restored = [[token for token in part if token != SPECIAL.mask] for part in restored]
        assert np.concatenate(restored).tolist() == tokens.tolist()
        assert len(written) - len(places) == max(1, round(0.15 * length))
        assert not (np.diff(np.flatnonzero(read == SPECIAL.mask)) == 1).any()  # spans do not touch


def test_every_wordpiece_is_left_out_about_equally_often() -> None:
    generator, counts = np.random.default_rng(0), np.zeros(20)
    for _ in range(2000):
        _, _, written = corrupt_spans(np.arange(5, 25), SPECIAL, generator)
        counts[written[written != SPECIAL.mask] - 5] += 1
    assert counts.sum() == 3 * 2000
    assert counts[2:-2].std() / counts.mean() < 0.1  # one span of three, which starts anywhere


def test_one_blank_is_written_alone() -> None:
    read, seconds, written = blank(np.arange(10, 18), np.array([[2, 5]]), SPECIAL)
    assert read.tolist() == [10, 11, SPECIAL.mask, 15, 16, 17]
    assert written.tolist() == [12, 13, 14]
    assert seconds == ()


def task_on(examples: list[Example], steps: int, **launch: int) -> GenerationTask:
    params = tiny.params({f"launch.{name}": value for name, value in launch.items()})
    draw = drawing(len(examples), len(examples), 0, "test", lambda item, _: examples[item])
    return GenerationTask(params, 0, new_model(), SPECIAL, draw, steps, 5e-3)


def random_examples(count: int, passages: int) -> list[Example]:
    generator = np.random.default_rng(0)

    def tokens(length: int) -> np.ndarray:
        return generator.integers(5, 60, length)

    return [Example(tokens(4), [tokens(6) for _ in range(passages)], tokens(1 + n % 3)) for n in range(count)]


def test_the_loss_is_that_of_one_example_at_a_time() -> None:
    examples = random_examples(5, 2)
    loss = task_on(examples, 1).train_step(0)["loss"]
    model, expected = new_model(), 0.0
    for example in examples:
        text = pad_texts([example.target], SPECIAL, 64)
        source = model.encode(join_examples([example], SPECIAL, 66), 2)
        expected -= model.target_log_probs(source, text)[0].sum().item()
    assert loss == pytest.approx(expected / 5, rel=1e-5)


def test_micro_batches_give_the_same_step() -> None:
    at_once, by_two = (task_on(random_examples(5, 1), 4, micro_batch=size) for size in (0, 2))
    for step in range(3):
        assert by_two.train_step(step)["loss"] == pytest.approx(at_once.train_step(step)["loss"], rel=1e-4)


@pytest.mark.slow
def test_a_decoder_that_does_not_copy_is_flagged() -> None:
    examples = [Example(np.array([5, 4]), (), np.array([5 + number])) for number in range(4)]  # the same text for all
    draw = drawing(4, 4, 0, "test", lambda item, _: examples[item])

    def losses(task: CopyingTask) -> list[float]:
        return [task.train_step(step)["loss"] for step in range(task.total_steps)]

    short, long = (CopyingTask(tiny.params(), 0, new_model(), SPECIAL, draw, steps, 5e-3) for steps in (99, 100))
    losses(short)
    assert short.flags() == (), "too few steps to be judged"
    assert long.flags() == ()
    last = losses(long)[-1]
    [flag] = long.flags()
    assert (flag.name, f"{last:.2f} nats" in flag.text) == ("did_not_train", True)
