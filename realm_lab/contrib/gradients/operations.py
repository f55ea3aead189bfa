"""Floating-point operations of a step of pre-training with given candidates, computed from their lengths."""

# Shapes: N passages, B sentences, K candidates, U distinct documents

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.models.encoder import EncoderShape
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval.rows import ABSENT
from realm_lab.engine.training.flops import SPECIALS, encoder_operations, passage_operations


class StepOperations:
    """Floating-point operations of a step of pre-training."""

    def __init__(self, params: Params, passages: Passages, reader: EncoderShape, embedder: EncoderShape):
        self._settings, self._sentence_length = params.pretrain, params.corpus.sentence_length
        self._joined_length = params.corpus.sentence_length + params.corpus.passage_length
        self._reader, self._embedder = reader, embedder
        self._body_N = np.asarray(passages.bodies.lengths, np.int64)
        self._passage_N = passage_operations(params, passages, embedder)

    def __call__(self, masked: Sequence[MaskedSentence], candidates_BK: np.ndarray) -> float:
        """Return all operations of a training step over all ranks; a null document is read as an empty passage."""
        settings = self._settings
        queries_B = np.array([len(sentence.tokens) for sentence in masked])
        read = self._read(masked, queries_B, candidates_BK)

        # The retriever: every query, and every distinct document of the batch once.
        asked_B = np.array([len(sentence.query) + 2 for sentence in masked])
        asked = encoder_operations(self._embedder, np.minimum(self._sentence_length, asked_B)).sum()
        distinct_U = np.unique(candidates_BK[candidates_BK != ABSENT])
        passages = self._passage_N[distinct_U[distinct_U >= 0]].sum()
        null = encoder_operations(self._embedder, np.array(SPECIALS)).sum() if (distinct_U < 0).any() else 0.0
        retrieve = asked + passages + null

        trains_retriever = settings.train_query_tower or settings.train_document_tower
        stale_search = asked if settings.search_query == "stale" else 0.0
        both = read * (3 if settings.train_reader else 1) + retrieve * (3 if trains_retriever else 1)
        return float(both + stale_search)

    def _read(self, masked: Sequence[MaskedSentence], queries_B: np.ndarray, candidates_BK: np.ndarray) -> float:
        """Return the reader's operations: every pair through the encoder, every masked word under every candidate
        through the head."""
        shape, masks_B = self._reader, np.array([len(sentence.positions) for sentence in masked])
        bodies_BK = np.where(candidates_BK >= 0, self._body_N[candidates_BK.clip(min=0)], 0)
        pairs_BK = np.minimum(self._joined_length, queries_B[:, None] + bodies_BK + SPECIALS)
        head = 2.0 * shape.hidden_size * (shape.hidden_size + shape.vocabulary_size)
        return float(encoder_operations(shape, pairs_BK).sum() + masks_B.sum() * candidates_BK.shape[1] * head)
