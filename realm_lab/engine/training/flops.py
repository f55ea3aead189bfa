"""Compute floating-point operations of pre-training from lengths: the same on every machine, however work is split.

Matrix products of whole layers are counted, two operations for a multiplication and an addition; the backward pass
costs twice the forward pass. Recomputation to save memory does not count.
"""

# Shapes: N passages

from __future__ import annotations

import numpy as np

from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.models.encoder import EncoderShape
from realm_lab.engine.params.parameters import Params

SPECIALS = 3  # [CLS] x [SEP] z [SEP]


def encoder_operations(shape: EncoderShape, lengths: np.ndarray) -> np.ndarray:
    """Cost of the forward pass of each sequence, float64, of the shape of `lengths`."""
    length, hidden = np.asarray(lengths, np.float64), shape.hidden_size
    projections = 8.0 * length * hidden**2
    attention = 4.0 * length**2 * hidden
    feed_forward = 4.0 * length * hidden * shape.intermediate_size
    return np.asarray(shape.layers * (projections + attention + feed_forward))


def passage_operations(params: Params, passages: Passages, shape: EncoderShape) -> np.ndarray:
    """Cost of embedding each passage, [N]."""
    titled_N = np.asarray(passages.titles.lengths, np.int64) + np.asarray(passages.bodies.lengths, np.int64) + SPECIALS
    return encoder_operations(shape, np.minimum(params.corpus.passage_length, titled_N))
