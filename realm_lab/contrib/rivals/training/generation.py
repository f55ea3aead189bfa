"""Training of an encoder-decoder by the log-likelihood of texts, also with a dense retriever that learns (RAG);
and training texts with removed spans."""

# Shapes: B examples, K passages, N = B * K, T wordpieces of a text behind [CLS]

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from realm_lab.contrib.rivals.models.decoder import Example, Generator, join_examples, pad_texts
from realm_lab.engine.core.process import autocast
from realm_lab.engine.core.seeding import EpochOrder, numpy_generator
from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.models.candidate_reader import NO_TOKENS
from realm_lab.engine.models.initial import frozen_names, tower_names
from realm_lab.engine.models.realm import (
    candidate_log_probs,
    marginal_log_likelihood,
    marginal_log_likelihood_per_token,
)
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.params.sections import Optimiser
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.training.optimiser import ModelsTask, TrainedModels
from realm_lab.records.run import Flag

Draw = Callable[[int], list[Example]]  # the batch of a step, a pure function of its number
JUDGED_STEPS = 100  # a training with fewer steps is not flagged, as in a smoke test, which learns nothing on purpose
HIGH_LOSS = 0.5  # nats per text; above it, a decoder has not learned to copy
NOISE_DENSITY, MEAN_SPAN_LENGTH = 0.15, 3.0  # T5's (Raffel et al. 2020, section 3.3.4)


class GenerationTask(ModelsTask):
    """Task of the training loop: minimise -log p(text|input), mean over the examples of a step."""

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
        embedder: nn.Module | None = None,  # of a retriever that learns too
    ):
        self.seed, self.total_steps = seed, steps
        self._params, self._special, self._draw, self.model = params, special, draw, model
        self._device = model.word_bias.device
        self._longest = params.corpus.sentence_length + params.corpus.passage_length
        self._models = TrainedModels(model, embedder or nn.Module())
        settings = Optimiser(learning_rate=learning_rate, warmup_steps=steps // 20, final_fraction=0.1, recipe="short")
        self._models.train("reader", model, settings, steps, frozen_names(model, params))

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
        """Return log p(text|...) of each example, [B], nats; all passages of an example are read together."""
        log_probs_BT, real_BT = self._read(examples, max(1, len(examples[0].seconds)))
        return (log_probs_BT * real_BT).sum(1)

    def _read(self, examples: Sequence[Example], joined: int) -> tuple[Tensor, Tensor]:
        """Return log p of each word of the text, [N, T] for N = B * passages / `joined` sources, and a mask of real
        words."""
        batch = join_examples(examples, self._special, self._longest).to(self._device)
        text_BT = pad_texts([example.target for example in examples], self._special, self.model.encoder.shape.positions)
        text_NT = text_BT.repeat_interleave(len(batch.tokens_BL) // (joined * len(examples)), 0).to(self._device)
        with autocast(self._device, self._params.model.precision):
            log_probs_NT = self.model.target_log_probs(self.model.encode(batch, joined), text_NT)
        return log_probs_NT, text_NT[:, 1:] != self._special.pad


class CopyingTask(GenerationTask):
    """GenerationTask for texts that can be copied from a passage. A decoder that cannot copy at the end is flagged."""

    _loss = 0.0  # of the last step

    def train_step(self, step: int) -> dict[str, float]:
        """Run one step. The last step's loss is kept: its blanks are new, so it shows if the decoder copies."""
        values = super().train_step(step)
        self._loss = values["loss"] if step + 1 == self.total_steps else 0.0
        return values

    def flags(self) -> tuple[Flag, ...]:
        """Return a warning after the last step if the decoder has not learned to copy."""
        if self.total_steps < JUDGED_STEPS or self._loss <= HIGH_LOSS:
            return ()
        text = f"the decoder did not learn to copy: {self._loss:.2f} nats per text, above {HIGH_LOSS}"
        return (Flag("did_not_train", text),)


class RetrievingTask(GenerationTask):
    """The query tower is trained with the reader; the document vectors and their index are not. `objective`:

    - `sequence`: log sum_z p(z|x) prod_t p(y_t|y_<t, z, x) (RAG-Sequence; Lewis et al. 2020, section 2.1);
    - `token`: sum_t log sum_z p(z|x) p(y_t|y_<t, z, x) (RAG-Token).
    """

    def __init__(self, params: Params, *given: Any, retriever: Retriever, passages: int, objective: str):
        super().__init__(params, *given, embedder=retriever.embedder)
        self.retriever, self._passages, self._kind = retriever, passages, objective
        embedder, settings = retriever.embedder, params.finetune.retriever
        frozen = frozen_names(embedder, params) | tower_names(embedder, True, False)
        self._models.train("retriever", embedder, settings, self.total_steps, frozen)

    def _objective(self, examples: Sequence[Example]) -> Tensor:
        self.retriever.embedder.train()
        query_BD = self.retriever.embed_queries([example.first for example in examples])
        rows_BK = self.retriever.find(query_BD.detach(), self._passages)
        log_prior_BK = candidate_log_probs(self.retriever.indexed_score(query_BD, rows_BK))
        examples = with_passages(examples, self.retriever.passages, rows_BK)
        return rag_log_likelihood(self._kind, log_prior_BK, *self._read(examples, 1))


def with_passages(examples: Sequence[Example], passages: Passages, rows_BK: np.ndarray) -> list[Example]:
    """Return the examples, each with the passages of its rows; a negative row is an empty passage."""
    return [
        example._replace(seconds=[passages.bodies[row] if row >= 0 else NO_TOKENS for row in rows_K])
        for example, rows_K in zip(examples, rows_BK, strict=True)
    ]


def rag_log_likelihood(kind: str, log_prior_BK: Tensor, log_probs_NT: Tensor, real_NT: Tensor) -> Tensor:
    """Return log p(y|x) of RAG-Sequence or RAG-Token from the words written after each passage, [B], nats."""
    log_probs_BKT = log_probs_NT.view(*log_prior_BK.shape, -1)
    real_BKT = real_NT.view_as(log_probs_BKT)
    if kind == "token":
        return marginal_log_likelihood_per_token(log_prior_BK, log_probs_BKT, real_BKT[:, 0])
    return marginal_log_likelihood(log_prior_BK, (log_probs_BKT * real_BKT).sum(2))


def drawing(
    count: int, batch_size: int, seed: int, name: str, example: Callable[[int, np.random.Generator], Example]
) -> Draw:
    """Return a function that draws the batch of a step: items of shuffled epochs over `count`, made into examples."""
    order = EpochOrder(count, seed, name)

    def draw(step: int) -> list[Example]:
        generator = numpy_generator(seed, name, "draws", step)
        return [example(int(item), generator) for item in order.take(step * batch_size, batch_size)]

    return draw


def corrupt_spans(tokens: np.ndarray, special: SpecialIds, generator: np.random.Generator) -> Example:
    """Corrupt spans as T5 does: remove spans of 3 wordpieces on average, 15 % of all; the target has them in order.

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
