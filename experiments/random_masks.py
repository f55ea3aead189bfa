"""Masking schemes of random_masks.yaml: only ordinary words, only the subject's name, or a part of an object.

In the toy world salient spans are objects, and a word of several wordpieces outside these spans is the subject's name.
"""

from __future__ import annotations

import numpy as np

from realm_lab.engine.masking import MaskRequest


def ordinary_words(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """Choose a share `rate` of all wordpieces, in ordinary words: none of the subject's name or of a salient span."""
    return _some(request, np.setdiff1d(_outside(request), _subject(request)), generator)


def subject_name(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """Choose at most a share `rate` of all wordpieces, in the subject's name; in ordinary words if no name is found."""
    name = _subject(request)
    return _some(request, name if len(name) else _outside(request), generator)


def part_of_an_object(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """Choose one wordpiece of one salient span."""
    first, end = request.spans[int(generator.integers(len(request.spans)))]
    return generator.integers(first, end, size=1)


def _some(request: MaskRequest, places: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    count = max(1, round(request.rate * request.length))
    return generator.choice(places, size=min(count, len(places)), replace=False)


def _outside(request: MaskRequest) -> np.ndarray:
    """The wordpieces outside the salient spans."""
    return np.setdiff1d(np.arange(request.length), np.concatenate([np.arange(*span) for span in request.spans]))


def _subject(request: MaskRequest) -> np.ndarray:
    """The wordpieces outside the salient spans in words of several wordpieces: the subject's name."""
    names = [np.arange(first, end) for first, end, _ in request.words if end > first + 1]
    return np.intersect1d(_outside(request), np.concatenate([np.empty(0, np.int64), *names]))
