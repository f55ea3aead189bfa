"""Encoder-decoders: texts with blanks, their training, and RAG's marginals against explicit enumeration."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.contrib.rivals.models.decoder import Example, Generator, join_examples, new_generator, pad_texts, write
from realm_lab.contrib.rivals.training.generation import (
    CopyingTask,
    GenerationTask,
    blank,
    corrupt_spans,
    drawing,
    rag_log_likelihood,
)
from realm_lab.contrib.rivals.writing import write_marginal, write_together
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.models.encoder import Encoder, EncoderShape, initialise
from realm_lab.engine.models.spans import find_answer
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
        expected -= model.target_log_probs(source, text).sum().item()
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


FIRST, SECOND = 5, 6  # words of the two passages, which are in any order
VALUES = range(10, 20)
FUSION_SHAPE = EncoderShape(vocabulary_size=20, hidden_size=32, layers=2, heads=2, intermediate_size=64, positions=64)


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

    encoder = Encoder(FUSION_SHAPE)
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


RAG_SHAPE = EncoderShape(vocabulary_size=9, hidden_size=12, layers=1, heads=2, intermediate_size=16, positions=70)
BATCH, PASSAGES = 3, 4


@pytest.fixture(scope="module")
def model() -> Generator:
    """Untrained, with a decoder that looks at its passage more than at itself."""
    encoder, generator = Encoder(RAG_SHAPE), torch.Generator().manual_seed(3)
    initialise(encoder, generator)
    encoder.word_embeddings.weight.data.mul_(3.0)
    made = new_generator(encoder, 0).double().eval()
    made.blocks[0].get_parameter("cross_output.weight").data.mul_(20.0)
    return made


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    generator = np.random.default_rng(0)
    return [
        Example(generator.integers(5, 9, 3), [generator.integers(5, 9, 1 + n) for n in range(PASSAGES)])
        for _ in range(BATCH)
    ]


@pytest.fixture(scope="module")
def log_prior_BK() -> Tensor:
    return torch.randn(BATCH, PASSAGES, generator=torch.Generator().manual_seed(0)).double().log_softmax(1)


def probability(
    model: Generator, example: Example, prior_K: list[float], words: list[int], kind: str
) -> float:  # of one text, each passage read by itself
    by_passage = []
    for second in example.seconds:
        source = model.encode(join_examples([example._replace(seconds=[second])], SPECIAL, 66))
        by_passage.append(model.target_log_probs(source, torch.tensor([[SPECIAL.cls, *words]]))[0].exp().tolist())
    if kind == "sequence":
        return sum(prior * math.prod(each) for prior, each in zip(prior_K, by_passage, strict=True))
    return math.prod(
        sum(prior * each[place] for prior, each in zip(prior_K, by_passage, strict=True)) for place in range(len(words))
    )


@pytest.mark.parametrize("kind", ["sequence", "token"])
@torch.no_grad()
def test_marginals_are_those_of_enumeration(
    model: Generator, examples: list[Example], log_prior_BK: Tensor, kind: str
) -> None:
    targets = [np.array(words) for words in ([5], [6, 8, 7], [8, 5])]
    text_NT = pad_texts(targets, SPECIAL, 70).repeat_interleave(PASSAGES, 0)
    log_probs_NT = model.target_log_probs(model.encode(join_examples(examples, SPECIAL, 66)), text_NT)
    found_B = rag_log_likelihood(kind, log_prior_BK, log_probs_NT, text_NT[:, 1:] != SPECIAL.pad)
    for found, example, prior_K, target in zip(found_B, examples, log_prior_BK.exp().tolist(), targets, strict=True):
        expected = probability(model, example, prior_K, [*target.tolist(), SPECIAL.sep], kind)
        assert found.item() == pytest.approx(math.log(expected), abs=1e-12)


@pytest.mark.parametrize("kind", ["sequence", "token"])
@torch.no_grad()
def test_all_texts_of_two_words_have_probability_one(
    model: Generator, examples: list[Example], log_prior_BK: Tensor, kind: str
) -> None:
    texts = itertools.product(range(9), repeat=2)
    total = sum(probability(model, examples[0], log_prior_BK[0].exp().tolist(), list(text), kind) for text in texts)
    assert total == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("kind", ["sequence", "token"])
def test_what_is_written_is_the_best_by_enumeration(
    model: Generator, examples: list[Example], log_prior_BK: Tensor, kind: str
) -> None:
    params = tiny.params({"launch.token_budget": 2 * 66 * PASSAGES})  # two questions at once
    written = list(write_marginal(params, model, SPECIAL, examples, log_prior_BK, kind))
    chosen = set()
    for each, example, log_prior_K in zip(written, examples, log_prior_BK, strict=True):
        prior_K = log_prior_K.exp().tolist()
        found = [*each.wordpieces, SPECIAL.sep]
        with torch.no_grad():
            marginal = float(np.logaddexp.reduce(log_prior_K.numpy() + each.log_reader_K))
            expected = probability(model, example, prior_K, found, "sequence")
            assert marginal == pytest.approx(math.log(expected), abs=1e-10)
            if kind == "token":
                for place, word in enumerate(found[:-1] if len(found) > 3 else found):  # an end may be forced
                    begun = found[:place]
                    odds = [probability(model, example, prior_K, [*begun, other], kind) for other in range(1, 9)]
                    assert word == 1 + int(np.argmax(odds))
                continue
            candidates = []
            for second in example.seconds:
                source = model.encode(join_examples([example._replace(seconds=[second])], SPECIAL, 66))
                candidates.append([word for word in write(model, source, SPECIAL, 3)[0][0].tolist()[1:] if word])
            best = max(candidates, key=lambda words: probability(model, example, prior_K, words, "sequence"))
            assert found == best
            chosen |= {tuple(words) for words in candidates}
    assert kind == "token" or len(chosen) > BATCH  # texts written from the passages differ
