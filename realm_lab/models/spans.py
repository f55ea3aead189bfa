"""Answer spans in fine-tuning: p(s|z,x) over the spans of a passage, and the marginal over passages (section 3.2)."""

# Shapes: B questions, K passages, N = B * K pairs, L positions, W span widths

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

NO_ANSWER = -1.0e9


def span_log_probs(logits_NLW: Tensor) -> Tensor:
    """log p(s|z,x): softmax over all spans of one passage, float32 [N, L, W]."""
    return logits_NLW.flatten(1).log_softmax(1).view_as(logits_NLW)


def answer_log_probs(log_probs_NLW: Tensor, is_answer_NLW: Tensor) -> Tensor:
    """log p(y|z,x) = log sum over the spans in S(z, y) of p(s|z,x); NO_ANSWER where z holds none. Returns [N]."""
    inside = log_probs_NLW.masked_fill(~is_answer_NLW, -torch.inf).flatten(1)
    held_N = is_answer_NLW.flatten(1).any(1)
    safe = torch.where(held_N[:, None], inside, torch.zeros_like(inside))
    return torch.where(held_N, safe.logsumexp(1), torch.full_like(safe[:, 0], NO_ANSWER))


def find_answer(body: np.ndarray, answers: Sequence[np.ndarray], max_width: int) -> list[tuple[int, int]]:
    """S(z, y): every (first wordpiece, width - 1) at which an answer's wordpieces stand in the passage."""
    found: set[tuple[int, int]] = set()
    for answer in answers:
        width = len(answer)
        if 0 < width <= min(max_width, len(body)):
            windows = np.lib.stride_tricks.sliding_window_view(body, width)
            found.update((int(start), width - 1) for start in np.flatnonzero((windows == answer).all(1)))
    return sorted(found)


def mark_answers(spans: Sequence[Sequence[tuple[int, int]]], offsets: Sequence[int], shape: torch.Size) -> Tensor:
    """Spans of N pairs, shifted by where the passage begins in the joined sequence, as bool [N, L, W]."""
    is_answer_NLW = torch.zeros(shape, dtype=torch.bool)
    for number, (pairs, offset) in enumerate(zip(spans, offsets, strict=True)):
        for start, width in pairs:
            if start + offset + width < shape[1] - 1:
                is_answer_NLW[number, start + offset, width] = True
    return is_answer_NLW
