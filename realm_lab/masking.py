"""Masking schemes: which wordpieces of a sentence become [MASK] (sections 3.4 and 4.5).

A scheme is a pure function (request, generator) -> positions to mask: at least one, distinct, inside the sentence. It
is registered here under a name, or it is a user's own and `pretrain.masking` says where: `package.module:function`,
    def first_words(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
        share = request.own_options(share=0.5)["share"]  # pretrain.masking_options: {share: 0.3}
        return np.arange(max(1, round(share * request.length)))
A sentence has no [CLS] and no [SEP] yet, so no scheme can mask one. Every chosen wordpiece is replaced by [MASK], one
for one (as in the released code).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from realm_lab.core.extensions import Registry, calling, own_code
from realm_lab.errors import UserError, in_words, suggestion
from realm_lab.params.parameters import Pretrain

SPAN_GEOMETRIC_P = 0.2  # SpanBERT (Joshi et al. 2019), section 3.1
SPAN_MAX_LENGTH = 10


class MaskRequest(NamedTuple):
    """What a scheme may know of a sentence."""

    length: int  # wordpieces of the sentence
    spans: np.ndarray  # its salient spans [first, end), int32 [spans, 2]
    rate: float  # pretrain.mask_rate: the share of wordpieces to mask
    salient_spans: int  # pretrain.salient_spans: how many salient spans to mask
    options: Mapping[str, Any] = MappingProxyType({})  # pretrain.masking_options: the scheme's own
    token_ids: np.ndarray | Sequence[int] = ()  # [length]
    wordpieces: Sequence[str] = ()  # as in the vocabulary, [length]: "zov", "##zen"
    labels: Sequence[str] | None = None  # of each salient span, by the tagger: "date", "name", "PER", ...

    @property
    def word_starts(self) -> np.ndarray:
        """The wordpieces that begin a word (or are punctuation), ascending, int64; the first one is among them."""
        return np.array([at for at, piece in enumerate(self.wordpieces) if not (at and piece.startswith("##"))], int)

    @property
    def words(self) -> list[tuple[int, int, str]]:
        """The words as (first wordpiece, end, text); normalised as the tokenizer does, often in lower case."""
        bounds = [*self.word_starts.tolist(), self.length]
        return [
            (first, end, "".join(piece.removeprefix("##") for piece in self.wordpieces[first:end]))
            for first, end in itertools.pairwise(bounds)
        ]

    def spans_labelled(self, *labels: str) -> np.ndarray:
        """The salient spans of these labels, int32 [spans, 2]. UserError: the corpus was prepared without labels."""
        if self.labels is None:
            raise UserError("this corpus was prepared without labels; delete runs/corpora and prepare again")
        return self.spans[np.array([label in labels for label in self.labels], bool)]

    def own_options(self, **defaults: Any) -> dict[str, Any]:
        """The scheme's options, those that are not given at their default. UserError: an option that is not among the
        defaults, or of another kind than its default."""
        for name, value in self.options.items():
            parameter = "pretrain.masking_options"
            about = f"parameter '{parameter}': '{name}'"
            if name not in defaults:
                remedy = suggestion(name, defaults) if defaults else "it takes none; leave masking_options empty"
                raise UserError(f"{about} is no option of this masking scheme", parameter=parameter, remedy=remedy)
            kind = type(defaults[name])
            if type(value) is not kind and not (kind is float and type(value) is int):
                problem = f"{about} must be {in_words(kind)}, such as {defaults[name]!r}, got {value!r}"
                raise UserError(problem, parameter=parameter)
        return defaults | dict(self.options)


class MaskedSentence(NamedTuple):
    """A query x and its answer y."""

    tokens: np.ndarray  # wordpieces with [MASK] in place, [L]
    positions: np.ndarray  # masked positions, ascending, [M]
    targets: np.ndarray  # the wordpieces that were there, [M]
    text: str = ""  # the sentence as it is written, with its answer; "": not kept


Scheme = Callable[[MaskRequest, np.random.Generator], np.ndarray]
MASKING_SCHEMES: Registry[Scheme] = Registry("scheme", "function")
register_masking = MASKING_SCHEMES.register  # makes a scheme selectable as `pretrain.masking: NAME`


def masking_scheme(name: str) -> Scheme:
    """The scheme that `pretrain.masking` names; what a user's own function returns is checked at every call."""
    if ":" in name:
        return _checked(name, own_code("pretrain.masking", name, "request, generator"))
    return MASKING_SCHEMES.named("pretrain.masking", name)


