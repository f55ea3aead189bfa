"""Power before any run, against closed forms, against the tests themselves, and against `decide` look by look."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import optimize, stats

from realm_lab.evidence.statistics.calibration import skewed, some_signs
from realm_lab.evidence.statistics.paired import sign_flip_p, step_down_max_t
from realm_lab.evidence.statistics.planned import Spread, _Family, detectable_differences
from realm_lab.evidence.statistics.power import POWER, STUDIES, detectable_effect
from realm_lab.evidence.statistics.sequential import ALPHA, Rule, decide


def pilot(seeds: int, tests: int) -> np.ndarray:
    return np.random.default_rng(seeds).normal(size=(seeds, tests))


def test_one_normal_comparison_has_its_closed_form() -> None:
    unknown = np.full((4, 1), np.nan)  # no skew is known: normal
    [found] = detectable_differences(unknown, [Spread(2.0, 10_000)], Rule(16, 16))
    critical = stats.t.isf(ALPHA / 2, 15)
    exact = optimize.brentq(lambda effect: stats.nct.sf(critical, 15, effect * 4) - POWER, 0, 4)
    assert found is not None
    assert found.difference == pytest.approx(2 * exact, rel=0.05)
    assert found.seeds == 16
    [few] = detectable_differences(unknown, [Spread(1.0, 8)], Rule(16, 16))
    assert few is not None
    assert few.difference > found.difference / 2, "a spread that is known badly costs power"


def test_it_agrees_with_the_power_of_a_report() -> None:
    independent = np.full((8, 6), np.nan)
    [found, *_] = detectable_differences(independent, [Spread(1.0, 8)] + [None] * 5, Rule(8, 8))
    assert found is not None
    assert found.difference == pytest.approx(detectable_effect(8, 6), rel=0.05)


def test_too_few_seeds_detect_nothing() -> None:
    assert detectable_differences(pilot(8, 2), [Spread(1.0, 8)] * 2, Rule(5, 5)) == [None, None]
    assert detectable_differences(pilot(8, 1), [None], Rule(8, 8)) == [None]


@pytest.mark.slow
@pytest.mark.parametrize("skew", [0.0, 2.0])
def test_the_detectable_difference_is_detected_in_80_percent(skew: float) -> None:
    """New studies are judged by the test of reports; the first of four correlated comparisons has the effect."""
    generator = np.random.default_rng(3)
    shared, own = generator.normal(size=(2000, 1)), generator.normal(size=(2000, 4))
    values = stats.pearson3.ppf(stats.norm.cdf(math.sqrt(0.5) * (shared + own)), skew)
    found = detectable_differences(values, [Spread(1.0, 2000)] * 4, Rule(7, 7))[0]
    assert found is not None
    new = skewed(values, 1000, np.random.default_rng(4), 7)
    new[::2, :, 0] += found.difference
    new[1::2, :, 0] -= found.difference
    rate = np.mean([step_down_max_t([dict(enumerate(test)) for test in study.T])[0] <= ALPHA for study in new])
    assert rate == pytest.approx(POWER, abs=4 * math.sqrt(POWER * (1 - POWER) * (1 / 1000 + 1 / STUDIES)))


def test_looks_are_those_of_the_study() -> None:
    rule = Rule(4, 8)
    studies = np.random.default_rng(5).normal(size=(150, 8, 3))
    family = _Family(studies.astype(np.float32), rule)
    moves = np.where(np.arange(150) % 2, 1.3, -1.3)
    at = family.found_at(1, moves.astype(np.float32))
    compared = 0
    for study, move, found in zip(studies, moves, at, strict=True):
        study[:, 1] += move
        tests = {test: list(study[:, test]) for test in range(3)}
        groups = dict.fromkeys(tests, "cells")
        seen = [decide({k: v[:n] for k, v in tests.items()}, {}, groups, [], rule).differences for n in range(4, 9)]
        if all(p[0] > ALPHA and p[2] > ALPHA for p in seen):  # a found one leaves the family
            compared += 1
            assert found == next((n for n, p in zip(range(4, 9), seen, strict=True) if p[1] <= ALPHA), 0)
    assert compared > 100
    assert set(at) == {0, 6, 8}


def test_a_rule_saves_seeds_and_costs_little_power() -> None:
    fixed = detectable_differences(pilot(8, 3), [Spread(1.0, 8)] * 3, Rule(8, 8))
    looks = detectable_differences(pilot(8, 3), [Spread(1.0, 8)] * 3, Rule(4, 8))
    for one, other in zip(fixed, looks, strict=True):
        assert one is not None
        assert other is not None
        assert one.difference <= other.difference < 1.3 * one.difference
        assert other.seeds < one.seeds == 8


def test_some_signs_have_all_beginnings() -> None:
    flips = some_signs(13)
    assert flips.shape == (512, 13)
    assert (flips[0] == 1).all()
    assert len(np.unique(flips[:, :10], axis=0)) == 512
    blocks = [flips[at : at + 64, :4] for at in range(0, 512, 64)]
    assert all((block == block[0]).all() for block in blocks)
    assert all((one[0] != two[0]).any() for one, two in pairwise(blocks))
    assert abs(flips[1:, 10:].mean()) < 0.1
    deltas = np.random.default_rng(1).normal(0.5, 1, (40, 13))
    share = [(np.abs(flips @ row) >= abs(row.sum()) - 1e-9).mean() for row in deltas]
    assert share == pytest.approx([sign_flip_p(row) for row in deltas], abs=0.06)
