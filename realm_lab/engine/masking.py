"""Masking schemes choose the wordpieces of a sentence that become [MASK] (sections 3.4 and 4.5).

A scheme is a pure function (request, generator) -> positions to mask: at least one, distinct, inside the sentence. It
is registered here under a name, or `pretrain.masking` names custom code, `package.module:function`. A scheme with
options takes them as the argument `options`,
    class Share(Section):
        share: float = 0.5
    def first_words(request: MaskRequest, generator: np.random.Generator, options: Share) -> np.ndarray:
        return np.arange(max(1, round(options.share * request.length)))
and `pretrain.masking: {name: "my_masks:first_words", share: 0.3}` sets an option (records/plugins.py).
A sentence has no [CLS] and no [SEP] yet, so no scheme can mask one. Every chosen wordpiece is replaced by [MASK], one
for one (as in the released code).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from realm_lab.engine.corpus.words import WordStarts
from realm_lab.engine.params.parameters import Pretrain
from realm_lab.errors import UserError
from realm_lab.records.plugins import Choice, Kind, Plugin

SPAN_GEOMETRIC_P = 0.2  # SpanBERT (Joshi et al. 2019), section 3.1
SPAN_MAX_LENGTH = 10
# The first words of a question by the label of its answer (Lewis et al. 2019). They are "what" for other labels, and if
# the vocabulary lacks one of the words.
ASKED_FOR = {"name": "who", "PER": "who", "ORG": "who", "LOC": "where", "date": "when", "number": "how many"}


class MaskRequest(NamedTuple):
    """Information about a sentence that a scheme may use."""

    length: int  # wordpieces of the sentence
    spans: np.ndarray  # its salient spans [first, end), int32 [spans, 2]
    rate: float  # pretrain.mask_rate: the share of wordpieces to mask
    token_ids: np.ndarray | Sequence[int] = ()  # [length]
    wordpieces: Sequence[str] = ()  # [length], in BERT's notation for every tokenizer: "zov", "##zen"
    labels: Sequence[str] = ()  # of each salient span, by the tagger: "date", "name", "PER", ...

    @property
    def word_starts(self) -> np.ndarray:
        """Positions of wordpieces that start a word (or are punctuation), ascending, int64. The first position is
        always included."""
        return np.flatnonzero(WordStarts(self.wordpieces)(np.arange(len(self.wordpieces))))

    @property
    def words(self) -> list[tuple[int, int, str]]:
        """The words as (first wordpiece, end, text); normalised as the tokenizer does, often in lower case."""
        bounds = [*self.word_starts.tolist(), self.length]
        return [
            (first, end, "".join(piece.removeprefix("##") for piece in self.wordpieces[first:end]))
            for first, end in itertools.pairwise(bounds)
        ]

    def spans_labelled(self, *labels: str) -> np.ndarray:
        """The salient spans of these labels, int32 [spans, 2]."""
        chosen: np.ndarray = self.spans[np.array([label in labels for label in self.labels], bool)]
        return chosen


class MaskedSentence(NamedTuple):
    """A query x and its answer y."""

    tokens: np.ndarray  # wordpieces with [MASK] in place, [L]
    positions: np.ndarray  # masked positions, ascending, [M]
    targets: np.ndarray  # the wordpieces that were there, [M]
    text: str = ""  # the sentence as it is written, with its answer; "": not kept
    question: np.ndarray | None = None  # wordpieces of the question form; None: the query is `tokens`

    @property
    def query(self) -> np.ndarray:
        """The wordpieces that the query tower reads; the reader always reads `tokens`."""
        return self.tokens if self.question is None else self.question


Scheme = Callable[[MaskRequest, np.random.Generator], np.ndarray]
MASKING_SCHEMES: Kind[Callable[..., np.ndarray]] = Kind("masking scheme", "function", "request, generator")
register_masking = MASKING_SCHEMES.register  # makes a scheme selectable as `pretrain.masking: NAME`


def masking_scheme(choice: Choice) -> Scheme:
    """Return the scheme that `pretrain.masking` names, with its options. The positions that custom code returns are
    checked at every call. UserError: no such scheme, or a wrong option."""
    chosen = MASKING_SCHEMES.choose("pretrain.masking", choice)
    return _checked(chosen) if chosen.is_own else chosen


def check_masking(settings: Pretrain) -> None:
    """Raise a UserError for an unknown scheme, or for a custom scheme that fails on a test sentence."""
    if not MASKING_SCHEMES.choose("pretrain.masking", settings.masking).is_own:
        return
    request = MaskRequest(
        8,
        np.array([[2, 4]], np.int32),
        settings.mask_rate,
        np.arange(8),
        "a sentence on tri ##al , it ended".split(),
        ["name"],
    )
    masking_scheme(settings.masking)(request, np.random.default_rng(0))


def mask(tokens: np.ndarray, positions: np.ndarray, mask_id: int, text: str = "") -> MaskedSentence:
    """Replace `positions` of `tokens` by [MASK]; `text` is the text before it was split into tokens."""
    positions = np.sort(positions)
    masked = np.array(tokens, dtype=np.int64)
    targets = masked[positions]
    masked[positions] = mask_id
    return MaskedSentence(masked, positions, targets, text)


AskedForm = Callable[[MaskedSentence, str], MaskedSentence]  # takes the label of the masked span


def asked_form(settings: Pretrain, vocabulary: Sequence[str]) -> AskedForm:
    """Return the query form that the parameters choose. UserError: the vocabulary lacks a word of the questions."""
    return QuestionForm(vocabulary) if settings.query_form == "question" else lambda sentence, label: sentence


class QuestionForm:
    """Makes a question of a masked sentence: a question word, the sentence without its answer, a question mark.

    This is the noisy cloze of Lewis et al. 2019 (Unsupervised Question Answering by Cloze Translation), without noise.
    """

    def __init__(self, vocabulary: Sequence[str]):
        ids = {piece: number for number, piece in enumerate(vocabulary)}
        if missing := {"what", "?"} - ids.keys():
            raise UserError(
                f"parameter 'pretrain.query_form': the vocabulary lacks {' and '.join(sorted(missing))}; choose "
                "masked, or an encoder of English"
            )
        asked = {label: words.split() for label, words in ASKED_FOR.items()}
        self._asked = {
            label: [ids[word] for word in words] for label, words in asked.items() if ids.keys() >= set(words)
        }
        self._what, self._mark, self._full_stop = [ids["what"]], [ids["?"]], ids.get(".")

    def __call__(self, sentence: MaskedSentence, label: str) -> MaskedSentence:
        """Add the question; the sentence itself stays as it is."""
        rest = np.delete(sentence.tokens, sentence.positions).tolist()
        rest = rest[:-1] if rest and rest[-1] == self._full_stop else rest
        question = [*self._asked.get(label, self._what), *rest, *self._mark]
        return sentence._replace(question=np.array(question, np.int64))


@register_masking("salient_span")
def salient_span(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """Mask a salient span, drawn uniformly (section 3.4)."""
    return np.arange(*request.spans[generator.integers(len(request.spans))])


@register_masking("random_token")
def random_token(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """Mask a share `rate` of single wordpieces, drawn uniformly, at least one (BERT; Devlin et al. 2018)."""
    return generator.choice(request.length, size=_count(request, generator), replace=False)


@register_masking("random_span")
def random_span(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
    """Mask spans of geometric length (p = 0.2, at most 10) up to a share `rate` (SpanBERT; Joshi et al. 2019)."""
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


def _checked(chosen: Plugin[Any]) -> Scheme:
    def checked(request: MaskRequest, generator: np.random.Generator) -> np.ndarray:
        returned = chosen(request, generator)
        if not _are_positions(returned, request.length):
            given, last = " ".join(repr(returned).split())[:60], request.length - 1
            raise UserError(
                f"parameter 'pretrain.masking': '{chosen.name}' returned {given} for a sentence of {request.length} "
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
