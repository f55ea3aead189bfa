"""The warm start: BERT training of the reader, then the Inverse Cloze Task for the embedder (section 3.4)."""

# Shapes: B examples, M masked positions, D embedding size

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from realm_lab.config import Params
from realm_lab.core.process import autocast
from realm_lab.core.seeding import epoch_order, numpy_generator
from realm_lab.corpus.store import Passages
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.errors import UserError
from realm_lab.models.embedder import Embedder
from realm_lab.models.export import frozen_names
from realm_lab.models.inputs import join, length_groups
from realm_lab.models.reader import Reader
from realm_lab.training.checkpoint import load_module, module_tensors
from realm_lab.training.optimiser import ScheduledAdamW
from realm_lab.training.pairs import PairSampler


class WarmStartTask:
    """Two phases in one run: steps of the reader first, then steps of the embedder."""

    def __init__(
        self,
        params: Params,
        seed: int,
        reader: Reader,
        embedder: Embedder,
        sampler: PairSampler,
        passages: Passages,
        special: SpecialIds,
    ):
        self.seed, self._params, self._settings = seed, params, params.warm_start
        self.reader, self.embedder = reader, embedder
        self._sampler, self._passages, self._special = sampler, passages, special
        self.reader_steps = self._settings.reader.steps
        self.total_steps = self.reader_steps + self._settings.embedder.steps
        self.evaluation_interval_steps = self.total_steps + 1  # the logged losses say enough
        self._device = next(reader.parameters()).device
        self._multi = np.flatnonzero(passages.sentence_starts.lengths > 1)
        if not len(self._multi) and self._settings.embedder.steps:
            raise UserError(
                "the Inverse Cloze Task needs passages of two sentences or more and the corpus has none; "
                "raise corpus.passage_length, or set warm_start.embedder.steps to 0"
            )
        self._order = epoch_order(len(self._multi), seed, "inverse-cloze")
        self._reader_optimiser = ScheduledAdamW(
            "reader", reader, self._settings.reader.optimiser, self.reader_steps, frozen_names(reader, params)
        )
        self._embedder_optimiser: ScheduledAdamW | None = None

    def train_step(self, step: int) -> dict[str, float]:
        """A step of BERT training, or, once the reader is done, of the Inverse Cloze Task."""
        if step < self.reader_steps:
            return self._reader_step(step)
        if self._embedder_optimiser is None:
            self._start_embedder()
        return self._embedder_step(step - self.reader_steps)

    def _reader_step(self, step: int) -> dict[str, float]:
        """Masked-language-model loss over masked positions (Devlin et al. 2018)."""
        settings = self._settings.reader
        helping = step < settings.related_only_fraction * self.reader_steps
        drawn = self._sampler.batch(
            step,
            settings.batch_size,
            1.0 if helping else settings.related_fraction,
            numpy_generator(self.seed, "warm-start-masks", step),
        )
        self.reader.train()
        self._reader_optimiser.zero_grad()
        count = drawn.is_masked_BM.sum().item()
        total, right = 0.0, 0.0
        for group in length_groups(drawn.batch.mask_BL.sum(1).numpy(), self._params.launch.token_budget):
            rows = torch.from_numpy(group)
            longest = int(drawn.batch.mask_BL[rows].sum(1).max())
            batch = type(drawn.batch)(*(part[rows, :longest].to(self._device) for part in drawn.batch))
            targets_BM = drawn.targets_BM[rows].to(self._device)
            is_masked_BM = drawn.is_masked_BM[rows].to(self._device)
            with autocast(self._device, self._params.model.precision):
                hidden_BMD = self.reader.masked_hidden(batch, drawn.at_BM[rows].to(self._device))
                log_probs_BMV = self.reader.word_log_probs(hidden_BMD[is_masked_BM])
            loss = -log_probs_BMV.gather(-1, targets_BM[is_masked_BM][:, None]).sum() / count
            loss.backward()
            total += loss.item()
            right += (log_probs_BMV.argmax(-1) == targets_BM[is_masked_BM]).sum().item()
        values = self._reader_optimiser.step(step)
        return {"loss": total, "loss_mlm": total, "accuracy_mlm": right / count, **values}

    def _start_embedder(self) -> None:
        """Begin the second phase: the towers take over the reader's Transformer where the parameters say so."""
        if self._settings.embedder.initial_encoder == "reader":
            for encoder in (self.embedder.query_encoder, self.embedder.document_encoder):
                encoder.load_state_dict(self.reader.encoder.state_dict())
        self._embedder_optimiser = ScheduledAdamW(
            "embedder",
            self.embedder,
            self._settings.embedder.optimiser,
            self._settings.embedder.steps,
            frozen_names(self.embedder, self._params),
        )

    def _embedder_step(self, step: int) -> dict[str, float]:
        """In-batch softmax from a sentence to its passage, the sentence removed at removal_rate (Lee et al. 2019)."""
        assert self._embedder_optimiser is not None
        settings = self._settings.embedder
        generator = numpy_generator(self.seed, "inverse-cloze-sentences", step)
        queries, titles, bodies = [], [], []
        for row in self._multi[self._order.take(step * settings.batch_size, settings.batch_size)]:
            body = np.asarray(self._passages.bodies[row])
            starts = [*self._passages.sentence_starts[row], len(body)]
            chosen = int(generator.integers(len(starts) - 1))
            first, end = starts[chosen], starts[chosen + 1]
            queries.append(body[first:end])
            removed = generator.random() < settings.removal_rate
            bodies.append(np.concatenate([body[:first], body[end:]]) if removed else body)
            titles.append(self._passages.titles[row])
        self.embedder.train()
        self._embedder_optimiser.zero_grad()
        corpus = self._params.corpus
        with autocast(self._device, self._params.model.precision):
            query_BD = self.embedder.embed_queries(
                join(queries, None, self._special, corpus.sentence_length).to(self._device)
            )
            document_BD = self.embedder.embed_documents(
                join(titles, bodies, self._special, corpus.passage_length).to(self._device)
            )
        score_BB = query_BD @ document_BD.T
        target_B = torch.arange(len(score_BB), device=self._device)
        loss = functional.cross_entropy(score_BB, target_B)
        loss.backward()
        values = self._embedder_optimiser.step(step)
        accuracy = (score_BB.argmax(1) == target_B).float().mean().item()
        return {"loss": loss.item(), "loss_ict": loss.item(), "accuracy_ict": accuracy, **values}

    def finish(self) -> None:
        """After the last step: the temperature of the retriever (W_input scaled by query_scale)."""
        if self._embedder_optimiser is None:
            self._start_embedder()
        self.embedder.query_projection.weight.data.mul_(self._settings.embedder.query_scale)

    def evaluate(self, step: int) -> dict[str, float]:
        """Nothing beyond the logged losses."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments of both phases."""
        state = module_tensors("reader", self.reader) | module_tensors("embedder", self.embedder)
        state |= self._reader_optimiser.state()
        return state | (self._embedder_optimiser.state() if self._embedder_optimiser else {})

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Restore both phases."""
        if step > self.reader_steps:
            self._start_embedder()
        load_module("reader", self.reader, tensors, "checkpoint")
        load_module("embedder", self.embedder, tensors, "checkpoint")
        self._reader_optimiser.load_state(tensors)
        if self._embedder_optimiser is not None:
            self._embedder_optimiser.load_state(tensors)
