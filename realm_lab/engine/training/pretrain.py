"""REALM pre-training: mask, retrieve, read, marginal likelihood, step, with refreshes of the index (section 3).

One training step is `PretrainTask.train_step`. It calls, in this order: `QueryStream` (training/query_stream.py),
`CandidatePolicy` (retrieval/candidates.py) with `Retriever` (retrieval/retriever.py), `CandidateReader`
(models/candidate_reader.py), and the equations (models/realm.py).
"""

# Shapes: B sentences, K candidates, M masked positions, D embedding size, Q quantities of health

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from realm_lab.engine.core.process import on_first_rank, share, sum_over_ranks_
from realm_lab.engine.core.seeding import numpy_generator
from realm_lab.engine.corpus.store import Sentences
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.models.candidate_reader import AnyReader, passage_reader
from realm_lab.engine.models.objectives import COMPARES_NULL, training_objective
from realm_lab.engine.models.realm import marginal_log_likelihood_per_token
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval.candidate_sources import CandidateSource, QueryBatch
from realm_lab.engine.retrieval.candidates import CandidatePolicy, Candidates
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.rows import NULL
from realm_lab.engine.retrieval.search import IndexGeneration, Matrix
from realm_lab.engine.training.builder import ProcessBuilder
from realm_lab.engine.training.flops import passage_operations
from realm_lab.engine.training.optimiser import TrainedModels
from realm_lab.engine.training.probes import StalenessProbe
from realm_lab.engine.training.query_stream import QueryStream, place_null
from realm_lab.engine.training.refreshed_index import RefreshedIndex
from realm_lab.engine.training.watch import CollapseWatch, candidate_health, health_means, quantities
from realm_lab.records.run import Flag

STALENESS_SENTENCES = 16  # sentences whose candidates in the stale and in a fresh index are compared
Evaluation = Callable[[Retriever], dict[str, float]]


