"""Masked pairs of segments for the reader's warm start, and pairs for the Inverse Cloze Task (section 3.4)."""

# Shapes: B pairs, L positions, M masked positions

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from realm_lab.engine.core.seeding import EpochOrder
from realm_lab.engine.corpus.records import PICTURE
from realm_lab.engine.corpus.store import NO_ROW, Articles, Passages, Sentences
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.corpus.words import WordStarts
from realm_lab.engine.models.inputs import Batch, join, pad_positions

MASK_RATE = 0.15  # share of words masked in pairs without a masked salient span (BERT)
REMOVAL_RATE = 0.9  # share of queries that are removed from their passage (Lee et al. 2019)
CUT = 0.3, 0.7  # shares of a passage's length; it is cut into halves between them
READ_FRACTION = 0.5  # share of pairs with a picture that have all salient spans masked; the rest have one masked
SALIENT_FRACTION = 0.5  # share of pairs without a picture in which one salient span is masked instead of words


class Pair(NamedTuple):
    """A sentence with its salient spans, and a second segment that may or may not help."""

    first: np.ndarray
    spans: np.ndarray  # [spans, 2]
    second: np.ndarray


class ArticlePairs:
    """Pairs from the filler articles of the toy world: a sentence, and its restatement (related), or another fact of
    its subject or a statement of another article (unrelated)."""

    def __init__(self, articles: Articles):
        self._articles = articles

    def __len__(self) -> int:
        return len(self._articles)

    def pair(self, item: int, related: bool, generator: np.random.Generator) -> Pair:
        """Return the pair `item`, with a second segment that is related to the first or not."""
        second = self._articles.restated[item]
        if not related and generator.random() < 0.5:
            second = self._articles.other[item]
        elif not related:
            second = self._articles.restated[int(generator.integers(len(self)))]
        return Pair(self._articles.sentences[item], np.asarray(self._articles.spans[item]).reshape(-1, 2), second)


