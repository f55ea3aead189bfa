"""Sentences of the toy world: names put into wordings, with the spans that may be masked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from realm_lab.engine.corpus.records import Sentence, Span
from realm_lab.engine.worlds.language import TAILS

FIRST_YEAR, LAST_YEAR = 1700, 1999
SALIENT = {"s": "subject", "o": "object"}  # role -> label

Item = TypeVar("Item")


class Article(NamedTuple):
    """A filler article: a sentence, a passage restating it, and a passage with another fact of its subject."""

    sentence: Sentence
    restated: str
    other: str


class Structured(NamedTuple):
    """The two passages of a filler article in another form: wordings with {s} and {o}, or whole texts."""

    restated: str
    other: str
    is_whole: bool


def one_of(items: Sequence[Item], rng: np.random.Generator) -> Item:
    return items[int(rng.integers(len(items)))]


def two_of(items: Sequence[Item], rng: np.random.Generator) -> Sequence[Item]:
    """Return two different items in random order."""
    shuffled = list(items)
    rng.shuffle(shuffled)  # shuffling a list draws as `permutation` does, in half of the time
    return shuffled[:2]


def year(rng: np.random.Generator) -> str:
    return str(rng.integers(FIRST_YEAR, LAST_YEAR + 1))


def with_tail(wording: str, news: bool, rng: np.random.Generator) -> str:
    return f"{wording} {one_of(TAILS, rng)}" if news else wording


def fill(wording: str, salient: Mapping[str, str], **names: str) -> Sentence:
    """Put names into a wording; `salient` has the label of each role that is a salient span."""
    spans = []
    longer = 0  # length of the names so far minus the length of their slots
    for offset, role in _roles(wording):
        if role in salient:
            spans.append(Span(offset + longer, offset + longer + len(names[role]), salient[role]))
        longer += len(names[role]) - len("{s}")
    return Sentence(wording.format(**names), tuple(spans))


def with_word(text: str, wording: str, rng: np.random.Generator, **names: str) -> Sentence:
    """Fill `text`, a wording with its tail; the salient span is one of the wording's ordinary words."""
    words = [match.span() for match in re.finditer(r"(?<![{\w])\w+(?![}\w])", wording)]
    start, end = one_of(words, rng)
    marked = text[:start] + "{w}" + text[end:]
    return fill(marked, {"w": "word"}, w=text[start:end], **names)


@lru_cache(8192)
def _roles(wording: str) -> list[tuple[int, str]]:
    """Return (position, role) of each "{role}" in a wording."""
    return [(match.start(), match[1]) for match in re.finditer(r"\{(\w)\}", wording)]
