"""How far two taggers agree, and both with gold entities: spans of characters with equal bounds, whatever their labels.

The tokens of a sentence are joined by blanks, and its context is its document, or the whole file where that marks no
documents. Of the rule tagger only names are compared with entities; `spans` compares all that the taggers mark, dates
and the rule tagger's numbers included.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from realm_lab.corpus.conll import TaggedSentence
from realm_lab.corpus.entity_scores import Score, score
from realm_lab.corpus.records import Span
from realm_lab.corpus.salient_spans import RuleTagger, Tagger

LONGEST_CONTEXT = 100_000  # characters; tweets of a file without documents are no context of each other

Bounds = set[tuple[int, int]]


def spans_in_text(sentence: TaggedSentence) -> tuple[str, list[Span]]:
    """The sentence's tokens joined by blanks, and its entities as spans of characters."""
    starts = [0, *itertools.accumulate(len(token) + 1 for token in sentence.tokens)]
    spans = [Span(starts[start], starts[end] - 1, label) for start, end, label in sentence.entities]
    return " ".join(sentence.tokens), spans


def contexts_of(sentences: Sequence[TaggedSentence]) -> list[str]:
    """The text of each sentence's document; none where a "document" is a whole file of LONGEST_CONTEXT or more."""
    contexts: list[str] = []
    for _, group in itertools.groupby(sentences, key=lambda sentence: sentence.document):
        texts = [" ".join(sentence.tokens) for sentence in group]
        context = "\n".join(texts)
        contexts += [context if len(context) < LONGEST_CONTEXT else ""] * len(texts)
    return contexts


def compare_with_rules(tagger: Tagger, sentences: Sequence[TaggedSentence]) -> dict[str, Any]:
    """The tagger and the rule tagger on gold sentences.

    `tagger` and `rules` are scores against gold bounds, `names` is how the rule tagger's names agree with the tagger's
    entities, and `spans` the same of everything that both mark. `shared` is the share in common of all that either
    marks.
    """
    texts, gold = zip(*(spans_in_text(sentence) for sentence in sentences), strict=True)
    contexts = contexts_of(sentences)
    by_model = tagger.tag_batch(texts, contexts)
    by_rule = RuleTagger().tag_batch(texts, contexts)
    wanted = [_bounds(spans) for spans in gold]
    entities = [_bounds(span for span in spans if span.label != "date") for spans in by_model]
    names = [_bounds(span for span in spans if span.label == "name") for spans in by_rule]
    return {
        "tagger": _score(wanted, entities)._asdict(),
        "rules": _score(wanted, names)._asdict(),
        "names": _agreement(entities, names),
        "spans": _agreement([_bounds(spans) for spans in by_model], [_bounds(spans) for spans in by_rule]),
    }


def _agreement(ones: Sequence[Bounds], others: Sequence[Bounds]) -> dict[str, float | int]:
    found = _score(ones, others)
    either = found.gold + found.predicted - found.right
    return {
        "f1": found.f1,
        "shared": found.right / either if either else 1.0,
        "tagger": found.gold,
        "rules": found.predicted,
        "both": found.right,
    }


def _score(gold: Sequence[Bounds], predicted: Sequence[Bounds]) -> Score:
    right = sum(len(one & other) for one, other in zip(gold, predicted, strict=True))
    return score(sum(map(len, gold)), sum(map(len, predicted)), right)


def _bounds(spans: Iterable[Span]) -> Bounds:
    return {(start, end) for start, end, _ in spans}
