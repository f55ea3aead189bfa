"""Training of a tagger: what it is shown, that it learns (a broken one does not), that it resumes to the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from realm_lab.corpus.conll import TaggedSentence
from realm_lab.corpus.entity_scores import Entity
from realm_lab.corpus.vocabulary import train_wordpiece, wordpiece_from_vocabulary
from realm_lab.models.encoder import EncoderShape
from realm_lab.models.tagger import new_classifier
from realm_lab.params.sections import Optimiser, TaggerTraining
from realm_lab.training.tagger import IGNORED, TaggerTask, label_names, make_examples

PERSONS = "Ann Bob Carla Dov Eve Finn Gil Hana".split()
PLACES = "Rome Oslo Lima Kyiv Cairo Perth".split()
LABELS = label_names(["LOC", "PER"])


def sentences(count: int, seed: int) -> list[TaggedSentence]:
    """Persons with one or two names, places, and words that are neither."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        person = list(rng.choice(PERSONS, rng.integers(1, 3), replace=False))
        place = str(rng.choice(PLACES))
        tokens = [*rng.choice(["today", "then", "so"], rng.integers(0, 2)), *person, "went", "to", place, "."]
        start = len(tokens) - 4 - len(person)
        entities = (Entity(start, start + len(person), "PER"), Entity(len(tokens) - 2, len(tokens) - 1, "LOC"))
        made.append(TaggedSentence(tuple(map(str, tokens)), entities, 0))
    return made


TRAIN, DEV = sentences(120, 0), sentences(40, 1)


def task(rate: float = 5e-3, train: list[TaggedSentence] = TRAIN, dropout: float = 0.0) -> TaggerTask:
    tokenizer = train_wordpiece((" ".join(sentence.tokens) for sentence in TRAIN), 300)
    shape = EncoderShape(tokenizer.get_vocab_size(), 32, 2, 2, 64, 32, dropout)
    optimiser = Optimiser(learning_rate=rate, warmup_steps=5, bias_correction=True)
    settings = TaggerTraining(epochs=8, batch_size=8, max_length=16, optimiser=optimiser)
    return TaggerTask(settings, new_classifier(shape, LABELS, 0), tokenizer, train, DEV)


def run(trained: TaggerTask, start: int, end: int) -> None:
    for step in range(start, end):
        torch.manual_seed(step)
        trained.train_step(step)


def test_it_learns() -> None:
    learner = task()
    assert learner.evaluate(0)["dev_f1_micro"] < 0.5
    run(learner, 0, learner.total_steps)
    assert learner.evaluate(learner.total_steps)["dev_f1_micro"] > 0.95


def test_one_with_wrong_labels_or_no_rate_does_not() -> None:
    shifted = [
        sentence._replace(entities=tuple(Entity(e.start + 1, e.end + 1, e.label) for e in sentence.entities))
        for sentence in TRAIN
    ]
    for broken in (task(train=shifted), task(rate=0.0)):
        run(broken, 0, broken.total_steps)
        assert broken.evaluate(0)["dev_f1_micro"] < 0.5


def test_a_resumed_training_ends_in_the_same_bits() -> None:
    whole, first, second = task(dropout=0.1), task(dropout=0.1), task(dropout=0.1)
    run(whole, 0, 12)
    run(first, 0, 7)
    second.load({name: value.clone() for name, value in first.tensors().items()}, 7)
    run(second, 7, 12)
    expected = whole.tensors()
    assert all(torch.equal(value, expected[name]) for name, value in second.tensors().items())
    other = task(dropout=0.1)
    run(other, 0, 11)
    assert any(not torch.equal(value, expected[name]) for name, value in other.tensors().items())


def test_each_epoch_shows_each_sentence_once_beside_others_of_its_length() -> None:
    shown = task()
    per_epoch = shown.total_steps // 8
    epochs = [[shown.rows(epoch * per_epoch + place).tolist() for place in range(per_epoch)] for epoch in (1, 0)]
    for epoch in epochs:
        assert sorted(row for batch in epoch for row in batch) == list(range(len(TRAIN)))
    assert epochs[0] != epochs[1]
    lengths = [len(sentence.tokens) for sentence in TRAIN]
    spread = np.mean([max(lengths[row] for row in batch) - min(lengths[row] for row in batch) for batch in epochs[0]])
    assert spread < 1.0  # of one batch at random: over 2
    assert task().rows(per_epoch).tolist() == epochs[0][0]


def test_the_first_wordpiece_of_each_word_has_the_label() -> None:
    tokenizer = wordpiece_from_vocabulary(["ann", "##a", "-", "lee", "is", "st", ".", "paul"])
    tokens = ("Anna-Lee", "is", "\u200b", "St.", "Paul")
    sentence = TaggedSentence(tokens, (Entity(0, 1, "PER"), Entity(3, 5, "LOC")), 0)
    [example] = make_examples([sentence], tokenizer, LABELS, 32)
    names = [LABELS[label] if label != IGNORED else "-" for label in example.labels]
    pieces = [tokenizer.id_to_token(int(number)) for number in example.ids]
    assert list(zip(pieces, names, strict=True)) == [
        ("ann", "B-PER"), ("##a", "-"), ("-", "I-PER"), ("lee", "I-PER"), ("is", "O"), ("st", "B-LOC"),
        (".", "I-LOC"), ("paul", "I-LOC"),
    ]  # fmt: skip


def test_a_long_sentence_is_cut_and_each_word_learned_once() -> None:
    tokenizer = wordpiece_from_vocabulary(["a", "ann"])
    tokens = tuple(["a"] * 50 + ["Ann"] + ["a"] * 50)
    examples = make_examples([TaggedSentence(tokens, (Entity(50, 51, "PER"),), 0)], tokenizer, LABELS, 22)
    assert max(len(example.ids) for example in examples) == 20
    learned = [label for example in examples for label in example.labels if label != IGNORED]
    assert len(learned) == 101
    assert learned.count(LABELS.index("B-PER")) == 1


def test_a_sentence_that_the_tokenizer_drops_is_left_out() -> None:
    tokenizer = wordpiece_from_vocabulary(["a"])
    empty, full = TaggedSentence(("\u200b",), (), 0), TaggedSentence(("a",), (), 0)
    assert len(make_examples([empty, full], tokenizer, LABELS, 22)) == 1


@pytest.mark.parametrize("steps", [0, 3])
def test_steps_go_before_epochs(steps: int) -> None:
    learner = task()
    settings = TaggerTraining(epochs=2, steps=steps, batch_size=50)
    made = TaggerTask(settings, learner.model, learner._tokenizer, TRAIN, [])
    assert made.total_steps == (steps or 6)
    assert made.evaluate(0) == {}
