"""The toy world: an embedded corpus, deterministic in its seed, in which REALM really learns.

Entities of four types have six facts each. The knowledge corpus Z holds one titled passage per fact (two if facts are
restated), and a few passages without a fact. The pre-training corpus X words the facts of the training entities
differently. Questions ask about facts of training, development and test entities; only Z states the facts
of development and test entities. A corpus update changes the value of some facts (the paper's Table 4). Filler articles
about entities outside the world teach a reader to use a passage without teaching it any fact.

In the sharp world several entities share one name, so that a name finds more passages than are read. X has masks that
no passage answers and masks that need no passage. Training questions ask for half of the relations.

Everything about an entity is a pure function of (seed, entity number), so a world of a million entities streams
in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from realm_lab.engine.core.seeding import derive_seed, numpy_generator
from realm_lab.engine.corpus.records import Passage, Question, Sentence
from realm_lab.engine.corpus.store import NO_ROW
from realm_lab.engine.worlds.language import (
    BYSTANDERS,
    FACTS,
    FILLERS,
    POOL_SIZE,
    POOLS,
    RELATIONS,
    SYLLABLES,
    TYPES,
    UNNAMED,
    Permutation,
    Relation,
    syllables,
    template_words,
)
from realm_lab.engine.worlds.sentences import (
    SALIENT,
    Article,
    Structured,
    fill,
    one_of,
    two_of,
    with_tail,
    with_word,
    year,
)
from realm_lab.engine.worlds.settings import WorldOptions

NAMES_KEPT = 1 << 16  # names remembered, so that a large world stays in bounded memory
HELD_OUT_FRACTION = 0.2  # of the names of entities, for each of dev and test
CHAINS = 2  # facts of each value that is an entity, which questions of two hops ask for


class Value(NamedTuple):
    """The value of a fact: its text, and the entity that it names."""

    text: str
    entity: int | None  # its number; None: the value is no entity


class Chain(NamedTuple):
    """A fact to ask for, with the facts that lead to it."""

    identity: str
    texts: list[str]  # the question in the words of Z and in those of the news
    gold: tuple[int, int]  # the entity that the fact is about, and the fact's number among this entity's
    old: str
    new: str  # after the corpus update
    path: tuple[int, ...] = ()  # a row for each fact on the way and for this fact, in order; empty with one hop


class ToyWorld:
    """The world of some settings and a seed."""

    def __init__(self, settings: WorldOptions, seed: int):
        self.settings, self.seed, self.entities = settings, seed, settings.entities
        drawn = syllables()
        self._first, self._second = drawn[:SYLLABLES], drawn[SYLLABLES:]
        reserved = self.entities + POOL_SIZE * len(POOLS)
        self.pieces_per_name = 2
        while SYLLABLES**self.pieces_per_name < 8 * reserved:  # leave most names to filler entities
            self.pieces_per_name += 1
        self.name = lru_cache(NAMES_KEPT)(self._name)
        self._names = Permutation(SYLLABLES**self.pieces_per_name, derive_seed(seed, "names"))
        self._shared_names = -(-self.entities // settings.entities_per_name)
        self._order = Permutation(self._shared_names, derive_seed(seed, "split"))

    @property
    def vocabulary(self) -> list[str]:
        """WordPiece vocabulary that splits every name into `pieces_per_name` pieces and every year into two."""
        return [*template_words(), *self.name_pieces]

    @property
    def name_pieces(self) -> list[str]:
        """Wordpieces of names and years."""
        years = ["17", "18", "19", *(f"##{number:02d}" for number in range(100))]
        return [*self._first, *(f"##{text}" for text in self._second), *years]

    def type_of(self, entity: int) -> str:
        """The entity's type; types take turns."""
        return TYPES[entity % len(TYPES)]

    def subject(self, entity: int) -> str:
        """Return the name of an entity, which entities of other types may share."""
        return self.name(entity // self.settings.entities_per_name)

    def split_of(self, entity: int) -> str:
        """train (60 %), dev or test (20 % each), by name."""
        share = self._order(entity // self.settings.entities_per_name) / self._shared_names
        if share < HELD_OUT_FRACTION:
            return "test"
        return "dev" if share < 2 * HELD_OUT_FRACTION else "train"

    def _name(self, number: int) -> str:
        """Return name `number`: names of entities come first, then names in pools, then names of filler entities."""
        code = self._names(number)
        parts = []
        for number in range(self.pieces_per_name - 1):
            code, rest = divmod(code, SYLLABLES)
            parts.append(self._second[(rest + number) % SYLLABLES])
        return self._first[code] + "".join(parts)

    def facts(self, entity: int) -> list[tuple[Relation, str, str]]:
        """Return (relation, value, value after the corpus update) of each fact of an entity; without a change the
        values are equal."""
        return [(relation, old.text, new.text) for relation, old, new in self._facts(entity)]

    def _facts(self, entity: int) -> list[tuple[Relation, Value, Value]]:
        rng = numpy_generator(self.seed, "facts", entity)
        known = []
        for relation in RELATIONS[self.type_of(entity)]:
            value = self.draw(relation, entity, rng)
            other = value
            while other == value:
                other = self.draw(relation, entity, rng)
            known.append((relation, value, other if rng.random() < self.settings.changed_fraction else value))
        return known

    def draw(self, relation: Relation, entity: int, rng: np.random.Generator) -> Value:
        kind, _, pool = relation.value.partition(":")
        if kind == "year":
            return Value(year(rng), None)
        if kind == "pool":
            return Value(self.name(self.entities + POOLS.index(pool) * POOL_SIZE + int(rng.integers(POOL_SIZE))), None)
        other = self._another(kind, entity, rng)
        return Value(self.subject(other), other)

    def _another(self, kind: str, entity: int, rng: np.random.Generator) -> int:
        """Draw an entity of type `kind`, with another name than `entity` has."""
        while True:
            other = int(rng.integers(self.entities // len(TYPES))) * len(TYPES) + TYPES.index(kind)
            if self.subject(other) != self.subject(entity):
                return other

    @property
    def passages_per_entity(self) -> int:
        """Passages per entity; the first passage of entity e is row e * passages_per_entity."""
        return len(self.stated(0))

    def in_sentences(self, entity: int) -> list[int]:
        """The numbers of the facts of an entity that Z states as sentences."""
        return [*range(FACTS)]

    def stated(self, entity: int) -> list[tuple[str, list[int]]]:
        """Return the form of each passage of an entity, and the facts that it states: first the passages of one fact
        each, then fillers, then passages that restate a fact."""
        text = [[fact] for fact in self.in_sentences(entity)] + [[]] * self.settings.fillers_per_entity
        text += [[fact] for fact in range(FACTS)] if self.settings.restate_facts else []
        return [("text", facts) for facts in text]

    def gold_rows(self, entity: int, fact: int) -> list[int]:
        """Rows of the passages that state a fact of an entity."""
        stated = self.stated(entity)
        return [entity * len(stated) + position for position, (_, facts) in enumerate(stated) if fact in facts]

    def other_statement(self, entity: int, position: int) -> int:
        """Return another row that states the fact of passage `position` of an entity; NO_ROW if there is none, or if
        that passage does not state exactly one fact."""
        facts = self.stated(entity)[position][1]
        own = entity * self.passages_per_entity + position
        others = [row for row in self.gold_rows(entity, facts[0]) if row != own] if len(facts) == 1 else []
        return others[0] if others else NO_ROW

    def passages(self, version: int = 0) -> Iterator[tuple[Passage, list[Sentence]]]:
        """The knowledge corpus Z in row order; version 1 states the changed values in the same words."""
        for entity in range(self.entities):
            article, bodies = self._article(entity), self.bodies(entity, version)[0]
            for number, (sentences, (form, _)) in enumerate(zip(bodies, self.stated(entity), strict=True)):
                identifier, body = f"{article}/{number}", " ".join(sentence.text for sentence in sentences)
                yield Passage(identifier, self.title(entity, form), body, identifier, article, form), sentences

    def title(self, entity: int, form: str) -> str:
        """The title of an entity's passages of a form."""
        return self.subject(entity)

    def written(self, value: str) -> tuple[str, ...]:
        """The ways in which an answer may be written."""
        return (value,)

    def bodies(self, entity: int, version: int = 0) -> tuple[list[list[Sentence]], list[Sentence]]:
        """Return the sentences of each passage of an entity, and each of its facts in the fact's other wording of Z."""
        subject, kind = self.subject(entity), self.type_of(entity)
        rng = numpy_generator(self.seed, "passages", entity)
        pairs, restated = self.pairs(entity, version, rng)
        bodies = [pairs[number] for number in self.in_sentences(entity)]
        for _ in range(self.settings.fillers_per_entity):
            bodies.append([self._filler(kind, entity, subject, rng) for _ in range(2)])
        if self.settings.restate_facts:
            bodies += [self._beside(again, kind, entity, rng) for again in restated]
        return bodies, restated

    def pairs(self, entity: int, version: int, rng: np.random.Generator) -> tuple[list[list[Sentence]], list[Sentence]]:
        """Return for each fact two sentences in either order, the fact and a filler; and each fact in its other wording
        of Z."""
        subject, kind = self.subject(entity), self.type_of(entity)
        pairs, restated = [], []
        for relation, old, new in self.facts(entity):
            value, chosen = (old, new)[version], int(rng.integers(2))
            fact = fill(relation.encyclopedia[chosen], self.salient, s=subject, o=value)
            restated.append(fill(relation.encyclopedia[1 - chosen], self.salient, s=subject, o=value))
            pairs.append(self._beside(fact, kind, entity, rng))
        return pairs, restated

    def _beside(self, fact: Sentence, kind: str, entity: int, rng: np.random.Generator) -> list[Sentence]:
        """A fact and a filler, in either order."""
        pair = [fact, self._filler(kind, entity, self.subject(entity), rng)]
        return pair if rng.random() < 0.5 else pair[::-1]

    def _article(self, entity: int) -> str:
        """Return the name of an entity's article; with the type if several entities share a name."""
        subject = self.subject(entity)
        return subject if self.settings.entities_per_name == 1 else f"{subject} ({self.type_of(entity)})"

    def _filler(self, kind: str, entity: int, subject: str, rng: np.random.Generator) -> Sentence:
        """Return a sentence without a fact that is asked for; it has no salient span, since no passage restates it."""
        return fill(one_of(FILLERS[kind], rng), {}, s=subject, f=self.subject(self._another(kind, entity, rng)))

    @property
    def salient(self) -> dict[str, str]:
        """Role -> label of the names of a fact that are salient spans."""
        return {"o": "object"} if self.settings.salient == "object" else {"s": "subject", "o": "object"}

    def sentences(self, split: str) -> Iterator[tuple[Sentence, int]]:
        """Yield news sentences (X) about the facts of one split, each with the row of the passage that states the same
        fact.

        The label of a span is the kind of mask: "object" and "subject" of a fact, "asked" for the object after its
        question, and "word" for a word predictable without retrieval. In sentences with NO_ROW it is "unknown" or
        "unnamed", for a value of an unknown name or of an unnamed subject.
        """
        for entity in range(self.entities):
            if self.split_of(entity) != split:
                continue
            subject, kind = self.subject(entity), self.type_of(entity)
            rng = numpy_generator(self.seed, "news", entity)
            others = numpy_generator(self.seed, "other-news", entity)
            bystanders = numpy_generator(self.seed, "bystanders", entity)
            unanswerable = self.settings.unanswerable_fraction
            for number, (relation, value, _) in enumerate(self.facts(entity)):
                gold = self.gold_rows(entity, number)[0]
                for wording in relation.news:
                    text = with_tail(wording, True, rng)
                    asks = self.settings.question_sentences
                    if asks and others.random() < asks:
                        asked = one_of((relation.question_encyclopedia, relation.question_news), others)
                        yield fill(asked + " {o} .", {"o": "asked"}, s=subject, o=value), gold
                    elif others.random() < self.settings.syntax_fraction:
                        yield with_word(text, wording, others, s=subject, o=value), gold
                    else:
                        named = {}
                        if self.settings.bystanders and bystanders.random() < self.settings.bystanders:
                            text = one_of(BYSTANDERS, bystanders).replace("{news}", wording)
                            named = {"f": self.subject(self._another(kind, entity, bystanders))}
                        yield fill(text, self.salient, s=subject, o=value, **named), gold
                    while others.random() < unanswerable:
                        yield self._unanswerable(kind, entity, others), NO_ROW

    def _unanswerable(self, kind: str, entity: int, rng: np.random.Generator) -> Sentence:
        """Return news about a name that Z lacks, or about an unnamed entity, with a value like any fact."""
        relation = one_of(RELATIONS[kind], rng)
        text = with_tail(one_of(relation.news, rng), True, rng)
        subject, label = UNNAMED[kind], "unnamed"
        if rng.random() < 0.5:
            subject, label = self.name(self.throw_away(rng, 1)[0]), "unknown"
        return fill(text, {"o": label}, s=subject, o=self.draw(relation, entity, rng).text)

    def throw_away(self, rng: np.random.Generator, count: int) -> list[int]:
        """Numbers of names that nothing in the world bears."""
        first, last = self.entities + POOL_SIZE * len(POOLS), SYLLABLES**self.pieces_per_name
        numbers: list[int] = rng.integers(first, last, size=count).tolist()
        return numbers

    def encyclopedia_clozes(self, split: str) -> Iterator[tuple[Sentence, int, int]]:
        """Yield each fact of a split in its other wording of Z, with two rows: of the passage that restates the fact in
        this wording (NO_ROW if facts are not restated), and of the passage that states the fact first. The label of
        the span is "encyclopedia"."""
        for entity in range(self.entities):
            if self.split_of(entity) != split:
                continue
            for number, fact in enumerate(self.bodies(entity)[1]):
                first, *again = self.gold_rows(entity, number)
                span = next(span for span in fact.spans if span.label == "object")
                sentence = Sentence(fact.text, (span._replace(label="encyclopedia"),))
                yield sentence, again[0] if again else NO_ROW, first

    def questions(self, split: str) -> Iterator[tuple[Question, str, list[int]]]:
        """Yield (question, answer after the corpus update, rows of the gold passages), two wordings per fact. With two
        hops the gold passages state the second fact, and the question's `path` has a row of a passage for each fact."""
        half = self.settings.asked_relations == "half"
        for entity in range(self.entities):
            if self.split_of(entity) != split:
                continue
            chains = self._chains(entity) if self.settings.hops == 2 else self._single(entity)
            for identity, wordings, (owner, number), old, new, path in chains:
                held_out = half and number % 2 == 1
                if split == "train" and held_out:
                    continue
                for style, (name, text) in enumerate(zip(("encyclopedia", "news"), wordings, strict=True)):
                    groups = [f"wording_{name}"]
                    if half:
                        groups.append("relation_held_out" if held_out else "relation_asked")
                    gold = f"{self._article(owner)}/{number}"
                    found = Question(
                        f"{identity}?{style}", text, self.written(old), gold, groups=tuple(groups), path=path
                    )
                    yield found, new, self.gold_rows(owner, number)

    def _single(self, entity: int) -> Iterator[Chain]:
        """Yield the facts of an entity, for questions of one hop."""
        for number, (relation, old, new) in enumerate(self.facts(entity)):
            asked = relation.question_encyclopedia, relation.question_news
            texts = [wording.format(s=self.subject(entity)) for wording in asked]
            yield Chain(f"{self._article(entity)}/{number}", texts, (entity, number), old, new)

    def _chains(self, entity: int) -> Iterator[Chain]:
        """For each fact of an entity that has another entity as its value, yield CHAINS facts of that other entity. The
        answer after the corpus update follows the new values of both facts."""
        rng = numpy_generator(self.seed, "chains", entity)
        for first, (relation, old, new) in enumerate(self._facts(entity)):
            if old.entity is None or new.entity is None:
                continue
            then, later = self.facts(old.entity), self.facts(new.entity)
            for second in sorted(rng.choice(len(then), CHAINS, replace=False).tolist()):
                asked = then[second][0].question_encyclopedia, then[second][0].question_news
                described = [wording.format(s=self.subject(entity)) for wording in relation.described]
                texts = [wording.format(s=own) for wording, own in zip(asked, described, strict=True)]
                path = self.gold_rows(entity, first)[0], self.gold_rows(old.entity, second)[0]
                end = (old.entity, second), then[second][1], later[second][2], path
                yield Chain(f"{self._article(entity)}/{first}/{second}", texts, *end)

    def articles(self, count: int) -> Iterator[Article]:
        """Yield filler articles for the reader's BERT training: the same language, about entities outside the world."""
        rng = numpy_generator(self.seed, "articles")
        for _ in range(count):
            kind = TYPES[int(rng.integers(len(TYPES)))]
            subject, value, other, third, fourth = map(self.name, self.throw_away(rng, 5))
            relation, another = two_of(RELATIONS[kind], rng)
            news = rng.random() < 0.5
            one, two = two_of(relation.news if news else relation.encyclopedia, rng)
            value = year(rng) if relation.value == "year" else value
            sentence = fill(with_tail(one, news, rng), SALIENT, s=subject, o=value)
            form = self.structured(kind, subject, value, relation, another)
            if form and form.is_whole:
                yield Article(sentence, form.restated, form.other)
                continue
            restated = (form.restated if form else with_tail(two, news, rng)).format(s=subject, o=value)
            other = year(rng) if another.value == "year" else other
            choices = another.news if news else another.encyclopedia
            different = with_tail(one_of(choices, rng), news, rng)
            different = (form.other if form else different).format(s=subject, o=other)
            yield Article(
                sentence,
                self.beside_filler(restated, relation, kind, subject, third, rng),
                self.beside_filler(different, another, kind, subject, fourth, rng),
            )

    def structured(
        self, kind: str, subject: str, value: str, relation: Relation, another: Relation
    ) -> Structured | None:
        """Return the passages of the next filler article as triples or cards; None: write them as sentences."""
        return None

    def beside_filler(
        self, text: str, relation: Relation, kind: str, subject: str, named: str, rng: np.random.Generator
    ) -> str:
        """Return a statement with a filler, or, in a share `question_articles`, after the question that it answers."""
        asks = self.settings.question_articles
        if asks and rng.random() < asks:
            wording = (relation.question_encyclopedia, relation.question_news)[int(rng.integers(2))]
            return f"{wording.format(s=subject)} {text}"
        filler = one_of(FILLERS[kind], rng).format(s=subject, f=named)
        return f"{text} {filler}" if rng.random() < 0.5 else f"{filler} {text}"
