"""Training of an encoder-decoder with a trained dense retriever: RAG, and attention distillation."""

# Shapes: B examples, K passages, N = B * K, T wordpieces of a text behind [CLS], S states of a source, L positions

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from realm_lab.contrib.rivals.models.decoder import Example
from realm_lab.contrib.rivals.training.generation import GenerationTask
from realm_lab.corpus.store import Passages
from realm_lab.models.candidate_reader import NO_TOKENS
from realm_lab.models.initial import frozen_names, tower_names
from realm_lab.models.objectives import distilled
from realm_lab.models.realm import candidate_log_probs, marginal_log_likelihood, marginal_log_likelihood_per_token
from realm_lab.params.parameters import Params
from realm_lab.retrieval.retriever import Retriever


class RetrievingTask(GenerationTask):
    """The query tower is trained with the reader; the document vectors and their index are not. `objective`:

    - `sequence`: log sum_z p(z|x) prod_t p(y_t|y_<t, z, x) (RAG-Sequence; Lewis et al. 2020, section 2.1);
    - `token`: sum_t log sum_z p(z|x) p(y_t|y_<t, z, x) (RAG-Token);
    - `distilled`: log p(y|x, all passages), by the decoder, minus KL(sg(t) || p(z|x)) for the retriever, t the softmax
      of the attention that the passages get (Izacard and Grave 2021b). Only in the second half of the steps: the
      attention of a reader that had not learned to answer ranked passages worse than BM25 on the toy world. (This
      was not enough to make it work there: docs/systems.md.)
    """

    def __init__(self, params: Params, *given: Any, retriever: Retriever, passages: int, objective: str):
        super().__init__(params, *given, embedder=retriever.embedder)
        self.retriever, self._passages, self._kind = retriever, passages, objective
        embedder, settings = retriever.embedder, params.finetune.retriever
        frozen = frozen_names(embedder, params) | tower_names(embedder, True, False)
        self._models.train("retriever", embedder, settings, self.total_steps, frozen)

    def train_step(self, step: int) -> dict[str, float]:
        """Run one step; `launch.micro_batch` examples at a time."""
        self._teaches = 2 * step >= self.total_steps
        return super().train_step(step)

    def _objective(self, examples: Sequence[Example]) -> Tensor:
        self.retriever.embedder.train()
        query_BD = self.retriever.embed_queries([example.first for example in examples])
        rows_BK = self.retriever.find(query_BD.detach(), self._passages)
        log_prior_BK = candidate_log_probs(self.retriever.indexed_score(query_BD, rows_BK))
        examples = with_passages(examples, self.retriever.passages, rows_BK)
        if self._kind == "distilled":
            log_probs_BT, real_BT, source = self._read(examples, self._passages)
            reader_B = (log_probs_BT * real_BT).sum(1)
            if not self._teaches:
                return reader_B
            return reader_B + distilled(log_prior_BK, passage_attention(*source, self._passages), 1.0)
        log_probs_NT, real_NT, _ = self._read(examples, 1)
        return rag_log_likelihood(self._kind, log_prior_BK, log_probs_NT, real_NT)


def with_passages(examples: Sequence[Example], passages: Passages, rows_BK: np.ndarray) -> list[Example]:
    """Return examples that read those passages; a negative row reads an empty one."""
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


def passage_attention(logits_BS: Tensor, mask_BS: Tensor, passages: int) -> Tensor:
    """Return the attention to a passage's states when the first word is written: the mean of the cross-attention's
    logits before the softmax, over its states (Izacard and Grave 2021b, section 3.2). Shape [B, K]."""
    logits_BKL, real_BKL = (part.view(len(logits_BS), passages, -1) for part in (logits_BS, mask_BS))
    return (logits_BKL * real_BKL).sum(2) / real_BKL.sum(2)
