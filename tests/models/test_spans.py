"""S(z, y), and p(y|z,x) as the sum over it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from realm_lab.models.inputs import join
from realm_lab.models.spans import NO_ANSWER, answer_log_probs, find_answer, mark_answers, span_log_probs

if TYPE_CHECKING:
    from tests.tiny_system import TinySystem


def test_every_place_of_every_answer_is_found() -> None:
    body = np.array([7, 8, 7, 8, 7, 9], np.uint16)
    assert find_answer(body, [np.array([7, 8])], 3) == [(0, 1), (2, 1)]
    assert find_answer(body, [np.array([7, 8, 7])], 3) == [(0, 2), (2, 2)]  # overlapping
    assert find_answer(body, [np.array([9]), np.array([8]), np.array([9])], 3) == [(1, 0), (3, 0), (5, 0)]
    assert find_answer(body, [body], 6) == [(0, 5)]


def test_what_cannot_be_a_span_is_not_found() -> None:
    body = np.array([7, 8, 7], np.uint16)
    assert find_answer(body, [np.array([7, 8, 7])], 2) == []  # wider than a span may be
    assert find_answer(body, [np.array([7, 8, 7, 8])], 9) == []  # longer than the passage
    assert find_answer(body, [np.array([8, 8])], 9) == []
    assert find_answer(body, [np.empty(0, np.int64)], 9) == []
    assert find_answer(np.empty(0, np.uint16), [np.array([7])], 9) == []
    assert find_answer(body, [np.array([7 + (1 << 16)])], 9) == []  # not cut to the passage's smaller integers


@given(
    st.lists(st.integers(0, 2), max_size=12),
    st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=3),
    st.integers(1, 4),
)
def test_found_places_are_all_places(body: list[int], answers: list[list[int]], max_width: int) -> None:
    expected = {
        (start, len(answer) - 1)
        for answer in answers
        for start in range(len(body))
        if 0 < len(answer) <= max_width and body[start : start + len(answer)] == answer
    }
    arrays = [np.array(answer, np.int64) for answer in answers]
    assert find_answer(np.array(body, np.uint16), arrays, max_width) == sorted(expected)


def test_answers_are_marked_where_the_passage_begins() -> None:
    marked_NLW = mark_answers([[(0, 1), (2, 0)], [], [(1, 2)]], [3, 9, 4], torch.Size([3, 10, 3]))
    assert torch.nonzero(marked_NLW).tolist() == [[0, 3, 1], [0, 5, 0], [2, 5, 2]]
    assert marked_NLW.dtype == torch.bool


def test_an_answer_beyond_the_sequence_is_not_marked() -> None:
    assert not mark_answers([[(6, 1), (8, 0)]], [3], torch.Size([1, 10, 2])).any()


def logits() -> Tensor:
    return torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_answers_probability_is_the_sum_over_its_spans() -> None:
    logits_NLW = logits()
    is_answer_NLW = torch.zeros(3, 5, 2, dtype=torch.bool)
    is_answer_NLW[0, 1, 0] = is_answer_NLW[0, 3, 1] = is_answer_NLW[2, 4, 0] = True
    found_N = answer_log_probs(span_log_probs(logits_NLW), is_answer_NLW)
    for n in (0, 2):
        weights = {(s, w): math.exp(logits_NLW[n, s, w]) for s in range(5) for w in range(2)}
        held = sum(weight for (s, w), weight in weights.items() if is_answer_NLW[n, s, w])
        assert found_N[n].item() == pytest.approx(math.log(held / sum(weights.values())), abs=1e-12)
    assert found_N[1] == NO_ANSWER


def test_a_passage_without_the_answer_gives_no_gradient_and_no_nan() -> None:
    logits_NLW = logits().requires_grad_()
    is_answer_NLW = torch.zeros(3, 5, 2, dtype=torch.bool)
    is_answer_NLW[0, 1, 0] = True
    is_answer_NLW[2] = True  # every span: p(y|z,x) is 1
    found_N = answer_log_probs(span_log_probs(logits_NLW), is_answer_NLW)
    (gradient_NLW,) = torch.autograd.grad(found_N.sum(), logits_NLW)
    assert gradient_NLW.isfinite().all()
    assert not gradient_NLW[1].any()
    assert gradient_NLW[0, 1, 0] > 0
    assert found_N[2].item() == pytest.approx(0.0, abs=1e-12)
    assert gradient_NLW[2].abs().max() < 1e-12


def test_an_answer_that_was_cut_off_is_no_answer(system: TinySystem) -> None:
    question, body = np.arange(10, 15), np.arange(20, 30)
    batch = join([question], [body], system.special, 5 + 3 + 6)  # the passage keeps 20 .. 25
    with torch.no_grad():
        log_probs_NLW = span_log_probs(system.reader.span_logits(batch, 3))
    kept, cut = ([find_answer(body, [np.array(answer)], 3)] for answer in ([24, 25], [25, 26]))
    marked_NLW = mark_answers(kept, [7], log_probs_NLW.shape)
    assert answer_log_probs(log_probs_NLW, marked_NLW).item() == log_probs_NLW[0, 7 + 4, 1]
    assert answer_log_probs(log_probs_NLW, mark_answers(cut, [7], log_probs_NLW.shape)).item() == NO_ANSWER
