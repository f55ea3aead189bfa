"""Join wordpieces into padded batches, [CLS] x [SEP] z [SEP] (section 3.2), in groups of similar length."""

# Shapes: B sequences, L positions

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from realm_lab.engine.core.process import to_device
from realm_lab.engine.corpus.vocabulary import SpecialIds

PADDING = 256  # most wordpieces of padding in a group; more padding would cost more than another group


class Batch(NamedTuple):
    """A padded batch of joined sequences."""

    tokens_BL: Tensor  # int64
    types_BL: Tensor  # int64: 0 in the first segment, 1 in the second
    mask_BL: Tensor  # bool: true at real tokens

    def to(self, device: torch.device) -> Batch:
        """Move the batch to another device."""
        return Batch(*(to_device(part, device) for part in self))


def join(
    firsts: Sequence[np.ndarray], seconds: Sequence[np.ndarray] | None, special: SpecialIds, max_length: int
) -> Batch:
    """Compute join_BERT(first[, second]) for a batch, padded to its longest sequence.

    The second segment is cut first, then the first; the specials always stay. An empty second segment keeps its
    [SEP], so that the null document is [CLS][SEP][SEP] (released code).
    """
    room, cls, sep = max_length - (2 if seconds is None else 3), np.array([special.cls]), np.array([special.sep])
    parts: list[np.ndarray] = []
    second_start, length = np.empty((2, len(firsts), 1), np.int64)
    for number, first in enumerate(firsts):
        first = first[:room]
        parts += (cls, first, sep)
        second_start[number] = length[number] = len(first) + 2
        if seconds is not None:
            second = seconds[number][: room - len(first)]
            parts += (second, sep)
            length[number] += len(second) + 1
    place_L = np.arange(length.max())
    mask_BL = place_L < length
    tokens_BL = np.full(mask_BL.shape, special.pad, np.int64)
    tokens_BL[mask_BL] = np.concatenate(parts)
    types_BL = ((place_L >= second_start) & mask_BL).astype(np.int64)
    return Batch(torch.from_numpy(tokens_BL), torch.from_numpy(types_BL), torch.from_numpy(mask_BL))


def length_groups(lengths: Sequence[int] | np.ndarray, token_budget: int) -> list[np.ndarray]:
    """Sort rows by length and cut them into groups of at least one row, at most `token_budget` padded tokens, and at
    most PADDING tokens of padding."""
    order = np.argsort(np.asarray(lengths), kind="stable")
    groups: list[np.ndarray] = []
    start = real = 0
    for end in range(1, len(order) + 1):
        real += int(lengths[order[end - 1]])
        longest = int(lengths[order[end]]) if end < len(order) else 0
        padded = (end + 1 - start) * longest
        if end == len(order) or padded > token_budget or padded - real - longest > PADDING:
            groups.append(order[start:end])
            start, real = end, 0
    return groups


def pad_positions(rows: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Return ragged positions as int64 [B, M] padded with 0, and a mask of the real ones, bool [B, M]."""
    longest = max(1, max(len(row) for row in rows))
    values = np.zeros((len(rows), longest), np.int64)
    real = np.zeros((len(rows), longest), bool)
    for number, row in enumerate(rows):
        values[number, : len(row)] = row
        real[number, : len(row)] = True
    return torch.from_numpy(values), torch.from_numpy(real)
