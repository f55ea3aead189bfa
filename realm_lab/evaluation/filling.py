"""Filling a blank of several wordpieces: the words of the largest marginal over all candidates."""

# Shapes: K candidates, M masked positions, V words

from __future__ import annotations

import torch
from torch import Tensor

BEAM = 8


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


def filling_log_probs(log_words_KMV: Tensor, words: Tensor) -> Tensor:
    """log p(y|z,x) of given words under each candidate, [K]."""
    words_KM1 = words.to(log_words_KMV.device).expand(len(log_words_KMV), -1)[:, :, None]
    return log_words_KMV.gather(-1, words_KM1)[:, :, 0].sum(1)
