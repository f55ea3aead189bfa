"""The gate: measure before any training whether pre-training can learn on a corpus.

REALM rewards the retriever with the gain in log p(y|x) from a passage. The retriever learns nothing if the reader gains
as much from a passage without the answer as from one with it, and little if no candidate has the answer.
"""

# Shapes: B sentences, L passages that are searched, K passages that are read

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.models.candidate_reader import PassageReader
from realm_lab.engine.models.spans import holds_answer
from realm_lab.engine.retrieval.candidates import CandidatePolicy
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.rows import ABSENT, NULL

SPANS = 200
DEPTH = 64  # passages that are searched for one with the answer
WITHOUT = 4  # passages without the answer; the best of them is compared
LEAST_NATS, LEAST_SHARE = 3.0, 0.35
AT_ONCE = 50  # sentences


class Mean(NamedTuple):
    """A mean and its standard error."""

    mean: float
    error: float


class Support(NamedTuple):
    """Comparison of a supporting passage with others; all or none of them contain the answer's words. Nats per span."""

    spans: int  # with a supporting passage and another to compare it with
    with_words: int  # of these, spans whose passages all contain the answer's words
    over_best: Mean  # log p(y|z,x) of the passage that supports the answer, minus that of the best of WITHOUT others
    preferred: Mean  # share of the others that have a lower log p(y|z,x); .5: the reader prefers neither
    among_candidates: Mean  # share of all spans whose answer a candidate of pre-training supports

    @property
    def prefers_support(self) -> bool:
        """True if the preference for the passage that supports the answer is more than two standard errors above .5."""
        return self.preferred.mean - 2 * self.preferred.error > 0.5


class Gate(NamedTuple):
    """The measurements, in nats per span; means over the spans with both a passage with the answer and one without."""

    spans: int
    with_answer: int
    over_none: Mean  # log p(y|z,x) of a passage with the answer, minus log p(y|null,x)
    over_best: Mean  # log p(y|z,x) of a passage with the answer, minus that of the best of WITHOUT that lack it
    among_candidates: Mean  # share of all spans whose answer is in a candidate of pre-training
    candidates: int  # passages that pre-training reads per query
    support: Support | None = None  # None: no passage is known that supports an answer and can be compared

    @property
    def only_by_reading(self) -> bool:
        """True if passages are known that support an answer, and none of them contains the answer's words."""
        return self.support is not None and not self.support.with_words

    @property
    def problems(self) -> list[str]:
        """Return the reasons why pre-training will not learn here, each with a remedy; empty if it can."""
        if self.only_by_reading:
            assert self.support is not None
            unread = "the reader does not prefer the passages that support an answer; choose pretrain.causal_checkpoint"
            return [] if self.support.prefers_support else [unread]
        found = []
        if not self.with_answer:
            found.append(f"no span is in any of the first {DEPTH} passages; choose text that repeats its facts")
        elif self.over_none.mean < LEAST_NATS:
            found.append(
                "the reader gains too little from a passage with the answer; choose pretrain.causal_checkpoint"
            )
        elif self.over_best.mean < LEAST_NATS:
            found.append(
                "the reader gains nearly as much from passages without the answer; choose "
                "pretrain.causal_checkpoint, or spans that only a few passages have (pretrain.recurring_spans)"
            )
        if self.among_candidates.mean < LEAST_SHARE:
            found.append(
                "too few candidates have the answer; raise pretrain.candidates, mask what other passages have "
                "(pretrain.recurring_spans), or start from a better retriever"
            )
        return found


