"""Masking schemes against their definitions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from realm_lab.errors import UserError
from realm_lab.masking import (
    MASKING_SCHEMES,
    SPAN_GEOMETRIC_P,
    SPAN_MAX_LENGTH,
    mask,
    masking_scheme,
    random_span,
    random_token,
    register_masking,
    salient_span,
)

SPANS = np.array([[0, 2], [3, 4], [6, 9]], np.int32)
NO_SPANS = np.empty((0, 2), np.int32)


@pytest.mark.parametrize("name", ["salient_span", "random_token", "random_span"])
@given(length=st.integers(9, 60), rate=st.floats(0.0, 1.0), seed=st.integers(0, 2**32))
def test_positions_are_distinct_and_inside_the_sentence(name: str, length: int, rate: float, seed: int) -> None:
    positions = masking_scheme(name)(length, SPANS, rate, np.random.default_rng(seed))
    assert len(positions) >= 1
    assert len(set(positions.tolist())) == len(positions)
    assert positions.min() >= 0
    assert positions.max() < length


@pytest.mark.parametrize("name", ["salient_span", "random_token", "random_span"])
def test_the_generator_decides_everything(name: str) -> None:
    scheme = masking_scheme(name)
    draws = [[scheme(40, SPANS, 0.3, rng).tolist() for _ in range(30)] for rng in map(np.random.default_rng, (5, 5, 6))]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]


@given(st.integers(0, 2**32))
def test_exactly_one_salient_span_is_masked_as_a_whole(seed: int) -> None:
    positions = salient_span(10, SPANS, 0.9, np.random.default_rng(seed)).tolist()
    assert positions in [[0, 1], [3], [6, 7, 8]]


def test_salient_spans_are_chosen_uniformly() -> None:
    generator = np.random.default_rng(0)
    counts = Counter(int(salient_span(10, SPANS, 0.0, generator)[0]) for _ in range(3000))
    assert counts.keys() == {0, 3, 6}
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


@pytest.mark.parametrize("name", ["random_token", "random_span"])
@given(length=st.integers(1, 60), rate=st.floats(0.0, 1.0), seed=st.integers(0, 2**32))
def test_the_number_of_masks_is_the_rate_rounded(name: str, length: int, rate: float, seed: int) -> None:
    count = len(masking_scheme(name)(length, NO_SPANS, rate, np.random.default_rng(seed)))
    assert count in {max(1, int(rate * length)), max(1, min(length, int(rate * length) + 1))}


@pytest.mark.parametrize("name", ["random_token", "random_span"])
def test_the_mean_rate_is_exact(name: str) -> None:
    generator = np.random.default_rng(1)
    counts = [len(masking_scheme(name)(25, NO_SPANS, 0.15, generator)) for _ in range(4000)]
    assert set(counts) == {3, 4}
    assert np.mean(counts) == pytest.approx(3.75, abs=4 * np.std(counts) / 4000**0.5)


def test_random_tokens_are_uniform_over_the_sentence() -> None:
    generator = np.random.default_rng(2)
    counts = np.bincount(np.concatenate([random_token(20, NO_SPANS, 0.15, generator) for _ in range(4000)]))
    assert len(counts) == 20
    assert stats.chisquare(counts).pvalue > 1e-3


def test_every_place_can_be_in_a_random_span() -> None:
    generator = np.random.default_rng(3)
    counts = np.bincount(np.concatenate([random_span(20, NO_SPANS, 0.2, generator) for _ in range(4000)]), minlength=20)
    assert counts.min() > 0.2 * counts.max()  # the ends are in fewer spans, but are in some


def test_the_whole_sentence_can_be_masked() -> None:
    for scheme in (random_token, random_span):
        assert sorted(scheme(12, NO_SPANS, 1.0, np.random.default_rng(0)).tolist()) == list(range(12))


def observed_lengths() -> list[int]:
    """Lengths of random spans in a sentence so long that two hardly ever meet."""
    positions = np.sort(random_span(10**9, NO_SPANS, 2e-5, np.random.default_rng(4)))
    runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
    return [len(run) for run in runs]


def test_random_spans_are_of_geometric_length() -> None:
    # Up to the longest but one, the ratios of a geometric distribution hold however the tail is treated.
    counts = Counter(observed_lengths())
    assert max(counts) == SPAN_MAX_LENGTH
    assert min(counts) == 1
    observed = np.array([counts[length] for length in range(1, SPAN_MAX_LENGTH)])
    weights = (1 - SPAN_GEOMETRIC_P) ** np.arange(SPAN_MAX_LENGTH - 1)
    assert stats.chisquare(observed, weights / weights.sum() * observed.sum()).pvalue > 1e-3


def test_random_spans_have_spanberts_mean_length() -> None:
    # Joshi et al. 2019, section 3.1: "this yields a mean span length of 3.8".
    lengths = observed_lengths()
    assert np.mean(lengths) == pytest.approx(3.797, abs=4 * np.std(lengths) / len(lengths) ** 0.5)


def test_mask_replaces_one_for_one_and_keeps_the_answer() -> None:
    tokens = np.array([10, 11, 12, 13], np.uint16)
    masked = mask(tokens, np.array([3, 1]), 4)
    assert masked.tokens.tolist() == [10, 4, 12, 4]
    assert masked.positions.tolist() == [1, 3]
    assert masked.targets.tolist() == [11, 13]
    assert tokens.tolist() == [10, 11, 12, 13]  # the corpus is memory-mapped
    assert masked.tokens.dtype == np.int64


def test_a_registered_scheme_is_found_by_its_name() -> None:
    @register_masking("first_word")
    def first_word(length: int, spans: np.ndarray, rate: float, generator: np.random.Generator) -> np.ndarray:
        return np.arange(1)

    try:
        assert masking_scheme("first_word") is first_word
        with pytest.raises(UserError, match="'first_word' is registered twice"):
            register_masking("first_word")(first_word)
    finally:
        del MASKING_SCHEMES["first_word"]


def test_an_unknown_scheme_names_the_choices() -> None:
    with pytest.raises(UserError, match=r"'pretrain\.masking'.*'spam'.*random_span, random_token, salient_span"):
        masking_scheme("spam")
