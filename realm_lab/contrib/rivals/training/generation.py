"""Training of an encoder-decoder: the log-likelihood of texts, and the texts of pre-training without retrieval."""

# Shapes: B examples, T wordpieces of a text behind [CLS]

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor, nn

from realm_lab.contrib.rivals.models.decoder import Example, Generator, join_examples, pad_texts
from realm_lab.core.process import autocast
from realm_lab.core.seeding import epoch_order, numpy_generator
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.models.initial import frozen_names
from realm_lab.params.parameters import Params
from realm_lab.params.sections import Optimiser
from realm_lab.training.optimiser import ModelsTask, TrainedModels

Draw = Callable[[int], list[Example]]  # the batch of a step, a pure function of its number
NOISE_DENSITY, MEAN_SPAN_LENGTH = 0.15, 3.0  # T5's (Raffel et al. 2020, section 3.3.4)


class GenerationTask(ModelsTask):
    """-log p(text|input), mean over the examples of a step, as a task of the loop."""

    def __init__(
        self,
        params: Params,
        seed: int,
        model: Generator,
        special: SpecialIds,
        draw: Draw,
        steps: int,
        learning_rate: float,
        *,
        embedder: nn.Module | None = None,  # of a retriever that learns too (retrieving.py)
    ):
        self.seed, self.total_steps = seed, steps
        self._params, self._special, self._draw, self.model = params, special, draw, model
        self._device = model.word_bias.device
        self._longest = params.corpus.sentence_length + params.corpus.passage_length
        self._models = TrainedModels(model, embedder or nn.Module())
        self._models.train("reader", model, short_optimiser(learning_rate, steps), steps, frozen_names(model, params))

    def train_step(self, step: int) -> dict[str, float]:
        """Run one step; `launch.micro_batch` examples at a time."""
        examples = self._draw(step)
        self.model.train()
        self._models.zero_grad()
        at_once = self._params.launch.micro_batch or len(examples)
        total = 0.0
        for start in range(0, len(examples), at_once):
            loss = -self._objective(examples[start : start + at_once]).sum() / len(examples)
            loss.backward()
            total += loss.item()
        return {"loss": total, **self._models.step(step)}

    def _objective(self, examples: Sequence[Example]) -> Tensor:
        """Return log p(text|...) of each, [B], nats; all passages of an example are read together."""
        log_probs_BT, real_BT, _ = self._read(examples, max(1, len(examples[0].seconds)))
        return (log_probs_BT * real_BT).sum(1)

    def _read(self, examples: Sequence[Example], joined: int) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Return log p of each word of the text, [N, T] for N = B * passages / `joined` sources; a mask of real words;
        and the first step's logits of the cross-attention with a mask of real states, [N, S] both."""
        batch = join_examples(examples, self._special, self._longest).to(self._device)
        text_BT = pad_texts([example.target for example in examples], self._special, self.model.encoder.shape.positions)
        text_NT = text_BT.repeat_interleave(len(batch.tokens_BL) // (joined * len(examples)), 0).to(self._device)
        with autocast(self._device, self._params.model.precision):
            source = self.model.encode(batch, joined)
            log_probs_NT, logits_NS = self.model.target_log_probs(source, text_NT)
        return log_probs_NT, text_NT[:, 1:] != self._special.pad, (logits_NS, source.mask_BS)


def short_optimiser(learning_rate: float, steps: int) -> Optimiser:
    """Return a learning rate that rises for a twentieth of the steps and falls to a tenth."""
    return Optimiser(learning_rate=learning_rate, warmup_steps=steps // 20, final_fraction=0.1, recipe="short")


def drawing(
    count: int, batch_size: int, seed: int, name: str, example: Callable[[int, np.random.Generator], Example]
) -> Draw:
    """Batches from shuffled epochs over `count` items, each made into an example."""
    order = epoch_order(count, seed, name)

    def draw(step: int) -> list[Example]:
        generator = numpy_generator(seed, name, "draws", step)
        return [example(int(item), generator) for item in order.take(step * batch_size, batch_size)]

    return draw


def corrupt_spans(tokens: np.ndarray, special: SpecialIds, generator: np.random.Generator) -> Example:
    """Corrupt spans as T5 does: spans of 3 wordpieces on average, 15 % of all, are removed, and to be written in order.

    T5 numbers the replaced spans; the vocabulary of BERT has one [MASK] for all, so they are identified by their order.
    """
    length = len(tokens)
    noise = max(1, round(NOISE_DENSITY * length))
    count = max(1, min(round(noise / MEAN_SPAN_LENGTH), length - noise + 1))
    widths = _parts(noise, count, generator)
    gaps = _parts(length - noise + 2, count + 1, generator)
    gaps[[0, -1]] -= 1  # a text may start or end with a span
    starts = np.cumsum(gaps[:-1]) + np.cumsum(widths) - widths
    return blank(tokens, np.stack([starts, starts + widths], 1), special)


def blank(tokens: np.ndarray, spans: np.ndarray, special: SpecialIds) -> Example:
    """Return a text with one [MASK] for each span [first, end); the target is the spans with [MASK] between."""
    mask = np.array([special.mask])
    read: list[np.ndarray] = []
    written: list[np.ndarray] = []
    at = 0
    for start, end in spans:
        read += [tokens[at:start], mask]
        written += [mask, tokens[start:end]]
        at = end
    return Example(np.concatenate([*read, tokens[at:]]), (), np.concatenate(written[1:]))


def _parts(total: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """Cut `total` into `count` parts of at least 1, every way equally likely."""
    cuts = np.sort(generator.choice(total - 1, count - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))
