"""Training of a tagger: cross-entropy of each word's tag at its first wordpiece (Devlin et al. 2019, section 5.3)."""

# Shapes: B sequences, L positions, C labels

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from realm_lab.core.seeding import numpy_generator
from realm_lab.corpus.conll import TaggedSentence
from realm_lab.corpus.entity_scores import Score, entity_scores, tags_of
from realm_lab.corpus.vocabulary import special_ids
from realm_lab.models.tagger import TokenClassifier, encode_tokens, tagger_of, windows
from realm_lab.params.sections import TaggerTraining
from realm_lab.training.checkpoint import load_module, module_tensors
from realm_lab.training.optimiser import ScheduledAdamW

IGNORED = -100  # the label of later wordpieces, of specials and of padding, as torch and transformers have it
POOL_BATCHES = 16  # sentences of so many batches are sorted by length, so that little is padded


class Example(NamedTuple):
    """A sentence, or a part of a long one."""

    ids: np.ndarray  # wordpieces without specials
    labels: np.ndarray  # of each wordpiece


def label_names(types: Sequence[str]) -> list[str]:
    """The labels of a classifier: O, and B- and I- of each type."""
    return ["O", *(f"{prefix}-{name}" for name in types for prefix in "BI")]


def make_examples(
    sentences: Sequence[TaggedSentence], tokenizer: Tokenizer, labels: Sequence[str], max_length: int
) -> list[Example]:
    """What a classifier is trained on. The first word of an entity is B-, its further ones, in any token, are I-."""
    number_of = {label: number for number, label in enumerate(labels)}
    examples = []
    for sentence, (marked, word_of_token) in zip(
        sentences, encode_tokens(tokenizer, [sentence.tokens for sentence in sentences]), strict=True
    ):
        if not len(marked.first):
            continue
        tags = tags_of(sentence.entities, len(sentence.tokens))
        word_tags = ["O"] * len(marked.first)
        firsts = [(token, word) for token, word in enumerate(word_of_token) if word >= 0]
        ends = [*(word for _, word in firsts[1:]), len(word_tags)]
        for (token, word), end in zip(firsts, ends, strict=True):
            inside = "O" if tags[token] == "O" else f"I-{tags[token][2:]}"
            word_tags[word:end] = [tags[token], *[inside] * (end - word - 1)]
        of_piece = np.full(len(marked.ids), IGNORED, np.int64)
        of_piece[marked.first] = [number_of[tag] for tag in word_tags]
        for start, end, first, last in windows(len(marked.ids), max_length - 2):
            decided = of_piece[start:end].copy()
            decided[: first - start] = IGNORED
            decided[last - start :] = IGNORED
            examples.append(Example(marked.ids[start:end], decided))
    return examples


class TaggerTask:
    """The steps of one training (training/loop.py)."""

    def __init__(
        self,
        settings: TaggerTraining,
        model: TokenClassifier,
        tokenizer: Tokenizer,
        train: Sequence[TaggedSentence],
        dev: Sequence[TaggedSentence],
    ):
        self.seed, self.model = settings.seed, model
        self._settings, self._tokenizer, self._dev = settings, tokenizer, dev
        self._examples = make_examples(train, tokenizer, model.labels, settings.max_length)
        self._per_epoch = -(-len(self._examples) // settings.batch_size)
        self.total_steps = settings.steps or settings.epochs * self._per_epoch
        self.evaluation_interval_steps = settings.evaluation_interval_steps
        self._special = special_ids(tokenizer)
        self._device = next(model.parameters()).device
        self._optimiser = ScheduledAdamW("tagger", model, settings.optimiser, self.total_steps, set())
        self._epoch, self._batches = -1, list[np.ndarray]()

    def rows(self, step: int) -> np.ndarray:
        """The examples of a step. In an epoch each example is in one batch, beside others of about its length."""
        epoch, place = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            generator = numpy_generator(self.seed, "tagger-order", epoch)
            order, size = generator.permutation(len(self._examples)), self._settings.batch_size
            lengths = np.array([len(example.ids) for example in self._examples])
            pools = [order[start : start + POOL_BATCHES * size] for start in range(0, len(order), POOL_BATCHES * size)]
            sorted_pools = [pool[np.argsort(lengths[pool], kind="stable")] for pool in pools]
            batches = [pool[start : start + size] for pool in sorted_pools for start in range(0, len(pool), size)]
            self._batches = [batches[number] for number in generator.permutation(len(batches))]
            self._epoch = epoch
        return self._batches[place]

    def train_step(self, step: int) -> dict[str, float]:
        """Mean cross-entropy over the words of a batch."""
        tokens_BL, labels_BL, mask_BL = self._joined(self.rows(step))
        self.model.train()
        self._optimiser.zero_grad()
        logits_BLC = self.model(tokens_BL, mask_BL)
        loss = functional.cross_entropy(logits_BLC.flatten(0, 1), labels_BL.flatten(), ignore_index=IGNORED)
        loss.backward()
        return {"loss": loss.item(), **self._optimiser.step(step)}

    def _joined(self, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        examples = [self._examples[int(row)] for row in rows]
        shape = (len(examples), max(len(example.ids) for example in examples) + 2)
        tokens_BL, labels_BL = np.full(shape, self._special.pad, np.int64), np.full(shape, IGNORED, np.int64)
        mask_BL = np.zeros(shape, bool)
        for number, example in enumerate(examples):
            end = len(example.ids) + 1
            tokens_BL[number, : end + 1] = [self._special.cls, *example.ids, self._special.sep]
            labels_BL[number, 1:end] = example.labels
            mask_BL[number, : end + 1] = True
        tokens, labels, mask = (torch.from_numpy(part).to(self._device) for part in (tokens_BL, labels_BL, mask_BL))
        return tokens, labels, mask

    def evaluate(self, step: int) -> dict[str, float]:
        """F1 over entities of the dev files, of all and of each type."""
        if not self._dev:
            return {}
        scores = self.scores(self._dev)
        return {f"dev_f1_{name}": score.f1 for name, score in scores.items()}

    def scores(self, sentences: Sequence[TaggedSentence]) -> dict[str, Score]:
        """Scores over entities, as entity_scores.py has them."""
        tagger = tagger_of(self.model.eval(), self._tokenizer)
        found = tagger.token_entities([sentence.tokens for sentence in sentences])
        return entity_scores([sentence.entities for sentence in sentences], found)

    def tensors(self) -> dict[str, Tensor]:
        """Weights and Adam's moments."""
        return module_tensors("tagger", self.model) | {f"adam.{k}": v for k, v in self._optimiser.state().items()}

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Restore them."""
        load_module("tagger", self.model, tensors, "checkpoint")
        self._optimiser.load_state(
            {name.removeprefix("adam."): value for name, value in tensors.items() if name.startswith("adam.")}
        )
