"""S(z, y), the spans of z that equal y, and p(y|z,x) as the sum over them."""

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from realm_lab.engine.corpus.store import Ragged, RaggedWriter
from realm_lab.engine.models.spans import (
    answer_log_probs,
    early_log_likelihood,
    find_answer,
    holds_answer,
    span_log_probs,
)


def test_an_answer_is_not_cut_to_the_smaller_integers_of_the_passage() -> None:
    assert find_answer(np.array([7, 8, 7], np.uint16), [np.array([7 + (1 << 16)])], 9) == []


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


def logits() -> Tensor:
    return torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


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


def test_the_early_likelihood_is_that_of_any_passage_with_an_answer() -> None:
    score_BC = torch.tensor([[1.0, 2.0, -0.5], [0.1, 0.2, 0.3], [3.0, 1.0, 1.0]], dtype=torch.float64)
    held_BC = torch.tensor([[True, False, True], [False] * 3, [True] * 3])
    score_BC.requires_grad_()
    found_B = early_log_likelihood(score_BC, held_BC)
    weight = [math.exp(value) for value in score_BC[0].tolist()]
    assert found_B.tolist() == pytest.approx([math.log((weight[0] + weight[2]) / sum(weight)), 0.0, 0.0], abs=1e-12)
    (gradient_BC,) = torch.autograd.grad(found_B.sum(), score_BC)
    assert gradient_BC.isfinite().all()
    assert not gradient_BC[1].any()
    assert gradient_BC[0].tolist()[1] == pytest.approx(-weight[1] / sum(weight), abs=1e-12)


BODY = st.lists(st.integers(0, 2), max_size=6)


@given(
    st.lists(BODY, min_size=1, max_size=6),
    st.lists(st.integers(-2, 5), max_size=8),
    st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=3),
)
def test_passages_that_hold_an_answer(bodies: list[list[int]], rows: list[int], answers: list[list[int]]) -> None:
    rows = [row for row in rows if row < len(bodies)]
    arrays = [np.array(answer, np.int64) for answer in answers]
    with tempfile.TemporaryDirectory() as folder:
        writer = RaggedWriter(Path(folder), "bodies", np.uint16)
        writer.append(bodies)
        writer.close()
        ragged = Ragged(Path(folder), "bodies", np.uint16)
        found = holds_answer(ragged, np.array(rows, np.int64), arrays)
    expected = [row >= 0 and bool(find_answer(np.array(bodies[row], np.uint16), arrays, 99)) for row in rows]
    assert found.tolist() == expected
