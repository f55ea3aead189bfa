"""Two halves of random masks, for random_masks.yaml: only words that are no name, or only a part of a name."""

from __future__ import annotations

import numpy as np

from realm_lab.masking import MaskRequest


def ordinary_words(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """A share `rate` of the sentence's wordpieces, at least one, all outside its salient spans."""
    request.own_options()
    salient = np.concatenate([np.arange(*span) for span in request.spans])
    others = np.setdiff1d(np.arange(request.length), salient)
    count = max(1, round(request.rate * request.length))
    return generator.choice(others, size=min(count, len(others)), replace=False)


def part_of_a_name(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """One wordpiece of one salient span."""
    request.own_options()
    first, end = request.spans[int(generator.integers(len(request.spans)))]
    return generator.integers(first, end, size=1)
