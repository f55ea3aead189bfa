"""A masking scheme with a list as an option, and a refresh policy with an option."""

from typing import Any

import numpy as np

from harbour.lengths import longest_first
from realm_lab import Section, register_masking, register_refresh


class Endings(Section):
    share: float = 0.2
    """Share of the wordpieces at the end of the sentence."""
    also: list[str] = []
    """Words that are masked wherever they are."""


@register_masking("endings")
def endings(request: Any, generator: np.random.Generator, options: Endings) -> np.ndarray:
    """Mask the end of a sentence, and some words."""
    count = max(1, round(options.share * request.length))
    masked = set(range(request.length - count, request.length))
    for first, end, text in request.words:
        masked |= set(range(first, end)) if text in options.also else set()
    return np.array(longest_first(list(masked)))


class First(Section):
    first: int = 1
    """Step of the first refresh."""


@register_refresh("doubling")
class Doubling:
    """Refreshes at steps 1, 2, 4, 8, ..., from `first` on."""

    def __init__(self, settings: Any, options: First):
        self.first = options.first

    def wants_refresh(self, now: Any) -> bool:
        return now.step >= self.first and now.step.bit_count() == 1
