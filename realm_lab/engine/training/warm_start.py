"""The warm start: BERT training of the reader, then the Inverse Cloze Task for the embedder (section 3.4)."""

# Shapes: B examples of this rank, G examples of all ranks, M masked positions, P masked positions of all examples,
# D embedding size, A attempts, and an entry for the whole phase

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from realm_lab.engine.core.process import autocast, gather_rows, ranks, share, summed, to_device
from realm_lab.engine.core.seeding import EpochOrder, derive_seed, numpy_generator
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.initial import frozen_names
from realm_lab.engine.models.inputs import Batch, join, length_groups
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.training.optimiser import TrainedModels
from realm_lab.engine.training.pairs import Captions, InverseCloze, PairSampler
from realm_lab.errors import UserError
from realm_lab.records.run import Flag

LAST_STEPS = 20  # of an attempt, or of the whole phase; its accuracy is the mean over them
LOW_ACCURACY = 0.5  # the run is flagged if the in-batch accuracy of the Inverse Cloze Task ends below it
JUDGED_STEPS = 100  # with fewer steps the accuracy is not judged, since a smoke test is too short to learn

FEW_PASSAGES = 0.5  # the run is flagged if the Inverse Cloze Task can use a smaller share of the passages


class WarmStartTask:
    """Two phases in one run: steps of the reader first, then steps of the embedder.

    The first steps of the embedder's phase can lead to a bad minimum. With several attempts, the phase's first quarter
    is run once per attempt, each with another projection; then the whole phase is run with the best projection.
    """

    def __init__(
        self,
        params: Params,
        seed: int,
        reader: Reader,
        embedder: Embedder,
        sampler: PairSampler,
        clozes: InverseCloze,
        special: SpecialIds,
        captions: Captions | None = None,
        *,
        initial_seed: int,  # of the projections of further attempts
    ):
        self.seed, self._params, self._settings = seed, params, params.warm_start
        self._initial_seed = initial_seed
        self.reader, self.embedder = reader, embedder
        self._sampler, self._clozes, self._special, self._captions = sampler, clozes, special, captions
        self.reader_steps, embedder_settings = self._settings.reader.steps, self._settings.embedder
        self._attempts = embedder_settings.attempts if embedder_settings.attempts > 1 else 0
        self._attempt_steps = -(-embedder_settings.steps // 4)
        self.total_steps = self.reader_steps + self._attempts * self._attempt_steps + embedder_settings.steps
        self._accuracy_A = torch.zeros(self._attempts + 1, dtype=torch.float64)  # the last is for the whole phase
        self._flags: tuple[Flag, ...] = ()
        used, total = len(clozes.rows), clozes.total
        if embedder_settings.steps and not captions and used < FEW_PASSAGES * total:
            text = f"the Inverse Cloze Task can use {used:,} of {total:,} passages; warm_start.ict_cut: halves uses all"
            self._flags = (Flag("few_passages_ict", text),)
        self._initial = {name: value.clone() for name, value in embedder.state_dict().items()}
        self._device = next(reader.parameters()).device
        if self.reader_steps and not sampler.total:
            remedy = "check corpus.tagger, or set warm_start.reader.steps to 0"
            raise UserError("no sentence of the pre-training corpus has a salient span", remedy)
        if not len(clozes.rows) and not captions and self._settings.embedder.steps:
            raise UserError(
                "the Inverse Cloze Task needs passages of two sentences or more and the corpus has none; raise "
                "corpus.passage_length, or set warm_start.ict_cut to halves or warm_start.embedder.steps to 0"
            )
        for name, phase in (("reader", self._settings.reader), ("embedder", self._settings.embedder)):
            if phase.batch_size < ranks().size:
                raise UserError(
                    f"parameter 'warm_start.{name}.batch_size' is {phase.batch_size}, fewer than the {ranks().size} "
                    "ranks that share a batch; raise it, or lower launch.ranks"
                )
        self._order = EpochOrder(max(1, len(clozes.rows)), seed, "inverse-cloze")
        self._models = TrainedModels(reader, embedder)  # of the present phase
        frozen = frozen_names(reader, params)
        self._models.train("reader", reader, self._settings.reader.optimiser, self.reader_steps, frozen)

    def train_step(self, step: int) -> dict[str, float]:
        """Run a step of BERT training, or, once the reader is done, of the Inverse Cloze Task."""
        if step < self.reader_steps:
            return self._reader_step(step)
        attempt, step, steps = self._place(step)
        if not step:
            self._begin_embedder(attempt)
        values = self._embedder_step(step)
        if step >= steps - LAST_STEPS:
            self._accuracy_A[attempt] += values["accuracy_ict"] / min(steps, LAST_STEPS)
        accuracy = self._accuracy_A[-1].item()
        if attempt < 0 and JUDGED_STEPS <= steps == step + 1 and accuracy < LOW_ACCURACY:
            text = f"accuracy of the Inverse Cloze Task {accuracy:.2f}, below {LOW_ACCURACY}"
            self._flags += (Flag("low_accuracy_ict", text),)
        return values

    def _place(self, step: int) -> tuple[int, int, int]:
        """Return the attempt that a step of the embedder's phase belongs to (-1: the whole phase), the step's number in
        this attempt, and the attempt's number of steps."""
        attempt, position = divmod(step - self.reader_steps, self._attempt_steps)
        if attempt < self._attempts:
            return attempt, position, self._attempt_steps
        position = step - self.reader_steps - self._attempts * self._attempt_steps
        return -1, position, self._settings.embedder.steps

    def _reader_step(self, step: int) -> dict[str, float]:
        """Run a step of masked language modelling on the masked positions (Devlin et al. 2018)."""
        settings = self._settings.reader
        helping = step < settings.related_only_fraction * self.reader_steps
        related_fraction = 1.0 if helping else settings.related_fraction
        generator, mine = numpy_generator(self.seed, "warm-start-masks", step), share(settings.batch_size)
        drawn = self._sampler.batch(step, settings.batch_size, related_fraction, generator, mine)
        self.reader.train()
        self._models.zero_grad()
        count = drawn.masked_count
        sums_2 = torch.zeros(2, dtype=torch.float64, device=self._device)  # read only at the end: the CPU waits for it
        groups = length_groups(drawn.batch.mask_BL.sum(1).numpy(), self._params.launch.token_budget)
        for group in groups:
            rows = torch.from_numpy(group)
            longest = int(drawn.batch.mask_BL[rows].sum(1).max())
            batch = Batch(*(part[rows, :longest] for part in drawn.batch)).to(self._device)
            is_masked_BM = drawn.is_masked_BM[rows]
            at_P = to_device(is_masked_BM.flatten().nonzero()[:, 0], self._device)
            targets_P = to_device(drawn.targets_BM[rows][is_masked_BM], self._device)
            with autocast(self._device, self._params.model.precision):
                hidden_BMD = self.reader.masked_hidden(batch, to_device(drawn.at_BM[rows], self._device))
                log_probs_PV = self.reader.word_log_probs(hidden_BMD.flatten(0, 1)[at_P])
            loss = -log_probs_PV.gather(-1, targets_P[:, None]).sum() / count
            loss.backward()
            right_P = (log_probs_PV.argmax(-1) == targets_P) & (targets_P != self._special.unk)
            sums_2 += torch.stack([loss.detach(), right_P.sum()])
        values = self._models.step(step)
        total, right = summed(*sums_2.tolist())
        return {"loss": total, "loss_mlm": total, "accuracy_mlm": right / count, **values}

    def _begin_embedder(self, attempt: int) -> None:
        """Reset the embedder to the start of an attempt; -1: of the whole phase, with the best attempt's projection.

        The towers take over the reader's Transformer if the parameters ask for it.
        """
        settings = self._settings.embedder
        self.embedder.load_state_dict(self._initial)
        if settings.initial_encoder == "reader":
            for encoder in (self.embedder.query_encoder, self.embedder.document_encoder):
                encoder.load_state_dict(self.reader.encoder.state_dict())
        number = attempt if attempt >= 0 or not self._attempts else int(self._accuracy_A[:-1].argmax())
        if number > 0:
            generator = torch.Generator().manual_seed(derive_seed(self._initial_seed, "projection", number))
            self.embedder.draw_projection(generator)
        self._models = TrainedModels(self.reader, self.embedder)
        frozen = frozen_names(self.embedder, self._params)
        self._models.train("embedder", self.embedder, settings.optimiser, settings.steps, frozen)

    def _embedder_batch(self, step: int, mine: range) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
        """Return queries, titles and bodies of a rank's share of a step. All ranks draw the whole batch.

        If there are captions, every other pair is a caption with its picture; all are if no passage can be used.
        """
        settings = self._settings.embedder
        generator = numpy_generator(self.seed, "inverse-cloze-sentences", step)
        taken = self._order.take(step * settings.batch_size, settings.batch_size)
        queries, titles, bodies = [], [], []
        for number, position in enumerate(taken):
            if self._captions and (number % 2 or not len(self._clozes.rows)):
                query, body = self._captions.pair(generator)
                title = body[:0]
            else:
                query, title, body = self._clozes.pair(int(self._clozes.rows[position]), generator)
            if number in mine:
                queries.append(query)
                titles.append(title)
                bodies.append(body)
        return queries, titles, bodies

    def _embedder_step(self, step: int) -> dict[str, float]:
        """Run a step on the in-batch softmax from a query to its passage (Lee et al. 2019).

        The passages of other queries, of all ranks, are the negatives.
        """
        size = self._settings.embedder.batch_size
        mine = range(size)[share(size)]
        queries, titles, bodies = self._embedder_batch(step, mine)
        self.embedder.train()
        self._models.zero_grad()
        corpus = self._params.corpus
        with autocast(self._device, self._params.model.precision):
            query_BD = self.embedder.embed_queries(
                join(queries, None, self._special, corpus.sentence_length).to(self._device)
            )
            document_BD = self.embedder.embed_documents(
                join(titles, bodies, self._special, corpus.passage_length).to(self._device)
            )
        score_BG = query_BD @ gather_rows(document_BD).T
        target_B = torch.arange(mine.start, mine.stop, device=self._device)
        loss = functional.cross_entropy(score_BG, target_B, reduction="sum") / size
        loss.backward()
        right_here = (score_BG.argmax(1) == target_B).sum()
        values = self._models.step(step)
        total, right = summed(*torch.stack([loss.detach(), right_here]).tolist())
        return {"loss": total, "loss_ict": total, "accuracy_ict": right / size, **values}

    def flags(self) -> tuple[Flag, ...]:
        """Return warnings for the run's status."""
        return self._flags

    def finish(self) -> None:
        """Multiply the retriever's scores by `query_scale`, after the last step; cosine scores stay."""
        if not self._settings.embedder.steps:
            self._begin_embedder(-1)
        self.embedder.scale_scores(self._settings.embedder.query_scale)

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights of both models, the moments of the present phase, and the accuracy of each attempt."""
        return self._models.tensors() | {"accuracy_ict": self._accuracy_A}

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Restore the result of `tensors`."""
        self._accuracy_A = tensors["accuracy_ict"].cpu().clone()
        if step > self.reader_steps:
            self._begin_embedder(-1)
        self._models.load(tensors)
