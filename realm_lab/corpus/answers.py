"""Answer strings: the normal form of the released code, and whether a passage holds an answer."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """NFD, lower case, without ASCII punctuation, without a/an/the, single blanks (released code, eval_utils)."""
    text = unicodedata.normalize("NFD", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def holds_answer(normalised_text: str, answers: Sequence[str]) -> bool:
    """Whether a normalised text holds one of the answers as whole words."""
    padded = f" {normalised_text} "
    return any(f" {answer} " in padded for answer in map(normalise_answer, answers) if answer)
