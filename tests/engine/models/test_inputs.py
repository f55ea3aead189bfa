"""join_BERT, padding and groups of equal length."""

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.models.inputs import PADDING, join, length_groups

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
X, Z = np.array([10, 11, 12], np.uint16), np.array([20, 21, 22, 23], np.uint16)
EMPTY = np.empty(0, np.int64)


@given(st.integers(0, 9), st.none() | st.integers(0, 9), st.integers(3, 24))
def test_a_joined_sequence_fits_and_keeps_what_it_can(first: int, second: int | None, max_length: int) -> None:
    x, z = np.arange(100, 100 + first), None if second is None else np.arange(200, 200 + second)
    batch = join([x], None if z is None else [z], SPECIAL, max_length)
    tokens, second_start = batch.tokens_BL[0].numpy(), int((batch.types_BL == 0).sum())
    specials = 2 if second is None else 3
    assert len(tokens) == min(max_length, first + (second or 0) + specials)
    kept = [int(token) for token in tokens if token >= 200]
    assert kept == list(range(200, 200 + len(kept)))
    if len(kept) < (second or 0):  # z is cut only if x and the specials leave no room
        assert len(tokens) == max_length
    assert tokens[second_start : second_start + len(kept)].tolist() == kept
    if kept:
        assert (tokens[1 : 1 + first] == x).all()


def test_a_batch_is_padded_and_its_segments_are_told_apart() -> None:
    batch = join([X, X[:1]], [Z[:1], EMPTY], SPECIAL, 16)
    assert batch.tokens_BL.tolist() == [[2, 10, 11, 12, 3, 20, 3], [2, 10, 3, 3, 0, 0, 0]]
    assert batch.types_BL.tolist() == [[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 0, 0, 0]]
    assert batch.mask_BL.tolist() == [[True] * 7, [True] * 4 + [False] * 3]
    assert (batch.tokens_BL.dtype, batch.types_BL.dtype, batch.mask_BL.dtype) == (torch.int64, torch.int64, torch.bool)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=60), st.integers(1, 6000))
def test_groups_hold_every_row_once_within_the_budget_and_with_little_padding(lengths: list[int], budget: int) -> None:
    groups = [[lengths[row] for row in group] for group in length_groups(lengths, budget)]
    assert sorted(np.concatenate(length_groups(lengths, budget)).tolist()) == list(range(len(lengths)))
    assert [length for group in groups for length in group] == sorted(lengths)
    for group in groups:
        assert len(group) * group[-1] <= budget or len(group) == 1
        assert len(group) * group[-1] - sum(group) <= PADDING
    for group, following in pairwise(groups):  # no group could have taken one row more
        padded = (len(group) + 1) * following[0]
        assert padded > budget or padded - sum(group) - following[0] > PADDING
