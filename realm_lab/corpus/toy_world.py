"""The toy world: an embedded corpus, deterministic in its seed, in which REALM really learns.

Entities of four types have six facts each. The knowledge corpus Z holds one titled passage per fact (two where facts
are restated, and a few passages without one); the pre-training corpus X words the facts of the training entities
differently; questions ask about facts of training, development and test entities, the latter two stated in Z alone.
A corpus update changes the value of some facts (the paper's Table 4). Throw-away articles about entities outside
the world teach a reader to use a passage without teaching it any fact.

Everything about an entity is a pure function of (seed, entity number), so a world of a million entities streams
in bounded memory.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from realm_lab.core.seeding import derive_seed, numpy_generator
from realm_lab.corpus.records import Passage, Question, Sentence, Span
from realm_lab.corpus.toy_language import (
    FILLERS,
    POOL_SIZE,
    POOLS,
    RELATIONS,
    TAILS,
    TYPES,
    Relation,
    template_words,
)

SYLLABLES = 96  # first and second syllables each: names are pairs, so every syllable is frequent
FIRST_YEAR, LAST_YEAR = 1700, 1999
NAMES_KEPT = 1 << 16  # names remembered, so that a large world stays in bounded memory
HELD_OUT_FRACTION = 0.2  # of the subjects, for each of dev and test

Item = TypeVar("Item")


class Article(NamedTuple):
    """A throw-away article: a sentence, a passage restating it, and a passage with another fact of its subject."""

    sentence: Sentence
    restated: str
    other: str


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


def _syllables() -> list[str]:
    words = template_words()
    consonants, vowels = "bdfgklmnprstvz", "aeiou"
    every = [a + v + b for a in consonants for v in vowels for b in consonants]
    # A syllable that begins a word of the templates would let WordPiece split a name elsewhere.
    free = [text for text in every if not any(word.startswith(text) for word in words)]
    order = numpy_generator(0, "toy-language", "syllables").permutation(len(free))[: 2 * SYLLABLES]
    return [free[index] for index in order]


class ToyWorld:
    """One world. `entities` scales it; `fillers_per_entity` adds fact-free passages under each title.

    With `restate_facts` a second passage of the article states each fact in its other wording.
    """

    def __init__(
        self, entities: int, fillers_per_entity: int, changed_fraction: float, seed: int, restate_facts: bool = False
    ):
        self.entities, self.fillers_per_entity = entities, fillers_per_entity
        self.changed_fraction, self.seed, self.restate_facts = changed_fraction, seed, restate_facts
        syllables = _syllables()
        self._first, self._second = syllables[:SYLLABLES], syllables[SYLLABLES:]
        reserved = entities + POOL_SIZE * len(POOLS)
        self.pieces_per_name = 2
        while SYLLABLES**self.pieces_per_name < 8 * reserved:  # leave most names to throw-away entities
            self.pieces_per_name += 1
        self.name = lru_cache(NAMES_KEPT)(self._name)
        self._names = Permutation(SYLLABLES**self.pieces_per_name, derive_seed(seed, "names"))
        self._order = Permutation(entities, derive_seed(seed, "split"))

    @cached_property
    def vocabulary(self) -> list[str]:
        """WordPiece vocabulary under which every name is `pieces_per_name` pieces and every year two."""
        years = ["17", "18", "19", *(f"##{number:02d}" for number in range(100))]
        return [*template_words(), *self._first, *(f"##{text}" for text in self._second), *years]

    def type_of(self, entity: int) -> str:
        """The entity's type; types take turns."""
        return TYPES[entity % len(TYPES)]

    def split_of(self, entity: int) -> str:
        """train (60 %), dev or test (20 % each), by subject."""
        place = self._order(entity) / self.entities
        if place < HELD_OUT_FRACTION:
            return "test"
        return "dev" if place < 2 * HELD_OUT_FRACTION else "train"

    def _name(self, number: int) -> str:
        """The name with this number: first the entities, then the pools, then throw-away names."""
        code = self._names(number)
        parts = []
        for place in range(self.pieces_per_name - 1):
            code, rest = divmod(code, SYLLABLES)
            parts.append(self._second[(rest + place) % SYLLABLES])
        return self._first[code] + "".join(parts)

    def facts(self, entity: int) -> list[tuple[Relation, str, str]]:
        """(relation, value, value after the corpus update) of an entity; equal where nothing changed."""
        rng = numpy_generator(self.seed, "facts", entity)
        known = []
        for relation in RELATIONS[self.type_of(entity)]:
            value = self._draw(relation, entity, rng)
            other = value
            while other == value:
                other = self._draw(relation, entity, rng)
            known.append((relation, value, other if rng.random() < self.changed_fraction else value))
        return known

    def _draw(self, relation: Relation, entity: int, rng: np.random.Generator) -> str:
        kind, _, pool = relation.value.partition(":")
        if kind == "year":
            return _year(rng)
        if kind == "pool":
            return self.name(self.entities + POOLS.index(pool) * POOL_SIZE + int(rng.integers(POOL_SIZE)))
        return self.name(self._another(TYPES.index(kind), entity, rng))

    def _another(self, kind: int, entity: int, rng: np.random.Generator) -> int:
        """A random entity of a type other than `entity` itself."""
        while True:
            other = int(rng.integers(self.entities // len(TYPES))) * len(TYPES) + kind
            if other != entity:
                return other

    @property
    def passages_per_entity(self) -> int:
        """Passages under one title; those of entity e are rows e * passages_per_entity and on."""
        return len(RELATIONS[TYPES[0]]) * (2 if self.restate_facts else 1) + self.fillers_per_entity

    def gold_rows(self, entity: int, fact: int) -> list[int]:
        """Rows of the passages that state a fact of an entity; the first is the one that always exists."""
        first = entity * self.passages_per_entity
        again = len(RELATIONS[TYPES[0]]) + self.fillers_per_entity + fact
        return [first + fact, first + again] if self.restate_facts else [first + fact]

    def passages(self, version: int = 0) -> Iterator[tuple[Passage, list[Sentence]]]:
        """The knowledge corpus Z in row order; version 1 states the changed values in the same words."""
        for entity in range(self.entities):
            subject, kind = self.name(entity), self.type_of(entity)
            rng = numpy_generator(self.seed, "passages", entity)
            bodies: list[list[Sentence]] = []
            restated: list[Sentence] = []
            for relation, old, new in self.facts(entity):
                value, chosen = (old, new)[version], int(rng.integers(2))
                fact = _fill(relation.encyclopedia[chosen], s=subject, o=value)
                restated.append(_fill(relation.encyclopedia[1 - chosen], s=subject, o=value))
                pair = [fact, self._filler(kind, entity, subject, rng)]
                bodies.append(pair if rng.random() < 0.5 else pair[::-1])
            for _ in range(self.fillers_per_entity):
                bodies.append([self._filler(kind, entity, subject, rng) for _ in range(2)])
            for again in restated if self.restate_facts else []:
                pair = [again, self._filler(kind, entity, subject, rng)]
                bodies.append(pair if rng.random() < 0.5 else pair[::-1])
            for number, sentences in enumerate(bodies):
                identifier = f"{subject}/{number}"
                body = " ".join(sentence.text for sentence in sentences)
                yield Passage(identifier, subject, body, identifier, subject), sentences

    def _filler(self, kind: str, entity: int, subject: str, rng: np.random.Generator) -> Sentence:
        wording = _one_of(FILLERS[kind], rng)
        return _fill(wording, s=subject, f=self.name(self._another(TYPES.index(kind), entity, rng)))

    def sentences(self, split: str) -> Iterator[tuple[Sentence, int]]:
        """News sentences (X) about the facts of one split, with the row of the passage that states the same fact."""
        for entity in range(self.entities):
            if self.split_of(entity) != split:
                continue
            subject = self.name(entity)
            rng = numpy_generator(self.seed, "news", entity)
            for number, (relation, value, _) in enumerate(self.facts(entity)):
                for wording in relation.news:
                    sentence = _fill(_with_tail(wording, True, rng), s=subject, o=value)
                    yield sentence, self.gold_rows(entity, number)[0]

    def questions(self, split: str) -> Iterator[tuple[Question, str, list[int]]]:
        """(question, answer after the corpus update, rows of the gold passages), two wordings a fact."""
        for entity in range(self.entities):
            if self.split_of(entity) != split:
                continue
            subject = self.name(entity)
            for number, (relation, old, new) in enumerate(self.facts(entity)):
                for style, wording in enumerate((relation.question_encyclopedia, relation.question_news)):
                    text = wording.format(s=subject)
                    gold = f"{subject}/{number}"
                    yield Question(f"{gold}?{style}", text, (old,), gold), new, self.gold_rows(entity, number)

    def articles(self, count: int) -> Iterator[Article]:
        """Throw-away articles for BERT training: endless other entities, the same language, no fact of the world."""
        first, last = self.entities + POOL_SIZE * len(POOLS), SYLLABLES**self.pieces_per_name
        rng = numpy_generator(self.seed, "articles")
        for _ in range(count):
            kind = TYPES[int(rng.integers(len(TYPES)))]
            subject, value, other, third, fourth = map(self.name, rng.integers(first, last, size=5).tolist())
            relation, another = _two_of(RELATIONS[kind], rng)
            news = rng.random() < 0.5
            one, two = _two_of(relation.news if news else relation.encyclopedia, rng)
            value = _year(rng) if relation.value == "year" else value
            sentence = _fill(_with_tail(one, news, rng), s=subject, o=value)
            restated = _with_tail(two, news, rng).format(s=subject, o=value)
            other = _year(rng) if another.value == "year" else other
            choices = another.news if news else another.encyclopedia
            different = _with_tail(_one_of(choices, rng), news, rng).format(s=subject, o=other)
            yield Article(
                sentence,
                self._beside_filler(restated, kind, subject, third, rng),
                self._beside_filler(different, kind, subject, fourth, rng),
            )

    def _beside_filler(self, text: str, kind: str, subject: str, named: str, rng: np.random.Generator) -> str:
        filler = _one_of(FILLERS[kind], rng).format(s=subject, f=named)
        return f"{text} {filler}" if rng.random() < 0.5 else f"{filler} {text}"


def _one_of(items: Sequence[Item], rng: np.random.Generator) -> Item:
    return items[int(rng.integers(len(items)))]


def _two_of(items: Sequence[Item], rng: np.random.Generator) -> Sequence[Item]:
    """Two different ones, in random order."""
    shuffled = list(items)
    rng.shuffle(shuffled)  # of a list: draws what `permutation` does, in half of the time
    return shuffled[:2]


def _year(rng: np.random.Generator) -> str:
    return str(rng.integers(FIRST_YEAR, LAST_YEAR + 1))


def _with_tail(wording: str, news: bool, rng: np.random.Generator) -> str:
    return f"{wording} {_one_of(TAILS, rng)}" if news else wording


def _fill(wording: str, **names: str) -> Sentence:
    """Put names into a wording; subject and object (not a filler's name) are its salient spans."""
    spans = []
    longer = 0  # characters by which the names so far are longer than their places
    for place, role in _roles(wording):
        if role in _SALIENT:
            spans.append(Span(place + longer, place + longer + len(names[role]), _SALIENT[role]))
        longer += len(names[role]) - len("{s}")
    return Sentence(wording.format(**names), tuple(spans))


_SALIENT = {"s": "subject", "o": "object"}


@lru_cache(8192)
def _roles(wording: str) -> list[tuple[int, str]]:
    """(place, role) of each "{role}" in a wording."""
    return [(match.start(), match[1]) for match in re.finditer(r"\{(\w)\}", wording)]