class PretrainTask:
    """REALM pre-training as a task of the loop. The retriever must have an index."""

    def __init__(
        self,
        params: Params,
        seed: int,
        retriever: Retriever,
        reader: AnyReader,
        sentences: Sentences,
        special: SpecialIds,
        vocabulary: Sequence[str],  # the wordpiece of each token id
        evaluation: Evaluation,
        probe: Callable[[], dict[str, float]] | None = None,  # measures the run's reader; `reader` may be a reward
        builder: ProcessBuilder | None = None,
        at_end: Callable[[], Matrix] | None = None,  # embeds the passages with the final weights, into the store
        null_from: int | None = None,  # the step at which this task's null document replaces the previous task's
    ):
        settings = params.pretrain
        self.seed, self._params, self._settings = seed, params, settings
        self.retriever, self.reader, self._sentences = retriever, reader, sentences
        self.total_steps = settings.steps
        self.evaluation_interval_steps = params.evaluate.interval_steps
        self.watch_interval_steps = settings.watch.interval_steps
        self._evaluation, self._probe, self._at_end, self._null_from = evaluation, probe, at_end, null_from
        self._maximised = training_objective("pretrain.objective", settings.objective)
        self._compares_null = settings.objective.name in COMPARES_NULL
        self._policy = CandidatePolicy.of(settings)
        self._policy.check(len(retriever.passages))
        self._source = CandidateSource(settings)
        # With the source `empty`, training reads only the null document. Probes and evaluation always search the index.
        self._reading = replace(self._policy, count=1) if settings.candidate_source.name == "empty" else self._policy
        self._stream = QueryStream(settings, sentences, special.mask, seed, vocabulary)
        place_null(settings, retriever, self._stream)
        self._candidate_reader = passage_reader(params, reader, retriever.passages, special)
        parts = settings.train_reader, settings.train_query_tower, settings.train_document_tower
        self._models = TrainedModels.of(params, settings, reader, retriever.embedder, *parts)
        self._watch = CollapseWatch(settings.watch.patience_steps, settings.steps)
        self._health = dict[str, float]()
        # Queries like those of training, always the same.
        rows, queries = self._stream.sample(STALENESS_SENTENCES, "staleness-queries")
        self._index = RefreshedIndex(
            settings.refresh,
            retriever,
            StalenessProbe(self._policy, queries, sentences.origins[rows], len(retriever.passages), seed),
            passage_operations(params, retriever.passages, retriever.embedder.document_encoder.shape),
            settings.train_document_tower,
            builder,
        )

    def train_step(self, step: int) -> dict[str, float]:
        """Run one optimiser step on log p(y|x) (Eq. 1) or another objective; `batch_size` sentences over all ranks."""
        started, settings, launch = time.perf_counter(), self._settings, self._params.launch

        # Refresh the index, made with the weights of an earlier step, if the policy decides so.
        self._index.before_step(step)

        # Mask. Every rank draws the whole batch and computes its share of it.
        rows = self._stream.rows(step * settings.batch_size, settings.batch_size)
        generator = numpy_generator(self.seed, "pretrain-masks", step)
        masked = [self._stream.masked(int(row), generator) for row in rows]
        mine = range(settings.batch_size)[share(settings.batch_size)]
        at_once = launch.micro_batch or max(1, len(mine))

        # Retrieve, read, marginal likelihood, backward: `at_once` sentences at a time, whose gradients add up. The
        # loss is the mean over the sentences, or over the masked words if each word is marginalised by itself.
        self.reader.train()
        self.retriever.embedder.train()
        self._models.zero_grad()
        logged = (step + 1) % launch.log_interval_steps == 0 or step + 1 == self.total_steps
        normaliser = sum(len(sentence.positions) for sentence in masked)
        if settings.marginal == "example":
            normaliser = settings.batch_size
        total = torch.zeros(1, dtype=torch.float64, device=self.retriever.device)
        kinds = sorted(set(self._kinds(rows, masked))) if logged else []  # of the whole batch: the same on every rank
        health_2Q = total.new_zeros(2, len(quantities(kinds)))
        for start in range(0, len(mine), at_once):
            part = list(mine[start : start + at_once])
            batch = self._batch(step, rows, part)
            objective, health = self._objective(rows[part], [masked[i] for i in part], batch, kinds, read_null=logged)
            loss = -objective / normaliser
            if loss.requires_grad:
                loss.backward()
            total += loss.detach()
            health_2Q += health

        # Step: gradients are summed over the ranks, then clipped.
        stepped = self._models.step(step)

        # Log the loss, the health of the retriever, the age of the index, and the cost of refreshing it.
        sum_over_ranks_([total, health_2Q])
        values = {"loss": total.item(), **stepped}
        self._health = health_means(health_2Q, kinds)
        values |= self._health | self._index.metrics(step)
        values["step_seconds"] = time.perf_counter() - started
        return values

    def _kinds(self, rows: np.ndarray, masked: Sequence[MaskedSentence]) -> list[str]:
        """Return the kind of each sentence, the label of its masked span."""
        return [self._sentences.kind(int(row), one.positions) for row, one in zip(rows, masked, strict=True)]

    def _batch(self, step: int, rows: np.ndarray, part: Sequence[int]) -> QueryBatch:
        """Return the facts for a candidate source about the sentences `part` of a step; `rows`: all its sentences."""
        origins, golds = np.asarray(self._sentences.origins[rows]), np.asarray(self._sentences.gold[rows])
        passages_U = np.unique(np.where(origins >= 0, origins, golds))
        return QueryBatch(
            passages_U[passages_U >= 0],
            golds[part],
            lambda number: numpy_generator(self.seed, "pretrain-candidates", step, part[number]),
        )

    def _objective(
        self,
        rows: np.ndarray,
        masked: Sequence[MaskedSentence],
        batch: QueryBatch,
        kinds: Sequence[str],
        read_null: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return the sum over some sentences of log p(y|x) or of `pretrain.objective`, nats (sections 3.2 to 3.4), and
        the result of `candidate_health` for them, also separately for each of `kinds`, [2, Q].

        With `read_null`, and no null document among the candidates, the sentences are also read without a passage and
        without a gradient, since the utility of a passage (Eq. 2) is measured against that reading. An objective that
        compares with the null document always reads it.
        """
        # Retrieve: candidates by the index or another source, p(z|x) by the current weights.
        exclude = self._policy.exclusion(self.retriever, self._sentences.origins[rows])
        queries = [sentence.query for sentence in masked]
        found = self._reading.retrieve(
            self.retriever, queries, exclude, compare_null=self._compares_null, source=self._source.of(batch)
        )

        # Read: p(y_j|z,x) of each masked word under each candidate.
        reading = self._candidate_reader.read(masked, found.rows_BK)
        log_reader_BK = reading.log_probs_BK

        # Marginal likelihood: of the whole answer (Eq. 1, or another objective), or of each word (released code).
        if self._settings.marginal == "example":
            objective_B = self._maximised(found.log_prior_BK, log_reader_BK)
        else:
            objective_B = marginal_log_likelihood_per_token(
                found.log_prior_BK, reading.token_log_probs_BKM, reading.is_masked_BM
            )

        # Health of the candidates, for the log and the watch.
        log_null_B: Tensor | None = None
        if self._policy.null or self._compares_null:
            log_null_B = log_reader_BK[:, 0].detach()
            if not self._policy.null:  # the null document was read, but is no candidate
                found = Candidates(found.rows_BK[:, 1:], found.score_BK[:, 1:], found.log_prior_BK[:, 1:])
                log_reader_BK = log_reader_BK[:, 1:]
        elif read_null:
            # In a logged step, the dropout of further micro-batches is drawn as in any other step.
            device = self.retriever.device
            with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
                nulls_B1 = np.full((len(masked), 1), NULL, np.int64)
                log_null_B = self._candidate_reader.read(masked, nulls_B1).log_probs_BK[:, 0]
        gold_B = np.asarray(self._sentences.gold[rows])
        kind_B = self._kinds(rows, masked) if kinds else []
        health_2Q = candidate_health(found, log_reader_BK, log_null_B, gold_B, kind_B, kinds)
        return objective_B.sum(), health_2Q

    def watch(self, step: int) -> dict[str, float]:
        """Run the probes after `step` finished steps, and check for a collapse."""
        values: dict[str, float] = on_first_rank(self._probe) if self._probe is not None else {}
        values |= self._index.measure_sample()
        self._watch.update(step, self._health | values)
        return values

    def flags(self) -> tuple[Flag, ...]:
        """Return warnings for the run's status."""
        return self._watch.flags()

    def uncounted_flop(self) -> float:
        """Return the operations so far of refreshing the index, which another process may do."""
        return self._index.refresh_flops

    def evaluate(self, step: int) -> dict[str, float]:
        """Measure utility, likelihood and zero-shot recall on held-out text, with a fresh index."""
        fresh = self.retriever.searching_exactly()
        at_end = self._at_end if step == self.total_steps else None
        fresh.adopt(IndexGeneration(at_end(), step) if at_end else self._index.fresh(step))
        values = self._evaluation(fresh) | self._index.measure(fresh)
        self._watch.update(step, values)
        return values

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, moments, the null document's offset, and the states of the collapse watch and the index."""
        state = self._models.tensors()
        state["null_offset"] = torch.tensor(self.retriever.null_offset, dtype=torch.float64)
        return state | self._watch.state() | self._index.state()

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Restore the result of `tensors`, the index included. If the null document changes at this step, the new one
        is initialised."""
        is_changed, null = step == self._null_from, self.retriever.embedder.null_vector
        if null is not None:  # zeros, in every copy of the embedder, if the task before had no null vector
            copies = [name for name in tensors if name.endswith(".query_projection.weight")]
            vectors = {f"{name.removesuffix('.query_projection.weight')}.null_vector" for name in copies}
            tensors = {name: torch.zeros_like(null) for name in vectors} | tensors
        self._models.load(tensors)
        if not is_changed:
            self.retriever.null_offset = float(tensors["null_offset"])
        self._watch.load_state(tensors)
        self._index.load_state(tensors)
        if is_changed:
            place_null(self._settings, self.retriever, self._stream)
