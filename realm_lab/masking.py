"""Masking schemes: which wordpieces of a sentence become [MASK] (sections 3.4 and 4.5).

A scheme is a pure function (sentence length, salient spans, rate, generator) -> positions to mask, registered under
a name. Every chosen wordpiece is replaced by [MASK], one for one (as in the released code).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from realm_lab.errors import UserError

Scheme = Callable[[int, np.ndarray, float, np.random.Generator], np.ndarray]
MASKING_SCHEMES: dict[str, Scheme] = {}

SPAN_GEOMETRIC_P = 0.2  # SpanBERT (Joshi et al. 2019), section 3.1
SPAN_MAX_LENGTH = 10


class MaskedSentence(NamedTuple):
    """A query x and its answer y."""

    tokens: np.ndarray  # wordpieces with [MASK] in place, [L]
    positions: np.ndarray  # masked positions, ascending, [M]
    targets: np.ndarray  # the wordpieces that were there, [M]


def register_masking(name: str) -> Callable[[Scheme], Scheme]:
    """Make a scheme selectable as `pretrain.masking: NAME`."""

    def add(scheme: Scheme) -> Scheme:
        if name in MASKING_SCHEMES:
            raise UserError(f"masking scheme '{name}' is registered twice")
        MASKING_SCHEMES[name] = scheme
        return scheme

    return add


def masking_scheme(name: str) -> Scheme:
    """The scheme with this name."""
    if name not in MASKING_SCHEMES:
        known = ", ".join(sorted(MASKING_SCHEMES))
        raise UserError(f"parameter 'pretrain.masking': no scheme '{name}'; choose {known}")
    return MASKING_SCHEMES[name]


def mask(tokens: np.ndarray, positions: np.ndarray, mask_id: int) -> MaskedSentence:
    """Replace `positions` of `tokens` by [MASK]."""
    positions = np.sort(positions)
    masked = np.array(tokens, dtype=np.int64)
    targets = masked[positions]
    masked[positions] = mask_id
    return MaskedSentence(masked, positions, targets)


@register_masking("salient_span")
def salient_span(length: int, spans: np.ndarray, rate: float, generator: np.random.Generator) -> np.ndarray:
    """One salient span of the sentence, chosen uniformly (section 3.4)."""
    del length, rate
    first, end = spans[generator.integers(len(spans))]
    return np.arange(first, end)


@register_masking("random_token")
def random_token(length: int, spans: np.ndarray, rate: float, generator: np.random.Generator) -> np.ndarray:
    """A share `rate` of single wordpieces, uniformly, at least one (BERT; Devlin et al. 2018)."""
    del spans
    return generator.choice(length, size=_count(length, rate, generator), replace=False)


@register_masking("random_span")
def random_span(length: int, spans: np.ndarray, rate: float, generator: np.random.Generator) -> np.ndarray:
    """Spans of geometric length (p = 0.2, at most 10) until a share `rate` is masked (SpanBERT; Joshi et al. 2019)."""
    del spans
    wanted = _count(length, rate, generator)
    chosen: set[int] = set()
    while len(chosen) < wanted:
        size = int(generator.geometric(SPAN_GEOMETRIC_P))
        if size > SPAN_MAX_LENGTH:
            continue  # drawn again: lengths 1 to 10 renormalised, mean 3.8
        size = min(size, wanted - len(chosen))
        start = int(generator.integers(length - size + 1))
        chosen.update(range(start, start + size))
    return np.fromiter(chosen, np.int64, len(chosen))


def _count(length: int, rate: float, generator: np.random.Generator) -> int:
    """`rate * length` rounded up or down at random so that its mean is exact, at least 1."""
    exact = rate * length
    return min(length, max(1, int(exact) + int(generator.random() < exact - int(exact))))
