"""The rate of false alarms: simulated without effects, against the tests of the package and against closed forms."""

import math

import numpy as np
import pytest

from benchmarks.false_alarms import simulated
from realm_lab.evidence.statistics.calibration import SUSPECT, Calibration, calibrate, false_alarms, skewed, skewness
from realm_lab.evidence.statistics.family import judge
from realm_lab.evidence.statistics.intervals import LEVEL
from realm_lab.evidence.statistics.paired import compare, sign_flip_p, step_down_max_t
from realm_lab.records.metrics import Metric


def calibrated(deltas: np.ndarray) -> Calibration:
    """Return the false alarms of differences, [seeds, tests]."""
    found = calibrate([dict(enumerate(map(float, column))) for column in deltas.T])
    assert found is not None
    return found


def test_many_studies_at_once_are_judged_as_one_by_one() -> None:
    studies = np.random.default_rng(0).normal(size=(60, 7, 5)) + np.array([0.0, 0.5, 1.0, 1.5, 2.0])
    studies[:, 5:, 1] = 0.0  # a test with five seeds
    found = false_alarms(studies)
    for study, alone, corrected in zip(studies, *found, strict=True):
        tests = [dict(enumerate(map(float, column))) for column in study.T]
        assert [p <= 1 - LEVEL for p in step_down_max_t(tests)] == [*corrected]
        assert [sign_flip_p(column) <= 1 - LEVEL for column in study.T] == [*alone]
    assert 0 < found[1].sum() < found[0].sum()


def test_many_pairs_are_simulated_in_parts() -> None:
    """1,500 questions: the rate of a test without skewness, where one array of all would have 36 GB."""
    values = np.tile([1.0, -1.0, 0.0], 500)
    found = calibrated(np.stack([values, np.roll(values, 1)], axis=1))
    assert [one.rate for one in found.alone] == pytest.approx([0.05, 0.05], abs=0.02)


@pytest.mark.parametrize("seeds", [9, 30])
def test_simulated_studies_have_the_skewness_and_the_correlations(seeds: int) -> None:
    generator = np.random.default_rng(1)
    deltas = generator.normal(size=(seeds, 3))
    deltas[:, 1] = deltas[:, 0] + 0.3 * deltas[:, 1]
    deltas[:, 2] = np.where(np.arange(seeds) == 4, -1.0, 0.02 * deltas[:, 2])  # one collapsed run
    drawn = skewed(deltas, 20_000, generator).reshape(-1, 3)
    columns = [drawn[:, test] for test in range(3)]
    assert drawn.mean(0) == pytest.approx(0, abs=0.02)
    assert drawn.std(0) == pytest.approx(1, rel=0.03)
    third = [float((column**3).mean()) for column in columns]
    assert third[:2] == pytest.approx([skewness(deltas[:, 0]), skewness(deltas[:, 1])], abs=0.15)
    assert third[2] == pytest.approx(skewness(deltas[:, 2]), rel=0.1)
    correlations = [np.corrcoef(one[:, 0], one[:, 1]).item(0, 1) for one in (drawn, deltas)]
    assert correlations[0] == pytest.approx(correlations[1], abs=0.05)
    assert skewness(np.full(8, 0.1)) == 0.0


def test_symmetric_differences_keep_the_nominal_level_and_skewed_ones_do_not() -> None:
    pairs = np.array([-3.0, 3.0, -2.0, 2.0, -1.0, 1.0, -0.5, 0.5])  # no skewness at all
    symmetric = calibrated(pairs[:, None])
    exact = math.floor(0.05 * 2**8 / 2) * 2 / 2**8  # the level that eight seeds can reach
    assert symmetric.alone[0].rate == pytest.approx(exact, abs=4 * symmetric.alone[0].error)
    assert symmetric.any == symmetric.alone[0]
    collapsed = np.array([0.0, 0.01, -0.01, 0.02, 0.0, -0.02, 0.01, -1.0])
    assert calibrated(collapsed[:, None]).alone[0].rate > SUSPECT
    assert calibrated(-collapsed[:, None]).alone[0].rate > SUSPECT
    for scale in (1000, 1e-9):
        assert calibrated(scale * collapsed[:, None]) == calibrated(collapsed[:, None]), "free of scale"
    assert calibrate([dict.fromkeys(range(5), 0.1)]) is None, "five seeds never find anything"


def test_equal_differences_give_no_false_alarm() -> None:
    other = np.random.default_rng(2).normal(size=8)
    found = calibrate([dict.fromkeys(range(8), 0.25), dict(enumerate(other))])
    assert found is not None
    assert [one.rate for one in found.alone] == [0.0, pytest.approx(0.05, abs=0.02)]


def test_a_finding_names_its_skewness() -> None:
    nothing = dict.fromkeys(range(8), 0.0)
    values = {
        "even": (0.2, 0.1, 0.2, 0.1, 0.2, 0.1, 0.2, 0.1),
        "odd": (-0.1, -0.1, -0.11, -0.1, -0.1, -0.12, -0.1, -0.9),
    }
    found = {}
    for name, deltas in values.items():
        compared = compare(dict(enumerate(deltas)), nothing)
        assert compared is not None
        found[name] = Metric("x", "x"), compared
    judged = judge(found, {})
    assert all(finding.is_significant for finding in judged.values())
    assert [finding.is_skewed for finding in judged.values()] == [False, True]
    assert judged["odd"].as_json()["false_alarms"] == judged["odd"].false_alarms


@pytest.mark.slow
def test_null_studies_of_eight_cells_and_two_metrics() -> None:
    """A small part of benchmarks/false_alarms.py: normal, and with the skewness of the committed studies."""
    normal, recorded = simulated(300)
    assert normal.rate <= 0.05 + 4 * normal.error
    assert recorded.rate <= recorded.stated + 4 * recorded.error
    assert normal.looking <= 0.05 + 4 * normal.looking_error
    assert recorded.looking <= recorded.stated + 4 * recorded.looking_error
    assert recorded.stated > 0.05
