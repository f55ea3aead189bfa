"""REALM pre-training: mask, retrieve, read, marginal likelihood, step; refresh the index beside it (section 3.3)."""

# Shapes: B sentences, K candidates, M masked positions, D embedding size

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from realm_lab.core.process import gather_rows, on_first_rank, ranks, share, sum_over_ranks_
from realm_lab.core.seeding import numpy_generator
from realm_lab.corpus.store import Sentences
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.errors import UserError
from realm_lab.masking import MaskedSentence
from realm_lab.models.initial import frozen_names, tower_names
from realm_lab.models.reader import Reader
from realm_lab.params.parameters import Params
from realm_lab.retrieval.retriever import Retriever
from realm_lab.training.builders import Builder
from realm_lab.training.checkpoint import load_module, module_tensors
from realm_lab.training.index_keeper import IndexKeeper
from realm_lab.training.loop import NonFiniteLoss
from realm_lab.training.objective import RealmObjective
from realm_lab.training.optimiser import ScheduledAdamW
from realm_lab.training.queries import QueryStream
from realm_lab.training.reader_probe import ReaderProbe
from realm_lab.training.staleness_probe import StalenessProbe
from realm_lab.training.watch import CandidateHealth, CollapseWatch
from realm_lab.training.work import PretrainingWork

CALIBRATION_SENTENCES = 64
PROBE_SENTENCES = 16  # whose candidates in a stale and in a fresh index are compared
Evaluation = Callable[[Retriever, Reader], dict[str, float]]


