"""REALM pre-training: mask, retrieve, read, marginal likelihood, step; refresh the index beside it (section 3.3)."""

# Shapes: B sentences, K candidates, M masked positions, D embedding size

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from realm_lab.config import Params
from realm_lab.core.seeding import epoch_order, numpy_generator
from realm_lab.corpus.store import Sentences
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.errors import UserError
from realm_lab.masking import MaskedSentence, mask, masking_scheme
from realm_lab.models.export import frozen_names
from realm_lab.models.inputs import pad_positions
from realm_lab.models.marginal import read_candidates
from realm_lab.models.reader import Reader
from realm_lab.models.realm import (
    candidate_log_probs,
    marginal_log_likelihood,
    marginal_log_likelihood_per_token,
    reader_log_probs,
    retrieval_utility,
)
from realm_lab.retrieval.index import IndexGeneration
from realm_lab.retrieval.retriever import NULL, Retriever
from realm_lab.training.checkpoint import load_module, module_tensors
from realm_lab.training.optimiser import ScheduledAdamW

CALIBRATION_SENTENCES = 64
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
    ):
        self.seed, self._params, self._settings = seed, params, params.pretrain
        self.retriever, self.reader = retriever, reader
        self._sentences, self._special, self._evaluation = sentences, special, evaluation
        self.total_steps = self._settings.steps
        self.evaluation_interval_steps = params.evaluate.interval_steps
        self._scheme = masking_scheme(self._settings.masking)
        self._order = epoch_order(len(sentences), seed, "pretrain-sentences")
        self._by_article = self._settings.exclude_trivial == "article"
        self._null = self._settings.null_document != "off"
        wanted = self._settings.candidates - int(self._null) + int(self._settings.exclude_trivial != "off")
        if wanted > len(retriever.passages):
            raise UserError(
                f"parameter 'pretrain.candidates' is {self._settings.candidates}, but the knowledge corpus has only "
                f"{len(retriever.passages)} passages; lower it"
            )
        self._optimisers: list[ScheduledAdamW] = []
        for name, module, trained in (
            ("reader", reader, self._settings.train_reader),
            ("retriever", retriever.embedder, self._settings.train_embedder),
        ):
            module.requires_grad_(trained)
            if trained:
                settings = self._settings.reader if name == "reader" else self._settings.retriever
                frozen = frozen_names(module, params)
                self._optimisers.append(ScheduledAdamW(name, module, settings, self.total_steps, frozen))
        self._refresh_seconds = 0.0
        self._prepared = False

    def _prepare(self) -> None:
        """First index and, where asked for, the calibration of the null document."""
        if self._prepared:
            return
        self._prepared = True
        self.retriever.refresh(0)
        if self._settings.calibrate_null and self._null:
            rows = self._order.take(0, min(CALIBRATION_SENTENCES, len(self._sentences)))
            masked = [self._mask(int(row), numpy_generator(self.seed, "calibration", int(row))) for row in rows]
            queries = [sentence.tokens for sentence in masked]
            self.retriever.calibrate_null(queries, self._settings.candidates, self._trivial(rows), self._by_article)

    def _mask(self, row: int, generator: np.random.Generator) -> MaskedSentence:
        tokens = self._sentences.tokens[row]
        spans = self._sentences.salient_spans(row)
        positions = self._scheme(len(tokens), spans, self._settings.mask_rate, generator)
        return mask(tokens, positions, self._special.mask)

    def _trivial(self, rows: np.ndarray) -> np.ndarray | None:
        if self._settings.exclude_trivial == "off":
            return None
        return np.asarray(self._sentences.origins[rows], np.int64)

    def train_step(self, step: int) -> dict[str, float]:
        """One optimiser step on log p(y|x) (Eq. 1)."""
        started = time.perf_counter()
        settings = self._settings
        self._prepare()
        if settings.refresh_interval_steps and step and step % settings.refresh_interval_steps == 0:
            refresh_started = time.perf_counter()
            self.retriever.refresh(step)
            self._refresh_seconds = time.perf_counter() - refresh_started
        rows = self._order.take(step * settings.batch_size, settings.batch_size)
        generator = numpy_generator(self.seed, "pretrain-masks", step)
        masked = [self._mask(int(row), generator) for row in rows]
        queries = [sentence.tokens for sentence in masked]
        self.reader.train()
        self.retriever.embedder.train()
        for optimiser in self._optimisers:
            optimiser.zero_grad()

        query_BD = self.retriever.embed_queries(queries)
        search_BD = query_BD if settings.search_query == "fresh" else self.retriever.search_queries(queries)
        candidates_BK = self.retriever.find(
            search_BD, settings.candidates, null=self._null, trivial=self._trivial(rows), by_article=self._by_article
        )
        score_BK = self.retriever.score(query_BD, candidates_BK)
        log_prior_BK = candidate_log_probs(score_BK)
        at_BM, is_masked_BM = pad_positions([sentence.positions for sentence in masked])
        targets_BM, _ = pad_positions([sentence.targets for sentence in masked])
        token_BKM = self._read(queries, at_BM, targets_BM, candidates_BK)
        is_masked_BM = is_masked_BM.to(token_BKM.device)
        log_reader_BK = reader_log_probs(token_BKM, is_masked_BM)
        log_likelihood_B = marginal_log_likelihood(log_prior_BK, log_reader_BK)
        if settings.marginal == "token":  # the released code, normalised by masked tokens as it does
            per_token_B = marginal_log_likelihood_per_token(log_prior_BK, token_BKM, is_masked_BM)
            loss = -per_token_B.sum() / is_masked_BM.sum()
        else:
            loss = -log_likelihood_B.mean()
        loss.backward()
        values = {"loss": loss.item(), "marginal_log_likelihood": log_likelihood_B.mean().item()}
        for optimiser in self._optimisers:
            values |= optimiser.step(step)
        assert self.retriever.index is not None
        values |= self._health(candidates_BK, score_BK, log_prior_BK, log_reader_BK, rows)
        values["index_staleness_steps"] = step - self.retriever.index.step
        values["refresh_seconds"] = self._refresh_seconds
        values["step_seconds"] = time.perf_counter() - started
        return values

    def _read(self, queries: list[np.ndarray], at_BM: Tensor, targets_BM: Tensor, rows_BK: np.ndarray) -> Tensor:
        corpus = self._params.corpus
        return read_candidates(
            self.reader,
            queries,
            at_BM,
            targets_BM,
            rows_BK,
            self.retriever.passages,
            self._special,
            max_length=corpus.sentence_length + corpus.passage_length,
            token_budget=self._params.launch.token_budget,
            precision=self._params.model.precision,
        )

    @torch.no_grad()
    def _health(
        self,
        rows_BK: np.ndarray,
        score_BK: Tensor,
        log_prior_BK: Tensor,
        log_reader_BK: Tensor,
        sentence_rows: np.ndarray,
    ) -> dict[str, float]:
        """Early warnings of a collapse, from numbers the step has anyway."""
        real_BK = torch.from_numpy(rows_BK >= 0).to(score_BK.device)
        prior_BK = log_prior_BK.exp()
        spread_B = score_BK.masked_fill(~real_BK, torch.nan).nanmean(1, keepdim=True)
        deviation_BK = (score_BK - spread_B).masked_fill(~real_BK, 0.0).square()
        values = {
            "candidate_entropy": -(prior_BK * log_prior_BK).sum(1).mean().item(),
            "score_spread": (deviation_BK.sum(1) / real_BK.sum(1).clamp(min=1)).sqrt().mean().item(),
        }
        gold = np.asarray(self._sentences.gold[sentence_rows])
        if (gold >= 0).any():
            known = gold >= 0
            values["gold_among_candidates"] = float((rows_BK == gold[:, None]).any(1)[known].mean())
        if self._null:
            null_BK = torch.from_numpy(rows_BK == NULL).to(score_BK.device)
            values["null_probability"] = (prior_BK * null_BK).sum(1).mean().item()
            utility_BK = retrieval_utility(log_reader_BK, log_reader_BK[:, 0])
            values["retrieval_utility_train"] = (prior_BK * utility_BK).sum(1).mean().item()
        return values

    def evaluate(self, step: int) -> dict[str, float]:
        """Utility, likelihood and zero-shot recall on held-out text, with a fresh index."""
        self._prepare()
        fresh = copy.copy(self.retriever)
        fresh.refresh(step)
        return self._evaluation(fresh, self.reader)

    def tensors(self) -> dict[str, Tensor]:
        """Weights, moments, and the index with the weights that made it."""
        state = module_tensors("reader", self.reader) | module_tensors("embedder", self.retriever.embedder)
        for optimiser in self._optimisers:
            state |= optimiser.state()
        index, snapshot = self.retriever.index, self.retriever.snapshot
        if index is not None:
            state["index.embeddings"] = index.embeddings_ND
            state["index.step"] = torch.tensor(index.step)
            state["index.null_offset"] = torch.tensor(self.retriever.null_offset, dtype=torch.float64)
            if snapshot is not None:
                state |= module_tensors("snapshot", snapshot)
        return state

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Restore everything, the index generation included."""
        load_module("reader", self.reader, tensors, "checkpoint")
        load_module("embedder", self.retriever.embedder, tensors, "checkpoint")
        for optimiser in self._optimisers:
            optimiser.load_state(tensors)
        if "index.embeddings" in tensors:
            self._prepared = True
            snapshot = None
            if any(name.startswith("snapshot.") for name in tensors):
                snapshot = copy.deepcopy(self.retriever.embedder)
                load_module("snapshot", snapshot, tensors, "checkpoint")
            self.retriever.null_offset = float(tensors["index.null_offset"])
            index_step = int(tensors["index.step"])
            self.retriever.adopt(
                IndexGeneration(tensors["index.embeddings"], self.retriever.corpus_digest, index_step), snapshot
            )
