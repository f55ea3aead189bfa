"""The tests against the code of others: multtest (R, Bioconductor), MNE, pingouin. Each is skipped if it is missing.
Debian has multtest as r-bioc-multtest; `pip install mne pingouin`. AdaStop's decisions come from its tutorial.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import realm_lab
from realm_lab.evidence.statistics.family import Kind
from realm_lab.evidence.statistics.paired import step_down_max_t
from realm_lab.evidence.statistics.power import equivalence_p

EXACT = 1e-12
FAMILIES = 200
# Returns of examples/walker1.csv and walker2.csv of AdaStop (Mathieu et al. 2023), five of each file
WALKER = {
    "PPO": (3683, 1576, 3908, 1452, 5177, 3384, 2359, 1625, 4151, 1700),
    "DDPG": (420, 640, 2338, 879, 737, 962, 1771, 546, 906, 1554),
    "SAC": (4291, 4551, 4670, 4697, 4074, 5453, 4989, 4618, 3955, 4135),
    "TRPO": (446, 1919, 1016, 757, 1769, 1031, 962, 696, 1818, 940),
}
MAX_T = """
suppressMessages(library(multtest))
for (path in list.files(pattern = "[.]csv$")) {
  deltas <- as.matrix(read.csv(path, header = FALSE))
  pairs <- nrow(deltas)
  values <- matrix(0, ncol(deltas), 2 * pairs)
  values[, seq(2, 2 * pairs, 2)] <- t(deltas)
  sink("/dev/null")
  found <- mt.maxT(values, rep(0:1, pairs), test = "pairt", side = "abs", B = 0)
  sink()
  cat(path, sprintf("%.17g", found$adjp[order(found$index)]), "\\n")
}
"""


def families(count: int) -> Iterator[np.ndarray]:
    """Differences [6 to 10 pairs, 2 to 8 tests], correlated and partly skewed, some with an effect."""
    for family in range(count):
        generator = np.random.default_rng([57, family])
        pairs, tests = generator.integers(6, 11), generator.integers(2, 9)
        deltas = generator.normal(size=(pairs, tests)) + generator.normal(size=(pairs, 1))
        deltas[:, ::3] = np.exp(deltas[:, ::3])
        yield deltas + generator.choice([0.0, 1.5], tests)


def step_down(deltas: np.ndarray) -> list[float]:
    return step_down_max_t([dict(enumerate(test)) for test in deltas.T])


@pytest.mark.slow
def test_step_down_p_against_multtest(tmp_path: Path) -> None:
    """`mt.maxT` with complete enumeration."""
    r = shutil.which("Rscript")
    if r is None or subprocess.run([r, "-e", "library(multtest)"], capture_output=True, check=False).returncode:
        pytest.skip("no r-bioc-multtest: apt-get install r-bioc-multtest")
    expected = {}
    for number, deltas in enumerate(families(FAMILIES)):
        np.savetxt(tmp_path / f"{number}.csv", deltas, "%.17g", ",")
        expected[f"{number}.csv"] = step_down(deltas)
    done = subprocess.run([r, "-e", MAX_T], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = {name: [float(p) for p in ps] for name, *ps in map(str.split, done.stdout.splitlines())}
    assert found.keys() == expected.keys()
    for name, ps in expected.items():
        assert found[name] == pytest.approx(ps, rel=0, abs=EXACT)


def test_p_against_mne() -> None:
    """Single-step max-T of each test and all smaller ones, from the largest statistic down, is the step-down.

    `n_permutations="all"` of MNE 1.13 leaves out one of the signs, so their number is given.
    """
    mne_stats = pytest.importorskip("mne.stats", reason="no mne: pip install mne")
    for deltas in families(FAMILIES):
        statistics = np.abs(deltas.mean(0) / deltas.std(0, ddof=1))
        rest, largest, expected = list(np.argsort(-statistics)), 0.0, {}
        while rest:
            single = mne_stats.permutation_t_test(deltas[:, rest], 2 ** (len(deltas) - 1), verbose="error")[1]
            largest = max(largest, single[0])
            expected[rest.pop(0)] = largest
        assert step_down(deltas) == pytest.approx([expected[test] for test in range(deltas.shape[1])], rel=0, abs=EXACT)


def test_equivalence_p_against_pingouin() -> None:
    pingouin = pytest.importorskip("pingouin", reason="no pingouin: pip install pingouin")
    for deltas in families(20):
        for test in deltas.T:
            for largest in (0.1, 1.0, 3.0):
                other = pingouin.tost(test, np.zeros(len(test)), bound=largest, paired=True)
                [expected] = other.filter(regex="^p.?val$").to_numpy()[0]
                assert equivalence_p(test, largest) == pytest.approx(expected, rel=0, abs=EXACT)


@pytest.mark.parametrize(
    ("baseline", "runs", "different"),
    [("PPO", 5, set()), ("PPO", 10, {"DDPG", "SAC", "TRPO"}), ("DDPG", 10, {"PPO", "SAC"})],
)
def test_the_decisions_of_adastop(baseline: str, runs: int, different: set[str]) -> None:
    """AdaStop is undecided about all after five runs, and only about DDPG and TRPO after ten."""
    rows = [
        {"cell": cell, "seed": run, "return": one}
        for cell, all_ in WALKER.items()
        for run, one in enumerate(all_[:runs])
    ]
    cells = realm_lab.verdict(rows, metric="return", baseline=baseline).metrics[0].cells[1:]
    kinds = {cell.cell: cell.finding.kind for cell in cells if cell.finding}
    assert len(kinds) == 3
    assert {name for name, kind in kinds.items() if kind in (Kind.LOWER, Kind.HIGHER)} == different
