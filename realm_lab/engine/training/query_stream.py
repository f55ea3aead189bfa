"""The queries of pre-training: the sentences of each step, their masks, and the initial null document."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from realm_lab.engine.core.seeding import EpochOrder, numpy_generator
from realm_lab.engine.corpus.store import Sentences
from realm_lab.engine.masking import MaskedSentence, MaskRequest, asked_form, mask, masking_scheme
from realm_lab.engine.params.parameters import Pretrain
from realm_lab.engine.retrieval.candidates import CandidatePolicy, calibrate_null, initialise_null
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.errors import UserError

CALIBRATION_SENTENCES = 64


class QueryStream:
    """An endless stream of sentences in shuffled epochs, addressed by position; its length is the length of an epoch.

    An epoch has each sentence with a salient span once. The sentence at a position depends only on the seed, whatever
    the masking scheme masks and however many numbers it draws. A mask depends only on its sentence and the generator.
    """

    def __init__(self, settings: Pretrain, sentences: Sentences, mask_id: int, seed: int, vocabulary: Sequence[str]):
        self._settings, self._sentences, self._mask_id, self._vocabulary = settings, sentences, mask_id, vocabulary
        self._seed, self._scheme = seed, masking_scheme(settings.masking)
        self._asked = asked_form(settings, vocabulary)
        self._rows = sentences.rows_with_spans()
        if not len(self._rows):
            remedy = "check corpus.tagger and pretrain.recurring_spans"
            raise UserError("no sentence of the pre-training corpus has a salient span", remedy)
        self._order = EpochOrder(len(self._rows), seed, "pretrain-sentences")

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, start: int, count: int) -> np.ndarray:
        """Return the rows of the sentences at positions `start` to `start + count - 1`, int64 [count]."""
        found: np.ndarray = self._rows[self._order.take(start, count)]
        return found

    def masked(self, row: int, generator: np.random.Generator) -> MaskedSentence:
        """Mask a sentence at the positions that the scheme chooses; add its question if the parameters ask for one."""
        tokens, settings = self._sentences.tokens[row], self._settings
        request = MaskRequest(
            len(tokens),
            self._sentences.salient_spans(row),
            settings.mask_rate,
            tokens,
            [self._vocabulary[token] for token in tokens],
            self._sentences.labels(row),
        )
        sentence = mask(tokens, self._scheme(request, generator), self._mask_id, self._sentences.text(row))
        return self._asked(sentence, self._sentences.kind(row, sentence.positions))

    def sample(self, count: int, purpose: str) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return rows and masked queries of the first `count` sentences, with masks drawn for this `purpose`."""
        rows = self.rows(0, min(count, len(self)))
        return rows, [self.masked(int(row), numpy_generator(self._seed, purpose, int(row))).query for row in rows]

    def origins(self, rows: np.ndarray) -> np.ndarray:
        """Return the passages that sentences were taken from."""
        return np.asarray(self._sentences.origins[rows])


def place_null(settings: Pretrain, retriever: Retriever, stream: QueryStream) -> None:
    """Initialise a new null vector, and calibrate the null document if configured, always with the same queries."""
    null_D, policy = retriever.embedder.null_vector, CandidatePolicy.of(settings)
    is_new = null_D is not None and not null_D.any()
    calibrates = settings.calibrate_null and policy.null
    if is_new or calibrates:
        rows, queries = stream.sample(CALIBRATION_SENTENCES, "calibration")
        exclude = policy.exclusion(retriever, stream.origins(rows))
        if is_new:
            initialise_null(retriever, policy, queries, exclude)
        if calibrates:
            calibrate_null(retriever, policy, queries, exclude)
