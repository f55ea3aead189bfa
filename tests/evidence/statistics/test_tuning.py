"""The expected best of n trials."""

import itertools
import statistics

import pytest

from realm_lab.evidence.statistics.tuning import expected_best


@pytest.mark.parametrize("values", [[0.3, 0.1, 0.7, 0.7, 0.2], [0.5], [1.0, 1.0, 0.0, -2.0]])
def test_it_is_the_mean_of_the_best_so_far_over_all_orders(values: list[float]) -> None:
    orders = list(itertools.permutations(values))
    found = [statistics.fmean(max(order[:n]) for order in orders) for n in range(1, len(values) + 1)]
    assert expected_best(values) == pytest.approx(found)
    assert expected_best(values)[-1] == max(values)