class InverseCloze:
    """Queries of the Inverse Cloze Task, cut from passages (Lee et al. 2019): sentences, or halves."""

    def __init__(self, passages: Passages, cut: str, word_starts: WordStarts, *, has_pictures: bool = False):
        self._passages, self._halves, self._word_starts = passages, cut == "halves", word_starts
        parts = passages.bodies if self._halves else passages.sentence_starts
        self.total = len(passages)
        self.rows = np.flatnonzero(parts.lengths > 1)  # passages that can be cut
        if has_pictures:
            forms, form_N = passages.forms
            self.rows = self.rows[np.array(forms)[form_N[self.rows]] != PICTURE]

    def pair(self, row: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return a query from a passage, the passage's title, and its body, often (REMOVAL_RATE) without the query."""
        body = np.asarray(self._passages.bodies[row])
        cuts = [0, self._middle(body, generator)] if self._halves else [*self._passages.sentence_starts[row]]
        chosen = int(generator.integers(len(cuts)))
        first, end = [*cuts, len(body)][chosen : chosen + 2]
        query = body[first:end]
        if generator.random() < REMOVAL_RATE:
            body = np.concatenate([body[:first], body[end:]])
        return query, self._passages.titles[row], body

    def _middle(self, body: np.ndarray, generator: np.random.Generator) -> int:
        """Draw the start of a word between the shares CUT of a passage; the passage's middle if none is there."""
        starts = np.flatnonzero(self._word_starts(body))
        inside = starts[(starts >= CUT[0] * len(body)) & (starts <= CUT[1] * len(body))]
        return int(generator.choice(inside)) if len(inside) else len(body) // 2


class Captions:
    """Filler statements, and pictures of their subject. The Inverse Cloze Task removes a sentence from its passage,
    which is impossible in a picture. So the picture shows another fact, or, as often as that task leaves a
    sentence in its passage, the same fact."""

    def __init__(self, articles: Articles, vocabulary_size: int):
        self._articles = articles
        first = articles.other.offsets[:-1]
        self._items = np.flatnonzero(articles.other.values[first] >= vocabulary_size)

    def pair(self, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return a statement and a picture."""
        item = self._items[generator.integers(len(self._items))]
        shown = self._articles.other if generator.random() < REMOVAL_RATE else self._articles.restated
        return np.asarray(self._articles.sentences[item]), np.asarray(shown[item])


class PassagePairs:
    """Pairs of a sentence with a salient span, and a passage. Related: the passage before or after the sentence's
    origin in its article, or the origin if there is neither. (The origin contains the sentence itself.) Unrelated, or
    without an origin: any passage."""

    def __init__(self, sentences: Sentences, passages: Passages):
        self._sentences, self._passages = sentences, passages
        self._rows = sentences.rows_with_spans()

    def __len__(self) -> int:
        return len(self._rows)

    def pair(self, item: int, related: bool, generator: np.random.Generator) -> Pair:
        """Return the pair `item`, with a second segment that is related to the first or not."""
        sentence = int(self._rows[item])
        origin = int(self._sentences.origins[sentence])
        row = int(generator.integers(len(self._passages)))
        if related and origin != NO_ROW:
            articles = self._passages.articles
            beside = [row for row in (origin - 1, origin + 1) if 0 <= row < len(self._passages)]
            near = [row for row in beside if articles[row] == articles[origin]] or [origin]
            row = near[int(generator.integers(len(near)))]
        spans = self._sentences.salient_spans(sentence)
        return Pair(self._sentences.tokens[sentence], spans, self._passages.bodies[row])


class MaskedPairs(NamedTuple):
    """Pairs of a batch, joined, with their masked positions."""

    batch: Batch
    at_BM: Tensor  # int64
    targets_BM: Tensor  # int64
    is_masked_BM: Tensor  # bool: false in padding of the positions
    masked_count: int  # in the whole batch, also if these pairs are a share of it


class PairSampler:
    """Draws masked batches of pairs; a batch depends only on its step and the generator."""

    def __init__(
        self,
        source: ArticlePairs | PassagePairs,
        special: SpecialIds,
        word_starts: WordStarts,
        *,
        seed: int,
        max_length: int,
    ):
        self._source, self._special, self._word_starts, self._max_length = source, special, word_starts, max_length
        self.total = len(source)
        self._order = EpochOrder(self.total, seed, "warm-start-pairs")

    def batch(
        self, step: int, size: int, related_fraction: float, generator: np.random.Generator, part: slice = slice(None)
    ) -> MaskedPairs:
        """Draw batch `step`: each pair has salient spans of its first segment masked, or whole words of both segments.

        The random numbers of the whole batch are drawn, but only its `part` is joined and returned.
        """
        firsts, seconds, positions, targets = [], [], [], []
        for item in self._order.take(step * size, size):
            pair = self._source.pair(int(item), generator.random() < related_fraction, generator)
            first, second = np.array(pair.first, np.int64), np.array(pair.second, np.int64)
            second = second[: self._max_length - 3 - len(first)]
            in_second = np.empty(0, np.int64)
            is_salient, is_picture = generator.random() < SALIENT_FRACTION, self._is_picture(second)
            if is_picture and len(pair.spans) and generator.random() < READ_FRACTION:
                in_first = np.concatenate([np.arange(start, end) for start, end in pair.spans])
            elif (is_salient or is_picture) and len(pair.spans):
                start, end = pair.spans[generator.integers(len(pair.spans))]
                in_first = np.arange(start, end)
            else:
                in_first = self._whole_words(first, generator)
                in_second = self._whole_words(second, generator)
            targets.append(np.concatenate([first[in_first], second[in_second]]))
            positions.append(np.concatenate([in_first + 1, in_second + len(first) + 2]))
            first[in_first] = self._special.mask
            second[in_second] = self._special.mask
            firsts.append(first)
            seconds.append(second)
        at_BM, is_masked_BM = pad_positions(positions[part])
        targets_BM, _ = pad_positions(targets[part])
        batch = join(firsts[part], seconds[part], self._special, self._max_length)
        return MaskedPairs(batch, at_BM, targets_BM, is_masked_BM, sum(map(len, positions)))

    def _is_picture(self, tokens: np.ndarray) -> bool:
        """True if a segment is a picture, whose patches are not words and never masked."""
        return len(tokens) > 0 and int(tokens[0]) >= len(self._word_starts)

    def _whole_words(self, tokens: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return positions of all wordpieces of a share MASK_RATE of the words, at least one; none for a picture."""
        if not len(tokens) or self._is_picture(tokens):
            return np.empty(0, np.int64)
        starts = np.flatnonzero(self._word_starts(tokens))
        words = np.split(np.arange(len(tokens)), starts[starts > 0])
        count = max(1, round(MASK_RATE * len(words)))
        chosen = generator.choice(len(words), size=count, replace=False)
        return np.concatenate([words[number] for number in chosen])
