"""Staleness against a simulated trainer and builder, seconds against arithmetic done here."""

from __future__ import annotations

import math

import pytest

from realm_lab.errors import UserError
from realm_lab.planner.devices import devices, find_device
from realm_lab.planner.reckoning import Seconds, asynchronous, largest_part, synchronous


def simulated_ages(steps: int, interval: int, build_seconds: float, step_seconds: float) -> list[int]:
    """The age of the index at every step once it has been swapped twice: a builder with its own clock."""
    ages, index, swaps = [], 0, 0
    begun: tuple[int, float] | None = None  # step of the weights, time
    last = 0
    for step in range(steps):
        now = step * step_seconds
        if begun is not None and now >= begun[1] + build_seconds - 1e-9:
            index, begun, swaps = begun[0], None, swaps + 1
        if begun is None and step and step - last >= interval:
            begun, last = (step, now), step
        if swaps > 1:
            ages.append(step - index)
    return ages


@pytest.mark.parametrize(
    ("interval", "build_seconds", "step_seconds"), [(10, 2.0, 0.5), (10, 9.0, 0.5), (1, 0.3, 0.5), (7, 3.5, 0.5)]
)
def test_ages_are_those_of_a_simulation(interval: int, build_seconds: float, step_seconds: float) -> None:
    times = Seconds(step_seconds, 0.0, build_seconds, 1.0, 0.0)
    found = asynchronous(100_000, interval, times, 1, 1)
    ages = simulated_ages(10_000, interval, build_seconds, step_seconds)
    assert (min(ages), max(ages)) == (found.age_lowest, found.age_highest)
    assert sum(ages) / len(ages) == pytest.approx(found.age_mean, abs=0.05)
    assert found.age_mean_seconds == found.age_mean * step_seconds


def test_stopping_to_refresh() -> None:
    found = synchronous(101, 10, Seconds(0.5, 0.0, 99.0, 5.0, 1.0), 4)
    assert (found.age_lowest, found.age_mean, found.age_highest) == (0, 4.5, 9)
    assert found.share_of_time == 0.5
    assert found.hours == pytest.approx((101 * 0.5 + 10 * 5 + 5) / 3600)  # after 10, 20, ... 100, and the first
    assert (found.devices, found.device_hours) == (4, 4 * found.hours)


def test_a_trainer_beside_builders_only_takes_the_index_into_use() -> None:
    found = asynchronous(101, 10, Seconds(0.5, 0.0, 8.0, 5.0, 1.0), 4, 2)
    assert (found.refresh_seconds, found.interval_steps, found.age_lowest) == (8.0, 16, 16)
    assert found.share_of_time == pytest.approx(1 / 9)
    assert found.hours == pytest.approx((101 * 0.5 + 6 * 1 + 5) / 3600)
    assert found.devices == 6


def test_whole_shards_are_shared_out() -> None:
    assert largest_part(1000, 4) == 1000
    assert largest_part(4 * 65536, 4) == 65536
    assert largest_part(4 * 65536 + 1, 4) == 2 * 65536
    assert largest_part(13_353_718, 1) == 13_353_718
    assert largest_part(13_353_718, 8) == math.ceil(204 / 8) * 65536


def test_every_device_of_the_table_has_a_source() -> None:
    for name, device in devices().items():
        assert device.source
        assert 1e12 < device.operations("float32") < (device.matrix_operations["bfloat16"] or 1e15), name
        assert 1e10 < device.memory_bytes < 1e12
        assert 1e11 < device.bandwidth_bytes < 1e13
    assert find_device("h100").operations("bfloat16") == 989.4e12


def test_an_unknown_device_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"--device H10O: not in the table; the nearest is 'H100', all are A10, A100-"):
        find_device("H10O")


def test_a_device_without_bfloat16_says_so() -> None:
    with pytest.raises(UserError, match=r"--device V100: .* add --set model.precision=float32"):
        find_device("v100").operations("bfloat16")
