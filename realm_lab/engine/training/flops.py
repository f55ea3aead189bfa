"""Compute the floating-point operations of encoders from sequence lengths, whatever the machine and the split of work.

Only matrix products of forward passes are counted, two operations for a multiplication and an addition.
"""

# Shapes: N passages

from __future__ import annotations

import numpy as np

from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.models.encoder import EncoderShape
from realm_lab.engine.params.parameters import Params

SPECIALS = 3  # [CLS] title [SEP] body [SEP] of a passage, or [CLS] x [SEP] body [SEP]


def encoder_operations(shape: EncoderShape, lengths: np.ndarray) -> np.ndarray:
    """Return the operations of the forward pass of each sequence, float64, in the shape of `lengths`."""
    length, hidden = np.asarray(lengths, np.float64), shape.hidden_size
    projections = 8.0 * length * hidden**2
    attention = 4.0 * length**2 * hidden
    feed_forward = 4.0 * length * hidden * shape.intermediate_size
    return np.asarray(shape.layers * (projections + attention + feed_forward))


def passage_operations(params: Params, passages: Passages, shape: EncoderShape) -> np.ndarray:
    """Return the operations of embedding each passage, [N]."""
    titled_N = np.asarray(passages.titles.lengths, np.int64) + np.asarray(passages.bodies.lengths, np.int64) + SPECIALS
    return encoder_operations(shape, np.minimum(params.corpus.passage_length, titled_N))
