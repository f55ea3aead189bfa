"""Which texts have been seen before, and where: a table of 64-bit hashes in place of a dictionary of strings.

12 bytes a slot, at most 70 % of them in use: 13 million passages cost 400 MB (600 MB for a moment, while it grows)
where a dictionary of their hashes would cost 2 GB. Two different texts among 13 million share a hash with a chance of
one in 200,000.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

FULL = 0.7
_EMPTY = np.uint64(0)


def text_hash(*parts: str) -> int:
    """64 bits of BLAKE2b over the parts; never 0."""
    joined = "\0".join(parts).encode()
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "little") or 1


class Numbered(NamedTuple):
    """For each key its number, and whether it is the first of its kind."""

    number_N: np.ndarray  # int64
    is_new_N: np.ndarray  # bool


class FirstSeen:
    """Numbers keys from 0 in the order in which they first come; a key that comes again keeps its number."""

    def __init__(self, slots: int = 1 << 16):
        """`slots` is a power of two; the table grows by itself."""
        self._keys = np.zeros(slots, np.uint64)
        self._numbers = np.zeros(slots, np.int32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, key_N: np.ndarray) -> Numbered:
        """Number some keys (uint64, none of them 0), in their order."""
        unique, first, inverse = np.unique(np.asarray(key_N, np.uint64), return_index=True, return_inverse=True)
        numbers = self._find(unique)
        new = np.flatnonzero(numbers < 0)
        new = new[np.argsort(first[new])]
        numbers[new] = self._count + np.arange(len(new))
        self._count += len(new)
        if self._count > FULL * len(self._keys):
            self._grow()
        self._insert(unique[new], numbers[new])
        is_new = np.zeros(len(inverse), bool)
        is_new[first[new]] = True
        return Numbered(numbers[inverse], is_new)

    def _find(self, keys: np.ndarray) -> np.ndarray:
        numbers = np.full(len(keys), -1, np.int64)
        pending = np.arange(len(keys))
        mask = np.uint64(len(self._keys) - 1)
        slots = keys & mask
        while len(pending):
            found = self._keys[slots]
            hit = found == keys[pending]
            numbers[pending[hit]] = self._numbers[slots[hit]]
            further = ~hit & (found != _EMPTY)
            pending, slots = pending[further], (slots[further] + np.uint64(1)) & mask
        return numbers

    def _insert(self, keys: np.ndarray, numbers: np.ndarray) -> None:
        """Put keys that are not there yet; of those that want the same slot one gets it, the others move on."""
        mask = np.uint64(len(self._keys) - 1)
        slots = keys & mask
        while len(keys):
            free = self._keys[slots] == _EMPTY
            self._keys[slots[free]] = keys[free]
            won = self._keys[slots] == keys
            self._numbers[slots[won]] = numbers[won]
            keys, numbers, slots = keys[~won], numbers[~won], (slots[~won] + np.uint64(1)) & mask

    def _grow(self) -> None:
        used = self._keys != _EMPTY
        keys, numbers = self._keys[used], self._numbers[used]
        slots = 2 * len(self._keys)
        while self._count > FULL * slots:
            slots *= 2
        self._keys, self._numbers = np.zeros(slots, np.uint64), np.zeros(slots, np.int32)
        self._insert(keys, numbers)
