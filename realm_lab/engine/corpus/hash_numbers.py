"""A table from 64-bit hashes to numbers in a fraction of a dict's memory: prepare finds copies and numbers articles."""

from __future__ import annotations

from array import array

MOST_USED = 0.7  # share of the slots; if more are used, the number of slots doubles


class HashNumbers:
    """A hash table with linear probing: 17 to 35 bytes per hash, while a dict takes over 100."""

    def __init__(self) -> None:
        self._used = 0
        self._make(1 << 10)

    def _make(self, slots: int) -> None:
        self._hashes, self._numbers = array("Q", bytes(8 * slots)), array("i", bytes(4 * slots))
        self._mask, self._most = slots - 1, int(MOST_USED * slots)

    def setdefault(self, found: int, number: int) -> int:
        """Return the number of a hash; a new hash gets `number` (below 2^31)."""
        found = found or 1  # 0 is an empty slot
        hashes, mask = self._hashes, self._mask
        slot = found & mask
        while there := hashes[slot]:
            if there == found:
                return self._numbers[slot]
            slot = (slot + 1) & mask
        hashes[slot], self._numbers[slot] = found, number
        self._used += 1
        if self._used > self._most:
            old = zip(hashes, self._numbers, strict=True)
            self._used = 0
            self._make(2 * len(hashes))
            for each, its_number in old:
                if each:
                    self.setdefault(each, its_number)
        return number

    def __len__(self) -> int:
        return self._used
