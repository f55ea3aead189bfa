"""Seeds and generators for every random choice, made from the run's seed, names and a position.

A generator is a pure function of (seed, names, position), so a resumed run needs no saved generator state: step 170
draws the same numbers whether or not steps 0 to 169 ran in this process.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed, a pure function of `seed` and `names`."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def stream_seed(seed: int, stream: str, number: int) -> int:
    """Return the seed of a noise stream (parameters `streams`): `seed` for number 0, another for each other number."""
    return derive_seed(seed, "stream", stream, number) if number else seed


def numpy_generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return a NumPy generator for one purpose at one position, e.g. `(seed, "masking", step)`."""
    return np.random.default_rng(derive_seed(seed, *names))


class EpochOrder:
    """An endless sequence of item numbers in shuffled epochs, addressed by position."""

    def __init__(self, count: int, seed: int, *names: str | int):
        self._count, self._seed, self._names = count, seed, names
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)

    def take(self, start: int, count: int) -> np.ndarray:
        """Return items `start` to `start + count - 1` of the sequence, int64 [count]."""
        return np.array([self._item(position) for position in range(start, start + count)], dtype=np.int64)

    def _item(self, position: int) -> int:
        epoch, offset = divmod(position, self._count)
        if epoch != self._epoch:
            self._order = numpy_generator(self._seed, *self._names, "epoch", epoch).permutation(self._count)
            self._epoch = epoch
        return int(self._order[offset])
