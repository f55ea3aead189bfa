"""Answer spans in fine-tuning: p(s|z,x), p(z|x) of the passages that are read, and the early loss (section 3.2;
Lee et al. 2019).

h(s, z) is the reader's logit of span s. T(z) = log sum_s exp h(s, z) is over all spans of a passage, G(z) over those of
the answer only. The ways to combine retriever and reader (`passage_log_probs`) differ only in p(z|x). All have
    log p(y|x) = logsumexp_z [log p(z|x) + log p(y|z,x)],   log p(y|z,x) = G(z) - T(z).
"""

# Shapes: B questions, K passages, C passages of the early loss, N = B * K pairs, L positions, W span widths

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from realm_lab.engine.corpus.store import Ragged
from realm_lab.engine.models.inputs import Batch
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.models.realm import candidate_log_probs

NO_ANSWER = -1.0e9


def span_log_probs(logits_NLW: Tensor) -> Tensor:
    """Return log p(s|z,x): softmax over all spans of one passage, float32 [N, L, W]."""
    return logits_NLW.flatten(1).log_softmax(1).view_as(logits_NLW)


def span_logit_sums(logits_NLW: Tensor) -> Tensor:
    """Return T(z) = log sum of exp h(s, z) over all spans of one passage, [N]."""
    return logits_NLW.flatten(1).logsumexp(1)


def answer_log_probs(log_probs_NLW: Tensor, is_answer_NLW: Tensor) -> Tensor:
    """Return log p(y|z,x) = log sum over the spans in S(z, y) of p(s|z,x); NO_ANSWER if z contains none. [N]."""
    inside = log_probs_NLW.masked_fill(~is_answer_NLW, -torch.inf).flatten(1)
    held_N = is_answer_NLW.flatten(1).any(1)
    safe = torch.where(held_N[:, None], inside, torch.zeros_like(inside))
    return torch.where(held_N, safe.logsumexp(1), torch.full_like(safe[:, 0], NO_ANSWER))


class SpanModel(Protocol):
    """A model that scores the spans of a passage: `Reader`, or a model of another architecture."""

    def span_logits(self, batch: Batch, max_width: int) -> Tensor:
        """Return h(s, z) of every span, [N, L, W]."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the model's weights, all on one device."""
        ...

    def eval(self) -> Any:
        """Switch dropout off."""
        ...


def read_logits(reader: SpanModel, batch: Batch, max_width: int, softmax: str) -> tuple[Tensor, Tensor]:
    """Return h(s, z) of every span, [N, L, W], and the reader's logit of each passage for `passage_log_probs`, [N]:
    T(z), or for `selected` the logit of the `Reader`'s passage-selection head."""
    if softmax == "selected" and isinstance(reader, Reader):
        return reader.selecting_logits(batch, max_width)
    logits_NLW = reader.span_logits(batch, max_width)
    return logits_NLW, span_logit_sums(logits_NLW)


def passage_log_probs(score_BK: Tensor, reader_logit_BK: Tensor, softmax: str) -> Tensor:
    """Return log p(z|x) in fine-tuning, [B, K].

    `factored`: the retriever's softmax over f(x, z) (Guu et al., section 3.2). `joint`: z's share of one softmax
    over the spans of all passages, with logits h(s, z) + f(x, z), that is exp(f(x, z) + T(z)) normalised (Lee et al.
    2019, "Learning"; released code). Then log p(y|x) is the logsumexp of these logits over the answer's spans
    in all passages minus that over all spans in all passages. `selected`: the softmax of the reader's
    passage-selection head, whatever the retriever's score (Karpukhin et al. 2020, section 6.1).
    """
    scores = {"factored": score_BK, "joint": score_BK + reader_logit_BK, "selected": reader_logit_BK}
    return candidate_log_probs(scores[softmax])


def early_log_likelihood(score_BC: Tensor, holds_answer_BC: Tensor) -> Tensor:
    """Return log p_early(a passage with an answer | x), a softmax over the C passages (Lee et al. 2019, "Learning").

    Shape [B]; 0, with no gradient, if no passage contains an answer.
    """
    held_B = holds_answer_BC.any(1)
    log_prob_BC = candidate_log_probs(score_BC).masked_fill(~(holds_answer_BC | ~held_B[:, None]), -torch.inf)
    return torch.where(held_B, log_prob_BC.logsumexp(1), torch.zeros_like(score_BC[:, 0]))


def find_answer(body: np.ndarray, answers: Sequence[np.ndarray], max_width: int) -> list[tuple[int, int]]:
    """Return S(z, y), the spans of the passage that equal an answer, as (first wordpiece, width - 1)."""
    found: set[tuple[int, int]] = set()
    for answer in answers:
        width = len(answer)
        if 0 < width <= min(max_width, len(body)):
            windows = np.lib.stride_tricks.sliding_window_view(body, width)
            found.update((int(start), width - 1) for start in np.flatnonzero((windows == answer).all(1)))
    return sorted(found)


def holds_answer(bodies: Ragged, rows_C: np.ndarray, answers: Sequence[np.ndarray]) -> np.ndarray:
    """True for passages that contain the wordpieces of one of the answers, of any width, bool [C].

    Thousands of passages are searched at once: their wordpieces are concatenated, in memory that does not depend on
    the size of the corpus. A negative row contains nothing.
    """
    real = np.flatnonzero(rows_C >= 0)
    first_R = np.asarray(bodies.offsets[rows_C[real]])
    end_R = np.cumsum(np.asarray(bodies.offsets[rows_C[real] + 1]) - first_R)  # ends of the concatenated passages
    start_R = np.concatenate([np.zeros(min(1, len(end_R)), np.int64), end_R[:-1]])
    total = int(end_R[-1]) if len(end_R) else 0
    tokens = bodies.values[np.repeat(first_R - start_R, end_R - start_R) + np.arange(total)]
    held_C = np.zeros(len(rows_C), bool)
    for answer in answers:
        if len(answer) == 0 or len(answer) > total:
            continue
        hits = np.flatnonzero(tokens[: total - len(answer) + 1] == answer[0])
        for offset in range(1, len(answer)):
            hits = hits[tokens[hits + offset] == answer[offset]]
        owner = np.searchsorted(end_R, hits, side="right")
        held_C[real[owner[hits + len(answer) <= end_R[owner]]]] = True  # not across two passages
    return held_C


def mark_answers(spans: Sequence[Sequence[tuple[int, int]]], offsets: Sequence[int], shape: torch.Size) -> Tensor:
    """Mark the spans of N pairs, bool [N, L, W]. `offsets`: the starts of the passages in the joined sequences."""
    is_answer_NLW = torch.zeros(shape, dtype=torch.bool)
    for number, (pairs, offset) in enumerate(zip(spans, offsets, strict=True)):
        for start, width in pairs:
            if start + offset + width < shape[1] - 1:
                is_answer_NLW[number, start + offset, width] = True
    return is_answer_NLW
