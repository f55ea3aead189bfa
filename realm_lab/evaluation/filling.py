"""Filling a blank of several wordpieces: words under every candidate, and the filling of the largest marginal."""

# Shapes: K candidates, M masked positions, V words

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from realm_lab.core.process import autocast
from realm_lab.corpus.store import Passages
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.models.inputs import join
from realm_lab.models.reader import Reader
from realm_lab.params.parameters import Params

BEAM = 8


@torch.no_grad()
def word_log_probs(
    params: Params,
    reader: Reader,
    passages: Passages,
    special: SpecialIds,
    tokens: np.ndarray,
    at: np.ndarray,
    rows: list[int],
) -> Tensor:
    """log p(w|z,x) at each masked position `at` of one sentence, [K, M, V]; a negative row reads no passage."""
    empty = np.empty(0, np.int64)
    bodies = [passages.bodies[row] if row >= 0 else empty for row in rows]
    corpus, device = params.corpus, next(reader.parameters()).device
    batch = join([tokens] * len(rows), bodies, special, corpus.sentence_length + corpus.passage_length).to(device)
    at_KM = torch.from_numpy(at + 1).expand(len(rows), -1).to(device)  # + 1: after [CLS]
    with autocast(device, params.model.precision):
        return reader.word_log_probs(reader.masked_hidden(batch, at_KM))


def best_filling(log_prior_K: Tensor, log_words_KMV: Tensor, beam: int = BEAM) -> tuple[list[int], Tensor]:
    """The words of the largest marginal that a beam finds, and their log p(y|z,x) under each candidate [K].

    p(y|z,x) is a product over positions (section 3.2), so the best filling is searched among combinations of the words
    that are likely under some passage.
    """
    beams: list[tuple[list[int], Tensor]] = [([], torch.zeros(len(log_prior_K), device=log_prior_K.device))]
    for place in range(log_words_KMV.shape[1]):
        grown = []
        for words, log_reader in beams:
            marginal_V = (log_prior_K[:, None] + log_reader[:, None] + log_words_KMV[:, place]).logsumexp(0)
            for word in marginal_V.topk(min(beam, len(marginal_V))).indices.tolist():
                grown.append(([*words, word], log_reader + log_words_KMV[:, place, word]))
        grown.sort(key=lambda grown_beam: -float((log_prior_K + grown_beam[1]).logsumexp(0)))
        beams = grown[:beam]
    return beams[0]
