"""Useful work: the floating-point operations that a result needs, padding and unused positions not counted."""

from __future__ import annotations

from collections.abc import Sequence

from realm_lab.engine.models.encoder import EncoderShape

TRAINING = 3  # forward once, backward twice as much


def encoder_flops(shape: EncoderShape, lengths: Sequence[int], used: Sequence[int]) -> float:
    """Operations of the forward matrix products of sequences of `lengths`, if `used` positions of each are wanted.

    In the last block every position needs a key and a value, but only the used ones the rest of the block.
    """
    size, inner = shape.hidden_size, shape.intermediate_size
    total = 0.0
    for length, kept in zip(lengths, used, strict=True):
        for layer in range(shape.layers):
            asked = kept if layer == shape.layers - 1 else length
            total += 2 * length * 2 * size * size  # keys and values
            total += 2 * asked * (2 * size * size + 2 * size * inner)  # queries, output, feed-forward
            total += 4 * asked * length * size  # attention
    return total


def word_flops(shape: EncoderShape, positions: int) -> float:
    """Operations of the forward matrix products of the masked-word head at this many positions."""
    return 2.0 * positions * shape.hidden_size * (shape.hidden_size + shape.vocabulary_size)
