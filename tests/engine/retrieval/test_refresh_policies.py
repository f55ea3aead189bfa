"""Decisions of refresh policies; training/test_refreshed_index.py tests when a new index comes into use."""

import pytest

from realm_lab.engine.params.sections import Refresh
from realm_lab.engine.retrieval.refresh_policies import Progress, check_refresh, refresh_policy
from tests.factories.errors import refused

STEPS = 60


def asked(settings: Refresh, overlaps: dict[int, float] | None = None, takes: int = 0) -> list[int]:
    """The steps at which a policy asks; a refresh is under way for `takes` steps."""
    policy, found = refresh_policy(settings), list[int]()
    checked: list[int] = []
    for step in range(1, STEPS):

        def overlap(step: int = step) -> float:
            checked.append(step)
            return (overlaps or {})[step]

        under_way = sum(made + takes > step for made in found)
        if policy.wants_refresh(Progress(step, under_way, overlap)):
            found.append(step)
    assert bool(checked) == (overlaps is not None)  # a check has a cost: only a policy that needs one asks
    return found


@pytest.mark.parametrize("interval", [7, 59])
def test_interval(interval: int) -> None:
    assert asked(Refresh(interval_steps=interval), takes=9) == list(range(interval, STEPS, interval))


@pytest.mark.parametrize(("takes", "expected"), [(0, [5, 10, 20, 25, 35, 40, 50, 55]), (12, [5, 20, 35, 50])])
def test_drift_asks_below_the_bound_and_not_while_one_is_under_way(takes: int, expected: list[int]) -> None:
    overlaps = {step: 0.5 if step % 15 else 0.8 for step in range(STEPS)}  # at 15, 30, 45 just enough
    assert asked(Refresh(policy={"name": "drift", "overlap": 0.8}, interval_steps=5), overlaps, takes) == expected


def test_a_map_that_never_comes_is_refused() -> None:
    check_refresh(Refresh(policy={"name": "map", "every_steps": 9}, interval_steps=10))
    with refused(parameter="pretrain.refresh.policy"):
        check_refresh(Refresh(policy={"name": "map", "every_steps": 10}, interval_steps=10))


class Nothing:
    def __init__(self, settings: Refresh): ...


def test_what_is_no_policy_is_refused_in_a_line() -> None:
    with refused("no method wants_refresh", parameter="pretrain.refresh.policy"):
        check_refresh(Refresh(policy=f"{__name__}:Nothing"))
