"""Floating-point operations against torch's own counter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from realm_lab.masking import mask
from realm_lab.models.encoder import Encoder, EncoderShape
from realm_lab.models.inputs import Batch
from realm_lab.retrieval.rows import ABSENT, NULL
from realm_lab.training.flops import PretrainingFlops, encoder_operations


@pytest.mark.parametrize("length", [3, 17, 40])
def test_an_encoder_costs_what_torch_counts(length: int) -> None:
    shape = EncoderShape(100, 24, 3, 4, 56, 64)
    encoder = Encoder(shape).eval()
    tokens_BL = torch.ones(2, length, dtype=torch.int64)
    batch = Batch(tokens_BL, torch.zeros_like(tokens_BL), torch.ones_like(tokens_BL, dtype=torch.bool))
    with FlopCounterMode(display=False) as counter:  # with a gradient: the fused attention is not counted
        encoder(*batch)
    assert counter.get_total_flops() == encoder_operations(shape, np.array([length, length])).sum()


@pytest.mark.parametrize(
    ("reads", "retrieves", "stale"), [(True, True, True), (False, True, False), (True, False, True)]
)
def test_a_step_is_the_sum_of_what_is_read_and_retrieved(
    system: Any, reads: bool, retrieves: bool, stale: bool
) -> None:
    passages, reader, embedder = system.passages, system.reader.encoder.shape, system.embedder.query_encoder.shape
    trained = {"train_reader": reads, "train_query_tower": retrieves, "train_document_tower": retrieves}
    pretrain = system.params.pretrain.model_copy(update=trained | {"search_query": "stale" if stale else "fresh"})
    flops = PretrainingFlops(system.params.model_copy(update={"pretrain": pretrain}), passages, reader, embedder)
    masked = [mask(np.arange(10), np.array([2, 3]), 4), mask(np.arange(6), np.array([1]), 4)]
    candidates_BK = np.array([[NULL, 5, 7], [NULL, 7, ABSENT]])

    def one(shape: EncoderShape, length: int) -> float:
        return float(encoder_operations(shape, np.array(length)))

    body = {row: len(passages.bodies[row]) for row in (5, 7)} | {NULL: 0, ABSENT: 0}
    read = 0.0
    for sentence, rows in zip(masked, candidates_BK.tolist(), strict=True):
        for row in rows:
            read += one(reader, min(58, len(sentence.tokens) + body[row] + 3))
            read += len(sentence.positions) * 2 * reader.hidden_size * (reader.hidden_size + reader.vocabulary_size)
    documents = [min(32, len(passages.titles[row]) + body[row] + 3) for row in (5, 7)] + [3]
    asked = one(embedder, 12) + one(embedder, 8)
    retrieved = asked + sum(one(embedder, length) for length in documents)
    assert flops.passage_N[[5, 7]].tolist() == [one(embedder, length) for length in documents[:2]]
    expected = read * (3 if reads else 1) + retrieved * (3 if retrieves else 1) + (asked if stale else 0)
    assert flops.step(masked, candidates_BK) == pytest.approx(expected, rel=1e-12)
