"""Recurring spans: salient spans that other passages have as well (Ram et al. 2022, Learning to Retrieve Passages
without Supervision). If X is Z, only they can be predicted from a passage other than the query's origin."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from realm_lab.engine.corpus.store import LABEL_SEPARATOR, Ragged, Sentences

Span = bytes | tuple[int, int]


def only_recurring(sentences: Sentences, corpus: Iterable[Sentences], least: int, most: int, unknown: int) -> Sentences:
    """Return a view of `sentences` with only the salient spans that are salient in `least` to `most` other passages.

    `corpus` has the sentences of all passages. Two spans are the same if they have the same wordpieces, none of them
    `unknown`. Sentences may keep no span.
    """
    passages: dict[Span, set[int]] = {}
    for part in corpus:
        for row, span in _spans(part, unknown):
            passages.setdefault(span, set()).add(int(part.origins[row]))
    kept = np.array(
        [
            least <= len(passages.get(span, set()) - {int(sentences.origins[row])}) <= most
            for row, span in _spans(sentences, unknown)
        ],
        bool,
    )
    return _with_spans(sentences, kept)


def _spans(sentences: Sentences, unknown: int) -> Iterable[tuple[int, Span]]:
    """Return (row, wordpieces) of each salient span, in order; a span with an unknown word has its position instead."""
    for row in range(len(sentences)):
        for first, end in sentences.salient_spans(row):
            pieces = np.asarray(sentences.tokens[row][first:end])
            yield row, (int(sentences.origins[row]), int(first)) if unknown in pieces else pieces.tobytes()


def _with_spans(sentences: Sentences, kept: np.ndarray) -> Sentences:
    """Return a view with some of the salient spans. `kept`: for each span in order, true to keep it."""
    bounds = np.asarray(sentences.spans.offsets) // 2  # first span and end of each sentence
    before = np.concatenate([[0], kept.cumsum()])  # spans kept before each span
    pairs = np.asarray(sentences.spans.values).reshape(-1, 2)[kept]
    labels: Sequence[str] = [
        LABEL_SEPARATOR.join(itertools.compress(sentences.labels(row), kept[first:end]))
        for row, (first, end) in enumerate(itertools.pairwise(bounds))
    ]
    view = copy.copy(sentences)
    view.spans = Ragged.of(2 * before[bounds], pairs.ravel())
    view.set_labels(labels)
    return view
