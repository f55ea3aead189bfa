"""Studies without any effect, eight cells times two metrics with eight seeds: how many have a false difference?

`python -m benchmarks.false_alarms` simulates 2,000 with normal differences, and 2,000 with the skewness of comparisons
of the committed studies, and prints the rates next to those that `realm-lab verdict --calibrate` states. The tests that
judge the studies are computed as in a report (`step_down_max_t`), one study at a time; and again with a look after each
seed from the fourth on (`seeds: {until: decided}`).
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from realm_lab.evidence.statistics.calibration import calibrate, skewed
from realm_lab.evidence.statistics.paired import step_down_max_t
from realm_lab.evidence.statistics.sequential import Rule, decide

REPORTS = Path(__file__).parents[1] / "reports" / "reference"
SEEDS, CELLS, METRICS, FIRST_LOOK = 8, 8, 2, 4
FAMILIES = 50  # drawn from the recorded comparisons


class Found(NamedTuple):
    """The share of studies with a false difference, and the rate `stated`: .05 for normal, or that of `calibrate`."""

    rate: float
    error: float
    looking: float  # the rate with a look after every seed
    looking_error: float
    stated: float


def recorded() -> list[np.ndarray]:
    """The differences of every committed comparison of eight seeds, exploratory ones too."""
    found = []
    for path in sorted(REPORTS.glob("*/summary.json")):
        for cells in json.loads(path.read_text(encoding="utf-8"))["comparisons"].values():
            found += [np.array([*one["deltas"].values()]) for one in cells.values() if one["n"] == SEEDS]
    return [deltas for deltas in found if np.ptp(deltas) > 0]


def simulated(studies: int) -> tuple[Found, Found]:
    """Simulate studies with normal differences, and studies with skewed ones; (normal, skewed)."""
    generator = np.random.default_rng(0)
    tests = CELLS * METRICS
    # half of a difference's variance comes from the baseline, since both cells vary equally
    normal = generator.normal(size=(studies, SEEDS, tests)) + generator.normal(size=(studies, SEEDS, 1))
    pool = recorded()
    drawn, stated = [], []
    for _ in range(FAMILIES):
        family = np.stack([pool[one] for one in generator.integers(0, len(pool), tests)], axis=1)
        drawn.append(skewed(family, studies // FAMILIES, generator))
        found = calibrate([dict(enumerate(map(float, column))) for column in family.T])
        assert found is not None
        stated.append(found.any.rate)
    return _judged(normal, 0.05), _judged(np.concatenate(drawn), float(np.mean(stated)))


def _judged(studies: np.ndarray, stated: float) -> Found:
    alarms = [min(step_down_max_t([dict(enumerate(test)) for test in study.T])) <= 0.05 for study in studies]
    return Found(*_rate(alarms), *_rate([_finds_by_looking(study) for study in studies]), stated)


def _finds_by_looking(study: np.ndarray) -> bool:
    """True if any look finds a difference. A cell is decided by its first metric, often as equivalent within two sd."""
    tests = {(number % METRICS, number // METRICS): list(map(float, test)) for number, test in enumerate(study.T)}
    first = [key for key in tests if key[0] == 0]
    bounds = {key: 2 * float(np.std(tests[key])) or 1.0 for key in first}
    found = decide(tests, bounds, {key: key[1] for key in tests}, first, Rule(FIRST_LOOK, SEEDS))
    return min(found.differences.values()) <= 0.05


def _rate(alarms: list[bool]) -> tuple[float, float]:
    rate = float(np.mean(alarms))
    return rate, math.sqrt(max(rate * (1 - rate), 1 / len(alarms)) / len(alarms))


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    for name, one in zip(("normal", "skewed"), simulated(size), strict=False):
        looking = f"with looks {one.looking:.3f} ± {one.looking_error:.3f}"
        print(f"{name}: {one.rate:.3f} ± {one.error:.3f}, {looking}, stated {one.stated:.3f}")
