"""Seeds until decided: no more false alarms than promised, the verdicts of the recorded studies with fewer runs."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from realm_lab.evidence.statistics.paired import sign_flip_p
from realm_lab.evidence.statistics.sequential import ALPHA, Decisions, Rule, decide
from realm_lab.records.files import read_json

Key = tuple[str, str]


def decided(tests: dict[Key, list[float]], rule: Rule, bounds: dict[Key, float] | None = None) -> Decisions[Key]:
    """The decisions about (metric, cell) -> differences, by the metric of the first test."""
    first = next(iter(tests))[0]
    return decide(tests, bounds or {}, {key: key[1] for key in tests}, [k for k in tests if k[0] == first], rule)


@pytest.mark.parametrize("most", [6, 7, 8])
def test_one_test_crosses_as_often_as_its_level_over_all_signs(most: int) -> None:
    """The exact level: every assignment of signs to the same sizes, each looked at after every seed until it stops."""
    sizes = np.random.default_rng(most).gamma(2.0, size=most)
    stops = [
        decided({("m", "cell"): list(sizes * signs)}, Rule(4, most)).differences["m", "cell"] <= ALPHA
        for signs in itertools.product((1, -1), repeat=most)
    ]
    assert 0 < np.mean(stops) <= ALPHA


def test_a_single_look_is_the_fixed_test() -> None:
    deltas = [0.3, 0.5, 0.4, -0.1, 0.2, 0.6, 0.4, 0.3]
    found = decided({("m", "cell"): deltas}, Rule(8, 8))
    assert found.differences["m", "cell"] == pytest.approx(sign_flip_p(deltas))


@pytest.mark.parametrize("study", ["table2", "masking"])
def test_recorded_studies_come_to_their_verdicts_with_fewer_runs(repository: Path, study: str) -> None:
    summary = read_json(repository / "reports" / "reference" / study / "summary.json")
    recorded = {
        (metric, cell): finding
        for metric, cells in summary["comparisons"].items()
        for cell, finding in cells.items()
        if not finding["exploratory"]
    }
    tests = {key: [one["deltas"][seed] for seed in sorted(one["deltas"], key=int)] for key, one in recorded.items()}
    bounds = {key: one["bound"] for key, one in recorded.items() if one["bound"]}
    found, seeds = decided(tests, Rule(4, 8), bounds), 8
    strongest = [key for key, one in recorded.items() if one["corrected_p"] == one["smallest_corrected_p"]]
    strongest = [key for key in strongest if key[0] == next(iter(tests))[0]]
    assert strongest
    assert all(found.differences[key] <= ALPHA for key in strongest)
    runs = max(found.wanted.values()) + sum(found.wanted.values())
    assert runs <= 0.9 * seeds * (1 + len(found.wanted))
    # seed by seed, with only the data that the round before asked for: the same, so a killed study decides the same
    known = dict.fromkeys(found.wanted, 0)
    while True:
        part = {key: tests[key][: known[key[1]]] for key in tests}
        now = decided(part, Rule(4, 8), bounds)
        if now.wanted == known:
            break
        known = {**known, **now.wanted}
    assert now == found


def test_a_decided_cell_takes_no_more_seeds_and_equivalence_decides_too() -> None:
    tests = {("m", "far"): [1.0] * 8, ("m", "near"): [0.001, -0.001] * 4, ("m", "noise"): [1.0, -0.9, 0.8, -1.1] * 2}
    found = decided(tests, Rule(4, 8), dict.fromkeys(tests, 0.1))
    assert found.stopped == {"far": 6, "near": 4}
    assert found.wanted == {"far": 6, "near": 4, "noise": 8}
    lacks = tests | {("m", "near"): [0.001, *[float("nan")] * 7]}
    assert decided(lacks, Rule(4, 8), dict.fromkeys(tests, 0.1)).stopped == {"far": 6}, "one value is no equivalence"
    waiting = decided({key: values[:5] for key, values in tests.items()}, Rule(4, 8), dict.fromkeys(tests, 0.1))
    assert (waiting.seeds, waiting.wanted) == (5, {"far": 6, "near": 4, "noise": 6})
