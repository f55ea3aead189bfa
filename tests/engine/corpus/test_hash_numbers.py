"""Numbers of hashes, against a dictionary."""

import random

from realm_lab.engine.corpus.hash_numbers import HashNumbers


def test_it_is_a_dictionary_that_grows() -> None:
    draw = random.Random(0)
    hashes = [draw.getrandbits(64) for _ in range(5000)]
    hashes += [(number << 40) | 7 for number in range(500)]  # the same position in every table
    hashes += [2**64 - 1, 1 << 63]
    found, expected = HashNumbers(), dict[int, int]()
    for value in [*hashes, *draw.sample(hashes, 3000), 0, 0]:
        assert found.setdefault(value, len(found)) == expected.setdefault(value, len(expected))
    assert len(found) == len(expected) == len(set(hashes)) + 1
