"""Parts of names of the toy world: syllables, and a keyed order of all their pairs."""

from __future__ import annotations

import hashlib

from realm_lab.core.seeding import derive_seed, numpy_generator
from realm_lab.worlds.language import template_words

SYLLABLES = 96  # first and second syllables each: names are pairs, so every syllable is frequent


class Permutation:
    """A keyed bijection of 0..size-1 that needs no table (Feistel network with cycle walking)."""

    def __init__(self, size: int, seed: int):
        self.size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half) - 1
        self._keys = [derive_seed(seed, "feistel", number).to_bytes(8, "little") for number in range(4)]

    def __call__(self, index: int) -> int:
        while True:
            left, right = index >> self._half, index & self._mask
            for key in self._keys:
                word = hashlib.blake2b(right.to_bytes(8, "little"), digest_size=8, key=key).digest()
                left, right = right, left ^ (int.from_bytes(word, "little") & self._mask)
            index = (left << self._half) | right
            if index < self.size:
                return index


def syllables() -> list[str]:
    words = template_words()
    consonants, vowels = "bdfgklmnprstvz", "aeiou"
    every = [a + v + b for a in consonants for v in vowels for b in consonants]
    # A syllable that starts a word of the templates would let WordPiece split a name elsewhere.
    free = [text for text in every if not any(word.startswith(text) for word in words)]
    order = numpy_generator(0, "toy-language", "syllables").permutation(len(free))[: 2 * SYLLABLES]
    return [free[index] for index in order]