class PretrainTask:
    """REALM pre-training as a task of the loop."""

    def __init__(
        self,
        params: Params,
        seed: int,
        retriever: Retriever,
        reader: Reader,
        sentences: Sentences,
        special: SpecialIds,
        evaluation: Evaluation,
        probe: ReaderProbe | None = None,
        builder: Builder | None = None,
    ):
        self.seed, self._params, self._settings = seed, params, params.pretrain
        self.retriever, self.reader = retriever, reader
        self._sentences, self._special, self._evaluation, self._probe = sentences, special, evaluation, probe
        self.total_steps = self._settings.steps
        self.evaluation_interval_steps = params.evaluate.interval_steps
        self.watch_interval_steps = self._settings.watch.interval_steps
        self._stream = QueryStream(
            sentences,
            masking=self._settings.masking,
            mask_rate=self._settings.mask_rate,
            salient_spans=self._settings.salient_spans,
            sentence_choice=self._settings.sentence_choice,
            mask_id=special.mask,
            seed=seed,
        )
        self._objective = RealmObjective(params, retriever, reader, sentences, special)
        self._check_corpus()
        self._reader_optimiser, self._retriever_optimiser = self._optimisers()
        self._watch = CollapseWatch(self._settings.watch)
        waits = self._settings.hold_retriever_until_useful or self._settings.hold_retriever_steps
        self._released_at: int | None = None if waits else 0  # the step at which the retriever began to learn
        self._health: dict[str, float] = {}
        self._prepared = False
        self._work = PretrainingWork(
            retriever.passages,
            reader.encoder.shape,
            retriever.embedder.document_encoder.shape,
            passage_length=params.corpus.passage_length,
            sentence_length=params.corpus.sentence_length,
        )
        self._keeper = IndexKeeper(
            self._settings.refresh, retriever, self._staleness_probe(), self._work.passage_N, builder
        )

    def _check_corpus(self) -> None:
        settings = self._settings
        passages = max(settings.candidates - int(settings.null_document != "off"), settings.over_retrieve)
        if passages + int(settings.exclude_trivial != "off") > len(self.retriever.passages):
            name = "over_retrieve" if settings.over_retrieve > settings.candidates else "candidates"
            raise UserError(
                f"parameter 'pretrain.{name}' is {getattr(settings, name)}, but the knowledge corpus has only "
                f"{len(self.retriever.passages)} passages; lower it"
            )

    def _optimisers(self) -> tuple[ScheduledAdamW | None, ScheduledAdamW | None]:
        """One optimiser for the reader and one for the retriever, where they train; the rest gets no gradient."""
        settings, embedder = self._settings, self.retriever.embedder
        towers = (settings.train_query_tower, settings.train_document_tower)
        fixed = {
            "reader": set() if settings.train_reader else {name for name, _ in self.reader.named_parameters()},
            "retriever": tower_names(embedder, *towers),
        }
        made: list[ScheduledAdamW | None] = []
        for name, module, chosen, trained in (
            ("reader", self.reader, settings.reader, settings.train_reader),
            ("retriever", embedder, settings.retriever, any(towers)),
        ):
            frozen = frozen_names(module, self._params) | fixed[name]
            for key, parameter in module.named_parameters():
                parameter.requires_grad_(key not in frozen)
            made.append(ScheduledAdamW(name, module, chosen, self.total_steps, frozen) if trained else None)
        return made[0], made[1]

    def _staleness_probe(self) -> StalenessProbe:
        """Queries like those of training, always the same."""
        rows, queries = self._some_queries(PROBE_SENTENCES, "staleness-queries")
        settings = self._settings
        return StalenessProbe(
            queries,
            self._objective.trivial(rows),
            by_article=settings.exclude_trivial == "article",
            places=max(1, settings.candidates - int(settings.null_document != "off")),
            passages=len(self.retriever.passages),
            seed=self.seed,
        )

    def _some_queries(self, count: int, purpose: str) -> tuple[np.ndarray, list[np.ndarray]]:
        """The first sentences of the stream, masked for a purpose of their own: rows and queries."""
        rows = self._stream.rows(0, min(count, len(self._stream)))
        return rows, [
            self._stream.masked(int(row), numpy_generator(self.seed, purpose, int(row))).tokens for row in rows
        ]

    def _prepare(self) -> None:
        """First index and, where asked for, the calibration of the null document."""
        if self._prepared:
            return
        self._prepared = True
        self._keeper.prepare()
        if self._settings.calibrate_null:
            rows, queries = self._some_queries(CALIBRATION_SENTENCES, "calibration")
            by_article = self._settings.exclude_trivial == "article"
            trivial = self._objective.trivial(rows)
            self.retriever.calibrate_null(queries, self._settings.candidates, trivial, by_article)

    def train_step(self, step: int) -> dict[str, float]:
        """One optimiser step on log p(y|x) (Eq. 1); `batch_size` sentences over all ranks."""
        started = time.perf_counter()
        size = self._settings.batch_size
        self._prepare()
        self._keeper.before_step(step, self._documents_moved)
        self._release(step)
        rows, masked = self._batch(step)
        mine = range(size)[share(size)]
        at_once = self._params.launch.micro_batch or max(1, len(mine))
        learns = self._released_at is not None
        logged = (step + 1) % self._params.launch.log_interval_steps == 0 or step + 1 == self.total_steps
        self.reader.train()
        self.retriever.embedder.train()
        optimisers = [o for o in (self._reader_optimiser, self._retriever_optimiser) if o is not None]
        for optimiser in optimisers:
            optimiser.zero_grad()
        per_example = self._settings.marginal == "example"
        normaliser = size if per_example else sum(len(sentence.positions) for sentence in masked)
        total, health = torch.zeros(1, dtype=torch.float64), CandidateHealth.zero()
        found = [np.empty((0, self._settings.candidates), np.int64)]
        for start in range(0, len(mine), at_once):
            chosen = list(mine[start : start + at_once])
            read = self._objective(rows[chosen], [masked[i] for i in chosen], retriever_learns=learns, read_null=logged)
            loss = -read.objective / normaliser
            if loss.requires_grad:
                loss.backward()
            total += loss.item()
            health = health + read.health
            found.append(read.candidates_BK)
        health = health.over_ranks()
        sum_over_ranks_([total])
        values = {"loss": total.item()}
        if not np.isfinite(values["loss"]):
            raise NonFiniteLoss(values["loss"], self.describe_batch(step))
        if ranks().size > 1:
            for optimiser in optimisers:
                sum_over_ranks_(optimiser.gradients())
        values |= self._step_optimisers(step)
        values |= health.means()
        self._health = health.means()
        self._count(masked, gather_rows(torch.from_numpy(np.concatenate(found))).numpy())
        values |= self._keeper.metrics(step)
        values["step_seconds"] = time.perf_counter() - started
        return values

    def _step_optimisers(self, step: int) -> dict[str, float]:
        values: dict[str, float] = {}
        if self._reader_optimiser is not None:
            values |= self._reader_optimiser.step(step)
        if self._retriever_optimiser is not None and self._released_at is not None:
            values |= self._retriever_optimiser.step(step, self._released_at)
        return values

    @property
    def _documents_moved(self) -> bool:
        """Whether a weight behind the index has changed since the beginning."""
        return self._settings.train_document_tower and self._released_at is not None

    def _count(self, masked: list[MaskedSentence], candidates_BK: np.ndarray) -> None:
        """Tell the keeper of the index what the step read, and what it cost."""
        settings = self._settings
        trains = settings.train_query_tower or settings.train_document_tower
        operations = self._work.step(
            masked,
            candidates_BK,
            trains_reader=settings.train_reader,
            trains_retriever=trains and self._released_at is not None,
            stale_search=settings.search_query == "stale",
        )
        self._keeper.after_step(candidates_BK, operations)

    def _release(self, step: int) -> None:
        """Let the retriever learn once the reader has had its time (reader first)."""
        settings = self._settings
        if self._released_at is not None or step < settings.hold_retriever_steps:
            return
        if settings.hold_retriever_until_useful:
            if step % settings.watch.interval_steps:
                return
            probe = self._probe
            assert probe is not None
            if on_first_rank(lambda: probe.retrieved_utility(self.retriever, self.reader)) <= 0:
                return
        self._released_at = step

    def watch(self, step: int) -> dict[str, float]:
        """The reader probe after `step` finished steps, and whether the run has collapsed."""
        self._prepare()
        probe = self._probe
        values: dict[str, float] = on_first_rank(lambda: probe.measure(self.reader)) if probe is not None else {}
        values |= self._keeper.measure_sample()
        if self._released_at is None:
            values["retriever_held"] = 1.0
        self._watch.update(step, self._health | values)
        return values

    def flags(self) -> tuple[str, ...]:
        """Warnings for the run's status."""
        return (*self._watch.flags(), *self._keeper.warnings)

    def should_stop(self) -> str | None:
        """Why to stop before the last step, None to go on."""
        flags = self._watch.flags()
        return flags[0] if flags and self._settings.watch.stop else None

    def _batch(self, step: int) -> tuple[np.ndarray, list[MaskedSentence]]:
        """The sentences of a step over all ranks, and what is masked in them."""
        rows = self._stream.rows(step * self._settings.batch_size, self._settings.batch_size)
        generator = numpy_generator(self.seed, "pretrain-masks", step)
        return rows, [self._stream.masked(int(row), generator) for row in rows]

    def describe_batch(self, step: int) -> dict[str, object]:
        """The batch of a step, for the record of what went wrong: rows of sentences, wordpiece ids."""
        rows, masked = self._batch(step)
        return {
            "sentence_rows": rows,
            "queries": [sentence.tokens for sentence in masked],
            "masked_positions": [sentence.positions for sentence in masked],
            "targets": [sentence.targets for sentence in masked],
        }

    def evaluate(self, step: int) -> dict[str, float]:
        """Utility, likelihood and zero-shot recall on held-out text, with a fresh index."""
        self._prepare()
        fresh = self.retriever.searching_exactly()
        fresh.refresh(step)
        return self._evaluation(fresh, self.reader) | self._keeper.measure(fresh)

    def tensors(self) -> dict[str, Tensor]:
        """Weights, moments, the index with the weights that made it, and what of it is under way."""
        state = module_tensors("reader", self.reader) | module_tensors("embedder", self.retriever.embedder)
        for optimiser in (self._reader_optimiser, self._retriever_optimiser):
            state |= optimiser.state() if optimiser is not None else {}
        state |= self._watch.state()
        state["released_at"] = torch.tensor(-1 if self._released_at is None else self._released_at)
        state["null_offset"] = torch.tensor(self.retriever.null_offset, dtype=torch.float64)
        return state | self._keeper.state()

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Restore everything, the index generation included."""
        load_module("reader", self.reader, tensors, "checkpoint")
        load_module("embedder", self.retriever.embedder, tensors, "checkpoint")
        for optimiser in (self._reader_optimiser, self._retriever_optimiser):
            if optimiser is not None:
                optimiser.load_state(tensors)
        self._watch.load_state(tensors)
        released = int(tensors["released_at"])
        self._released_at = released if released >= 0 else None
        self.retriever.null_offset = float(tensors["null_offset"])
        self._prepared = self._keeper.load_state(tensors)
