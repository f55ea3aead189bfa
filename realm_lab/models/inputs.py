"""Joining wordpieces into padded batches: [CLS] x [SEP] z [SEP] (section 3.2), sorted into groups of equal length."""

# Shapes: B sequences, L positions

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from realm_lab.corpus.vocabulary import SpecialIds


class Batch(NamedTuple):
    """A padded batch of joined sequences."""

    tokens_BL: Tensor  # int64
    types_BL: Tensor  # int64: 0 in the first segment, 1 in the second
    mask_BL: Tensor  # bool: true at real tokens

    def to(self, device: torch.device) -> Batch:
        """The batch on another device."""
        return Batch(*(part.to(device, non_blocking=True) for part in self))


def join_one(
    first: np.ndarray, second: np.ndarray | None, special: SpecialIds, max_length: int
) -> tuple[np.ndarray, int]:
    """join_BERT(first[, second]): wordpieces and where the second segment begins.

    The second segment is cut first, then the first; the specials always stay. An empty second segment keeps its
    own [SEP], so that the null document is [CLS][SEP][SEP] (released code).
    """
    specials = 2 if second is None else 3
    first = first[: max_length - specials]
    parts: list[np.ndarray] = [np.array([special.cls]), first, np.array([special.sep])]
    if second is not None:
        parts += [second[: max_length - specials - len(first)], np.array([special.sep])]
    return np.concatenate(parts).astype(np.int64), len(first) + 2


def join(
    firsts: Sequence[np.ndarray], seconds: Sequence[np.ndarray] | None, special: SpecialIds, max_length: int
) -> Batch:
    """join_BERT for a batch, padded to its longest sequence."""
    rows = [
        join_one(first, seconds[number] if seconds is not None else None, special, max_length)
        for number, first in enumerate(firsts)
    ]
    longest = max(len(tokens) for tokens, _ in rows)
    tokens_BL = np.full((len(rows), longest), special.pad, np.int64)
    types_BL = np.zeros((len(rows), longest), np.int64)
    mask_BL = np.zeros((len(rows), longest), bool)
    for number, (tokens, second_start) in enumerate(rows):
        tokens_BL[number, : len(tokens)] = tokens
        types_BL[number, second_start : len(tokens)] = 1
        mask_BL[number, : len(tokens)] = True
    return Batch(torch.from_numpy(tokens_BL), torch.from_numpy(types_BL), torch.from_numpy(mask_BL))


def length_groups(lengths: Sequence[int] | np.ndarray, token_budget: int) -> list[np.ndarray]:
    """Rows sorted by length and cut into groups of at most `token_budget` padded tokens (at least one row each)."""
    order = np.argsort(np.asarray(lengths), kind="stable")
    groups: list[np.ndarray] = []
    start = 0
    for end in range(1, len(order) + 1):
        longest = lengths[order[end]] if end < len(order) else 0
        if end == len(order) or (end + 1 - start) * longest > token_budget:
            groups.append(order[start:end])
            start = end
    return groups


def pad_positions(rows: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Ragged positions as int64 [B, M] padded with 0, and which are real, bool [B, M]."""
    longest = max(1, max(len(row) for row in rows))
    values = np.zeros((len(rows), longest), np.int64)
    real = np.zeros((len(rows), longest), bool)
    for number, row in enumerate(rows):
        values[number, : len(row)] = row
        real[number, : len(row)] = True
    return torch.from_numpy(values), torch.from_numpy(real)
