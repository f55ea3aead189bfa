"""Find words in a sequence of wordpieces, in BERT's notation: ## continues a word, punctuation is a separate word."""

# Shapes: L wordpieces of a sequence, V wordpieces of the vocabulary

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np


def is_punctuation(piece: str) -> bool:
    """True if a wordpiece has only characters at which BERT's tokenizer cuts words."""
    return piece != "" and all(
        unicodedata.category(character)[0] == "P"
        or (character.isascii() and character.isprintable() and not character.isalnum() and character != " ")
        for character in piece
    )


class WordStarts:
    """Finds the wordpieces that start a word. After punctuation every wordpiece does, since tokenizers other than
    BERT's do not mark this start."""

    def __init__(self, wordpieces: Sequence[str]):
        self._continues_V = np.array([piece.startswith("##") for piece in wordpieces], bool)
        self._ends_V = np.array([is_punctuation(piece) for piece in wordpieces], bool)

    def __len__(self) -> int:
        return len(self._continues_V)

    def __call__(self, tokens_L: np.ndarray) -> np.ndarray:
        """True for ids that start a word, bool [L]; the first id of a text always does."""
        starts_L: np.ndarray = ~self._continues_V[tokens_L]
        starts_L[1:] |= self._ends_V[tokens_L[:-1]]
        starts_L[:1] = True
        return starts_L
