"""A random draw is a pure function of seed, purpose and position."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_lab.engine.core.seeding import EpochOrder, derive_seed, numpy_generator


def test_a_derived_seed_never_moves() -> None:
    # Of the SHA-256 of "7/masking/170". If it moves, no run can be resumed or repeated.
    assert derive_seed(7, "masking", 170) == 4400074303899733574


def test_a_generator_needs_no_history() -> None:
    resumed = numpy_generator(3, "masking", 170).random(8)
    for step in range(170):
        numpy_generator(3, "masking", step).random(8)
    np.testing.assert_array_equal(numpy_generator(3, "masking", 170).random(8), resumed)
    assert not np.array_equal(numpy_generator(4, "masking", 170).random(8), resumed)


@given(count=st.integers(1, 30), start=st.integers(0, 100), length=st.integers(0, 60))
def test_a_stream_read_in_pieces_is_the_stream_read_at_once(count: int, start: int, length: int) -> None:
    whole = EpochOrder(count, 5, "pretrain").take(0, start + length)
    pieces = EpochOrder(count, 5, "pretrain")
    jumped = pieces.take(start, length)
    np.testing.assert_array_equal(jumped, whole[start:])
    np.testing.assert_array_equal(pieces.take(0, start), whole[:start])
    assert jumped.dtype == np.int64


@pytest.mark.parametrize("count", [1, 2, 17])
def test_every_epoch_visits_every_item_once(count: int) -> None:
    order = EpochOrder(count, 0, "finetune")
    for epoch in range(4):
        assert sorted(order.take(epoch * count, count)) == list(range(count))
