"""The queries of pre-training: which sentence comes when, and what of it is masked (section 3.4).

The two are apart: the order of the sentences is a pure function of the seed and the position in the stream, whatever
the scheme masks and however many numbers it draws, and a mask depends on its sentence and the generator alone.
"""

from __future__ import annotations

import numpy as np

from realm_lab.core.seeding import epoch_order
from realm_lab.corpus.store import Sentences
from realm_lab.errors import UserError
from realm_lab.masking import MaskedSentence, MaskRequest, mask, masking_scheme


class QueryStream:
    """An endless stream of sentences in shuffled epochs, addressed by position; its length is that of an epoch.

    An epoch holds each sentence with a salient span once (`salient`), each salient span once, so that a sentence comes
    as often as it has spans (`by_span`; which of them is masked is up to the scheme), or each sentence once (`any`).
    """

    def __init__(
        self,
        sentences: Sentences,
        *,
        masking: str,
        mask_rate: float,
        salient_spans: int,
        sentence_choice: str,
        mask_id: int,
        seed: int,
    ):
        self._sentences, self._scheme = sentences, masking_scheme(masking)
        self._mask_rate, self._salient_spans, self._mask_id = mask_rate, salient_spans, mask_id
        self._by_span = sentence_choice == "by_span"
        self._rows: np.ndarray | None = None  # None: items are the rows themselves, or spans
        count = sentences.span_count() if self._by_span else len(sentences)
        if sentence_choice == "salient":
            self._rows = sentences.rows_with_spans()
            count = len(self._rows)
        if not count:
            raise UserError(
                f"parameter 'pretrain.sentence_choice' is {sentence_choice}, but no sentence of the pre-training "
                "corpus has a salient span; check corpus.tagger, or choose any with masking: random_token"
            )
        self._count = count
        self._order = epoch_order(count, seed, "pretrain-sentences")

    def __len__(self) -> int:
        return self._count

    def rows(self, start: int, count: int) -> np.ndarray:
        """Sentences at positions `start` to `start + count - 1` of the stream, int64 [count]."""
        items = self._order.take(start, count)
        if self._by_span:
            return self._sentences.rows_of_spans(items)
        return items if self._rows is None else self._rows[items]

    def masked(self, row: int, generator: np.random.Generator) -> MaskedSentence:
        """The sentence with what the scheme chose masked."""
        tokens = self._sentences.tokens[row]
        spans = self._sentences.salient_spans(row)
        request = MaskRequest(len(tokens), spans, self._mask_rate, self._salient_spans)
        return mask(tokens, self._scheme(request, generator), self._mask_id)
