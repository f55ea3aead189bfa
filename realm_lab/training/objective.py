"""The objective of pre-training on some sentences: retrieve, read, log p(y|x) (sections 3.2 to 3.4)."""

# Shapes: B sentences, K candidates, M masked positions, D embedding size

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from realm_lab.corpus.store import Sentences
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.masking import MaskedSentence
from realm_lab.models.inputs import pad_positions
from realm_lab.models.marginal import read_candidates
from realm_lab.models.reader import Reader
from realm_lab.models.realm import (
    candidate_log_probs,
    marginal_log_likelihood,
    marginal_log_likelihood_per_token,
    reader_log_probs,
)
from realm_lab.params.parameters import Params
from realm_lab.retrieval.retriever import NULL, Retriever
from realm_lab.training.watch import CandidateHealth, candidate_health


class Read(NamedTuple):
    """What reading a batch gave: the sum of the objective over its sentences, in nats, and what was read."""

    objective: Tensor
    health: CandidateHealth
    candidates_BK: np.ndarray


class RealmObjective:
    """log p(y|x) of masked sentences with the candidates that the retriever finds."""

    def __init__(self, params: Params, retriever: Retriever, reader: Reader, sentences: Sentences, special: SpecialIds):
        self._params, self._settings = params, params.pretrain
        self._retriever, self._reader, self._sentences, self._special = retriever, reader, sentences, special
        self._null = self._settings.null_document != "off"

    def __call__(
        self, rows: np.ndarray, masked: Sequence[MaskedSentence], *, retriever_learns: bool, read_null: bool
    ) -> Read:
        """The sum over the sentences `rows` of log p(y|x) (Eq. 1), or of what the released code takes instead, in nats.

        Without `retriever_learns` no gradient reaches the retriever. With `read_null`, and no null document among the
        candidates, the sentences are read without a passage too, for the utility alone.
        """
        settings = self._settings
        queries = [sentence.tokens for sentence in masked]
        with torch.set_grad_enabled(retriever_learns):
            query_BD = self._retriever.embed_queries(queries)
            candidates_BK = self._find(queries, query_BD.detach(), rows)
            score_BK = self._retriever.score(query_BD, candidates_BK)
        log_prior_BK = candidate_log_probs(score_BK)
        at_BM, is_masked_BM = pad_positions([sentence.positions for sentence in masked])
        targets_BM, _ = pad_positions([sentence.targets for sentence in masked])
        token_BKM = self._read(queries, at_BM, targets_BM, is_masked_BM, candidates_BK)
        is_masked_BM = is_masked_BM.to(token_BKM.device)
        log_reader_BK = reader_log_probs(token_BKM, is_masked_BM)
        if settings.marginal == "token":
            objective_B = marginal_log_likelihood_per_token(log_prior_BK, token_BKM, is_masked_BM)
        else:
            objective_B = marginal_log_likelihood(log_prior_BK, log_reader_BK)
        log_null_B: Tensor | None = None
        if self._null:
            log_null_B = log_reader_BK[:, 0].detach()
        elif read_null and settings.diagnostic_null:
            with torch.no_grad():
                token_B1M = self._read(
                    queries, at_BM, targets_BM, is_masked_BM, np.full((len(queries), 1), NULL, np.int64)
                )
                log_null_B = reader_log_probs(token_B1M, is_masked_BM)[:, 0]
        gold_B = np.asarray(self._sentences.gold[rows])
        health = candidate_health(candidates_BK, score_BK, log_prior_BK, log_reader_BK, log_null_B, gold_B)
        return Read(objective_B.sum(), health, candidates_BK)

    def trivial(self, rows: np.ndarray) -> np.ndarray | None:
        """The passage each sentence came from, where it must not be retrieved."""
        if self._settings.exclude_trivial == "off":
            return None
        return np.asarray(self._sentences.origins[rows], np.int64)

    def _find(self, queries: Sequence[np.ndarray], query_BD: Tensor, rows: np.ndarray) -> np.ndarray:
        settings = self._settings
        search_BD = query_BD if settings.search_query == "fresh" else self._retriever.search_queries(queries)
        found_BK = self._retriever.find(
            search_BD,
            max(settings.candidates, settings.over_retrieve + int(self._null)),
            null=self._null,
            trivial=self.trivial(rows),
            by_article=settings.exclude_trivial == "article",
        )
        return self._retriever.rerank(query_BD, found_BK, settings.candidates) if settings.over_retrieve else found_BK

    def _read(
        self,
        queries: Sequence[np.ndarray],
        at_BM: Tensor,
        targets_BM: Tensor,
        is_masked_BM: Tensor,
        rows_BK: np.ndarray,
    ) -> Tensor:
        corpus, launch = self._params.corpus, self._params.launch
        return read_candidates(
            self._reader,
            queries,
            at_BM,
            targets_BM,
            rows_BK,
            self._retriever.passages,
            self._special,
            max_length=corpus.sentence_length + corpus.passage_length,
            token_budget=launch.token_budget,
            precision=self._params.model.precision,
            is_masked_BM=is_masked_BM,
            recompute=launch.recompute,
        )