def check_masking(settings: Pretrain) -> None:
    """Raise a UserError for an unknown scheme, or for options that it refuses: it masks one sentence on trial."""
    request = MaskRequest(
        8,
        np.array([[2, 4]], np.int32),
        settings.mask_rate,
        settings.salient_spans,
        settings.masking_options,
        np.arange(8),
        "a sentence on tri ##al , it ended".split(),
        ["name"],
    )
    masking_scheme(settings.masking)(request, np.random.default_rng(0))


def mask(tokens: np.ndarray, positions: np.ndarray, mask_id: int, text: str = "") -> MaskedSentence:
    """Replace `positions` of `tokens` by [MASK]; `text` is what the tokens were made of."""
    positions = np.sort(positions)
    masked = np.array(tokens, dtype=np.int64)
    targets = masked[positions]
    masked[positions] = mask_id
    return MaskedSentence(masked, positions, targets, text)


@register_masking("salient_span")
def salient_span(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """`salient_spans` distinct salient spans, uniformly, all where there are fewer (section 3.4: one)."""
    request.own_options()
    order = np.arange(len(request.spans))
    count = min(request.salient_spans, len(order))
    for place in range(count):  # the first draws of a Fisher-Yates shuffle
        other = int(generator.integers(place, len(order)))
        order[[place, other]] = order[[other, place]]
    return np.unique(np.concatenate([np.arange(*request.spans[chosen]) for chosen in order[:count]]))


@register_masking("random_token")
def random_token(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """A share `rate` of single wordpieces, uniformly, at least one (BERT; Devlin et al. 2018)."""
    request.own_options()
    return generator.choice(request.length, size=_count(request, generator), replace=False)


@register_masking("random_span")
def random_span(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """Spans of geometric length (p = 0.2, at most 10) until a share `rate` is masked (SpanBERT; Joshi et al. 2019)."""
    request.own_options()
    wanted = _count(request, generator)
    chosen: set[int] = set()
    while len(chosen) < wanted:
        size = int(generator.geometric(SPAN_GEOMETRIC_P))
        if size > SPAN_MAX_LENGTH:
            continue  # drawn again: lengths 1 to 10 renormalised, mean 3.8
        size = min(size, wanted - len(chosen))
        start = int(generator.integers(request.length - size + 1))
        chosen.update(range(start, start + size))
    return np.fromiter(chosen, np.int64, len(chosen))


def _count(request: MaskRequest, generator: np.random.Generator) -> int:
    """`rate * length` rounded up or down at random so that its mean is exact, at least 1."""
    exact = request.rate * request.length
    return min(request.length, max(1, int(exact) + int(generator.random() < exact - int(exact))))


def _checked(name: str, scheme: Scheme) -> Scheme:
    def checked(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
        with calling("pretrain.masking", name):
            returned = scheme(request, generator)
        if not _are_positions(returned, request.length):
            given, last = " ".join(repr(returned).split())[:60], request.length - 1
            raise UserError(
                f"parameter 'pretrain.masking': '{name}' returned {given} for a sentence of {request.length} "
                f"wordpieces; return distinct positions from 0 to {last} as integers, at least one"
            )
        return np.asarray(returned)

    return checked


def _are_positions(returned: object, length: int) -> bool:
    try:
        values = np.asarray(returned)
    except ValueError:  # a ragged list
        return False
    if values.ndim != 1 or values.dtype.kind not in "iu":
        return False
    return 0 < len(np.unique(values)) == len(values) and values.min() >= 0 and values.max() < length
