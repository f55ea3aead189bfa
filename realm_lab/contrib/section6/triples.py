"""The toy world with triples (section 6, structured knowledge): facts of Z as a knowledge base has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from realm_lab.contrib.section6.settings import TripleOptions
from realm_lab.engine.core.seeding import numpy_generator
from realm_lab.engine.corpus.records import Sentence
from realm_lab.engine.corpus.sources import SourceRequest
from realm_lab.engine.params.corpus import Corpus
from realm_lab.engine.worlds.language import FACTS, RELATIONS, Relation, template_words
from realm_lab.engine.worlds.sentences import Article, Structured, fill, year
from realm_lab.engine.worlds.settings import WorldOptions
from realm_lab.engine.worlds.source import ToySource
from realm_lab.engine.worlds.world import ToyWorld

# Share of filler articles whose passages are triples, in news wordings and others alike. With a larger share, the
# reader sees too little text to learn to copy. A reader that copied whatever the relation would do worse with a wrong
# triple or picture than without a passage.
TRIPLE_SHARE = 0.4


def wording(relation: Relation) -> str:
    """Return the wording of a relation in a triple."""
    return f"{{s}} | {relation.name} | {{o}} ."


class TripleWorld(ToyWorld):
    """The world of some options and a seed, with facts as triples."""

    def __init__(self, options: WorldOptions, seed: int, triples: str, triple_cards: bool = False):
        super().__init__(options, seed)
        self._triples, self._has_cards = triples, triple_cards

    @property
    def vocabulary(self) -> list[str]:
        """The vocabulary of the toy world, and further words of triples."""
        names = {";", "|", *(one.name for found in RELATIONS.values() for one in found)} - {*template_words()}
        return [*super().vocabulary, *(sorted(names) if self._triples != "none" else ())]

    def _half(self, entity: int) -> list[int]:
        drawn: list[int] = numpy_generator(self.seed, "triples", entity).permutation(FACTS).tolist()
        return drawn

    def in_sentences(self, entity: int) -> list[int]:
        if self._triples == "half":
            return sorted(self._half(entity)[FACTS // 2 :])
        return [] if self._triples == "all" else super().in_sentences(entity)

    def in_triples(self, entity: int) -> list[int]:
        """The facts of an entity that Z states as triples."""
        if self._triples == "half":
            return sorted(self._half(entity)[: FACTS // 2])
        return [] if self._triples == "none" else [*range(FACTS)]

    def stated(self, entity: int) -> list[tuple[str, list[int]]]:
        triples = self.in_triples(entity)
        cards = [("card", triples)] if self._has_cards else [("triple", [fact]) for fact in triples]
        return super().stated(entity) + (cards if triples else [])

    def bodies(self, entity: int, version: int = 0) -> tuple[list[list[Sentence]], list[Sentence]]:
        bodies, restated = super().bodies(entity, version)
        numbers, subject, known = self.in_triples(entity), self.subject(entity), self.facts(entity)
        values = [(wording(relation), (old, new)[version]) for relation, old, new in known]
        if self._has_cards:
            card = [fill_card([values[number] for number in numbers], self.salient, subject)] if numbers else []
            return bodies + card, restated
        pairs, _ = self.pairs(entity, version, numpy_generator(self.seed, "passages", entity))
        for number in numbers:  # the passage of the fact, as a triple
            template, value = values[number]
            triple = fill(template, self.salient, s=subject, o=value)
            bodies.append([triple if sentence.spans else sentence for sentence in pairs[number]])
        return bodies, restated

    def articles(self, count: int) -> Iterator[Article]:
        self._articles_rng = numpy_generator(self.seed, "triple-articles")
        return super().articles(count)

    def structured(
        self, kind: str, subject: str, value: str, relation: Relation, another: Relation
    ) -> Structured | None:
        """Return triples of this fact and of another, or cards with and without this fact; None for all except
        TRIPLE_SHARE of the articles."""
        rng = self._articles_rng
        if self._triples == "none" or rng.random() >= TRIPLE_SHARE:
            return None
        if not self._has_cards:
            return Structured(wording(relation), wording(another), False)
        cards = [self._throw_away_card(subject, kind, {relation.name: fact}, rng) for fact in (value, "")]
        return Structured(cards[0], cards[1], True)

    def _throw_away_card(self, subject: str, kind: str, known: dict[str, str], rng: np.random.Generator) -> str:
        """Return a card with drawn values, except for relations in `known`; a relation known as "" is left out."""
        names = map(self.name, self.throw_away(rng, FACTS))
        drawn = {r: year(rng) if r.value == "year" else name for r, name in zip(RELATIONS[kind], names, strict=True)}
        worded = [(wording(relation), known.get(relation.name, value)) for relation, value in drawn.items()]
        return " ".join(sentence.text for sentence in fill_card([fact for fact in worded if fact[1]], {}, subject))


def fill_card(triples: Sequence[tuple[str, str]], salient: Mapping[str, str], subject: str) -> list[Sentence]:
    """Return a sentence for each triple (wording, value) of one subject; only the first sentence names the subject."""
    sentences = []
    for number, (wording, value) in enumerate(triples, 1):
        wording = wording if number == 1 else wording.removeprefix("{s} | ")
        wording = wording if number == len(triples) else wording.removesuffix(".") + ";"
        sentences.append(fill(wording, salient, s=subject, o=value))
    return sentences


class TripleSource(ToySource):
    """The world of a seed, with facts as triples."""

    def __init__(self, request: SourceRequest, options: TripleOptions):
        super().__init__(request, options, TripleWorld(options, request.seed, options.triples, options.triple_cards))

    @classmethod
    def identity(cls, corpus: Corpus, options: WorldOptions, seed: int) -> dict[str, Any]:
        return of_toy(super().identity(corpus, options, seed))


def of_toy(identity: dict[str, Any]) -> dict[str, Any]:
    """Return the identity as it was when this world was an option of source toy, so that keys of runs stay the same."""
    return identity | {"corpus": {"source": "toy"} | identity["corpus"]}
