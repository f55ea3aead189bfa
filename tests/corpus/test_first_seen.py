"""Numbers of first occurrence, against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest

from realm_lab.corpus.first_seen import FirstSeen, text_hash


@pytest.mark.parametrize("seed", range(30))
def test_keys_are_numbered_in_the_order_in_which_they_first_come(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table, known = FirstSeen(slots=4), dict[int, int]()
    for size in rng.integers(0, 30, 8):
        batch = [(1 + number) * (1 << 58) + number % 3 for number in rng.integers(0, 40, size).tolist()]  # slots 0 to 2
        is_new = [key not in known and key not in batch[:place] for place, key in enumerate(batch)]
        numbers = [known.setdefault(key, len(known)) for key in batch]
        found = table.add(np.array(batch, np.uint64))
        assert found.number_N.tolist() == numbers
        assert found.is_new_N.tolist() == is_new
        assert len(table) == len(known)


def test_a_table_grows_far_beyond_its_first_size() -> None:
    table = FirstSeen(slots=2)
    keys = np.random.default_rng(0).integers(1, 1 << 63, 50_000).astype(np.uint64)
    first = table.add(keys).number_N
    assert table.add(keys[::-1]).number_N.tolist() == first[::-1].tolist()
    assert table._keys.nbytes + table._numbers.nbytes <= 12 * 2 * 50_000 / 0.7


def test_hashes_tell_parts_apart_and_are_never_zero() -> None:
    assert len({text_hash("a", "b"), text_hash("ab"), text_hash("b", "a"), text_hash("a"), text_hash("")}) == 5
    assert 0 < text_hash("a") < 1 << 64