@torch.no_grad()
def measure_gate(
    policy: CandidatePolicy,
    retriever: Retriever,
    reader: PassageReader,
    masked: Sequence[MaskedSentence],
    origins: np.ndarray,
    gold: np.ndarray,
) -> Gate:
    """Read masked sentences with a passage that has the answer, with passages that lack it, and with none.

    The passage with the answer is the gold passage, if known, or the first that the retriever finds with the masked
    wordpieces. The passage of origin is never read. `origins` and `gold` are rows of the corpus, or negative.
    """
    rows_BK = np.full((len(masked), 2 + WITHOUT), ABSENT, np.int64)
    rows_BK[:, 0] = NULL
    is_candidate_B = np.zeros(len(masked), bool)
    log_probs_BK = np.zeros(rows_BK.shape)
    bodies = retriever.passages.bodies
    for start in range(0, len(masked), AT_ONCE):
        part = range(start, min(start + AT_ONCE, len(masked)))
        query_BD = retriever.embed_queries([masked[number].query for number in part])
        exclude = policy.exclusion(retriever, origins[start : part.stop], always=True)
        found_BL = retriever.find(query_BD, DEPTH, exclude)
        for number, rows_L in zip(part, found_BL, strict=True):
            rows_L = rows_L[rows_L >= 0]
            has_answer_L = holds_answer(bodies, rows_L, [masked[number].targets]) | (rows_L == gold[number])
            is_candidate_B[number] = has_answer_L[: policy.passages].any()
            having = rows_L[has_answer_L][:1] if gold[number] < 0 else gold[number : number + 1]
            others = rows_L[~has_answer_L][:WITHOUT]
            rows_BK[number, 1 : 1 + len(having)] = having
            rows_BK[number, 2 : 2 + len(others)] = others
    # Read the spans with passages of both kinds.
    read = np.flatnonzero((rows_BK[:, 1] >= 0) & (rows_BK[:, 2] >= 0))
    for start in range(0, len(read), AT_ONCE):
        some = read[start : start + AT_ONCE]
        reading = reader.read([masked[number] for number in some], rows_BK[some])
        log_probs_BK[some] = reading.log_probs_BK.double().cpu().numpy()
    having_B = log_probs_BK[read, 1]
    best_B = np.where(rows_BK[read, 2:] >= 0, log_probs_BK[read, 2:], -np.inf).max(1, initial=-np.inf)
    over_none, over_best = _mean(having_B - log_probs_BK[read, 0]), _mean(having_B - best_B)
    share = _mean(is_candidate_B.astype(float))
    return Gate(len(masked), len(read), over_none, over_best, share, policy.passages)


@torch.no_grad()
def measure_support(
    policy: CandidatePolicy,
    retriever: Retriever,
    reader: PassageReader,
    masked: Sequence[MaskedSentence],
    origins: np.ndarray,
    supporting: Sequence[Sequence[int]],
) -> Support | None:
    """Compare log p(y|z,x) of masked sentences with a passage that supports the answer (the first of `supporting` that
    the retriever finds, else the first listed) and with the first WITHOUT other passages that it finds. These contain
    the masked wordpieces if and only if that passage does, so that the words never make the difference. None: no
    sentence has such passages."""
    rows_BK = np.full((len(masked), 1 + WITHOUT), ABSENT, np.int64)
    has_words_B, is_candidate_B = np.zeros((2, len(masked)), bool)
    bodies = retriever.passages.bodies
    for start in range(0, len(masked), AT_ONCE):
        part = range(start, min(start + AT_ONCE, len(masked)))
        query_BD = retriever.embed_queries([masked[number].query for number in part])
        found_BL = retriever.find(query_BD, DEPTH, policy.exclusion(retriever, origins[start : part.stop], always=True))
        for number, rows_L in zip(part, found_BL, strict=True):
            rows_L = rows_L[rows_L >= 0]
            supports_L = np.isin(rows_L, supporting[number])
            is_candidate_B[number] = supports_L[: policy.passages].any()
            rows_BK[number, 0] = [*rows_L[supports_L], *supporting[number]][0]
            first, *has_words_L = holds_answer(bodies, np.append(rows_BK[number, 0], rows_L), [masked[number].targets])
            has_words_B[number] = first
            others = rows_L[(np.array(has_words_L, bool) == first) & ~supports_L][:WITHOUT]
            rows_BK[number, 1 : 1 + len(others)] = others
    read = np.flatnonzero(rows_BK[:, 1] >= 0)
    if not len(read):
        return None
    log_probs_BK = np.concatenate(
        [
            reader.read([masked[number] for number in some], rows_BK[some]).log_probs_BK.double().cpu().numpy()
            for some in np.array_split(read, -(-len(read) // AT_ONCE))
        ]
    )
    is_other_BK = rows_BK[read, 1:] >= 0
    gain_BK = np.where(is_other_BK, log_probs_BK[:, :1] - log_probs_BK[:, 1:], np.inf)
    preferred_BK = (gain_BK > 0) + 0.5 * (gain_BK == 0)
    preferred_B = (preferred_BK * is_other_BK).sum(1) / is_other_BK.sum(1)
    share = _mean(is_candidate_B.astype(float))
    return Support(len(read), int(has_words_B[read].sum()), _mean(gain_BK.min(1)), _mean(preferred_B), share)


def _mean(values: np.ndarray) -> Mean:
    """Return mean and standard error; NaN without a value, and no error for a single one."""
    if not len(values):
        return Mean(float("nan"), float("nan"))
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return Mean(float(values.mean()), float(error))
