"""The simulated power that is stored against the simulation."""

import pytest

from realm_lab.evidence.statistics.paired import FEWEST_SEEDS
from realm_lab.evidence.statistics.power import SIMULATED_SEEDS, simulated_effect, simulated_effects


def test_stored_power_is_that_of_the_simulation() -> None:
    effects = simulated_effects()
    assert [*effects] == [str(seeds) for seeds in range(FEWEST_SEEDS, SIMULATED_SEEDS + 1)]
    tests = (1, 2, 7, 64)
    assert [effects["6"][n - 1] for n in tests] == [simulated_effect(6, n) for n in tests]


@pytest.mark.slow
def test_stored_power_of_each_number_of_seeds_is_that_of_the_simulation() -> None:
    for seeds, effects in simulated_effects().items():
        every_fourth = range(int(seeds) % 4, len(effects), 4)
        assert [effects[n] for n in every_fourth] == [simulated_effect(int(seeds), n + 1) for n in every_fourth]
