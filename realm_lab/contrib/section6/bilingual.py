"""The toy world in two languages: X, held-out sentences and questions are in the second, Z in either or in both.

In the second language every word is in other letters, and a sentence has its words in reverse order. Names and years
stay the same, or are in those letters too, so that the languages share no wordpiece.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, TypeVar

from realm_lab.contrib.section6.settings import BilingualOptions
from realm_lab.contrib.section6.triples import of_toy
from realm_lab.engine.core.seeding import numpy_generator
from realm_lab.engine.corpus.records import Question, Sentence, Span, Split
from realm_lab.engine.corpus.sources import SourceRequest
from realm_lab.engine.params.corpus import Corpus
from realm_lab.engine.worlds.language import template_words
from realm_lab.engine.worlds.sentences import Article
from realm_lab.engine.worlds.settings import WorldOptions
from realm_lab.engine.worlds.source import ToySource
from realm_lab.engine.worlds.world import ToyWorld
from realm_lab.errors import UserError

LETTERS = str.maketrans("abcdefghijklmnopqrstuvwxyz0123456789.?;|", "абвгдежзиклмнопрстуфхцчшщъ٠١٢٣٤٥٦٧٨٩۔؟؛¦")

Item = TypeVar("Item")
ENDS = (".", "?", ";")
TRANSLATED = "translated"  # form of the passages in the second language


class BilingualWorld(ToyWorld):
    """The world of some options and a seed, in two languages."""

    def __init__(self, options: BilingualOptions, seed: int):
        super().__init__(options, seed)
        self._words, self._language = frozenset(template_words()), options.knowledge_language
        self._shares_names = options.second_language == "names_shared"

    @property
    def vocabulary(self) -> list[str]:
        """The vocabulary of both languages."""
        first = super().vocabulary
        pieces = [piece for piece in first if not self._shares_names or piece in self._words]
        return [*first, *(piece.translate(LETTERS) for piece in pieces)]

    def translated(self, text: str) -> str:
        """Translate a text into the second language."""
        return self._translated(Sentence(text, ())).text

    def _translated(self, sentence: Sentence) -> Sentence:
        """Translate a sentence into the second language; each of its spans is one word."""
        words = sentence.text.split(" ")
        backwards: list[int] = []
        first = 0
        for number, word in enumerate(words):
            if word in ENDS:
                backwards += [*range(number - 1, first - 1, -1), number]
                first = number + 1
        backwards += range(len(words) - 1, first - 1, -1)
        translated = [self._word(words[number]) for number in backwards]
        before = [0, *accumulate(len(word) + 1 for word in words)]
        after = [0, *accumulate(len(word) + 1 for word in translated)]
        positions = {before[number]: position for position, number in enumerate(backwards)}
        spans = ((positions[span.start], span.label) for span in sentence.spans)
        moved = (Span(after[position], after[position] + len(translated[position]), label) for position, label in spans)
        return Sentence(" ".join(translated), tuple(sorted(moved)))

    def _word(self, word: str) -> str:
        return word if self._shares_names and word not in self._words else word.translate(LETTERS)

    def written(self, value: str) -> tuple[str, ...]:
        """Return a value in each language, the language of Z first."""
        both = (value, self._word(value))
        return tuple(dict.fromkeys(both[::-1] if self._language == "second" else both))

    def title(self, entity: int, form: str) -> str:
        name = super().title(entity, form)
        return self._word(name) if form == TRANSLATED else name

    def stated(self, entity: int) -> list[tuple[str, list[int]]]:
        first = super().stated(entity)
        return self._of_knowledge(first, [(TRANSLATED, facts) for _, facts in first])

    def bodies(self, entity: int, version: int = 0) -> tuple[list[list[Sentence]], list[Sentence]]:
        first, restated = super().bodies(entity, version)
        second = [[self._translated(sentence) for sentence in sentences] for sentences in first]
        return self._of_knowledge(first, second), restated

    def _of_knowledge(self, first: list[Item], second: list[Item]) -> list[Item]:
        """Return the passages of an entity that are in Z. `first`, `second`: its passages in each language."""
        return {"first": first, "second": second, "both": first + second}[self._language]

    def sentences(self, split: str) -> Iterator[tuple[Sentence, int]]:
        return ((self._translated(sentence), gold) for sentence, gold in super().sentences(split))

    def questions(self, split: str) -> Iterator[tuple[Question, str, list[int]]]:
        for question, new, gold in super().questions(split):
            yield question._replace(question=self.translated(question.question)), new, gold

    def articles(self, count: int) -> Iterator[Article]:
        """Return filler articles, each in one language, so that none has a sentence next to its translation."""
        rng = numpy_generator(self.seed, "article-languages")
        for sentence, restated, other in super().articles(count):
            if rng.random() < 0.5:
                yield Article(sentence, restated, other)
            else:
                yield Article(self._translated(sentence), self.translated(restated), self.translated(other))


class BilingualSource(ToySource):
    """The world of a seed in two languages, with a share of the training sentences."""

    def __init__(self, request: SourceRequest, options: BilingualOptions):
        super().__init__(request, options, BilingualWorld(options, request.seed))
        self._share = options.sentence_fraction

    @classmethod
    def identity(cls, corpus: Corpus, options: WorldOptions, seed: int) -> dict[str, Any]:
        """Return the inputs of the toy world. UserError: X is Z, and so cannot be in another language."""
        refuse_same(corpus)
        return of_toy(super().identity(corpus, options, seed))

    def sentences(self, split: Split) -> Iterator[tuple[Sentence, int]]:
        rng, sentences = numpy_generator(self.world.seed, "sentence-fraction"), super().sentences(split)
        return (
            sentences
            if split != "train" or self._share == 1.0
            else (one for one in sentences if rng.random() < self._share)
        )


def refuse_same(corpus: Corpus) -> None:
    """Raise a UserError if X is Z."""
    if corpus.pretrain_corpus == "same":
        remedy = "set corpus.pretrain_corpus to separate"
        problem = f"corpus.source: {corpus.source.name} has an X that differs from Z"
        raise UserError(problem, parameter="corpus.pretrain_corpus", remedy=remedy)
