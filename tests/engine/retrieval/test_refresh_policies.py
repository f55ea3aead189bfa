"""Decisions of refresh policies; training/test_refreshed_index.py tests when a new index comes into use."""

import sys
from pathlib import Path
from types import SimpleNamespace

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


@pytest.mark.parametrize("interval", [1, 7, 59, 100])
def test_interval(interval: int) -> None:
    assert asked(Refresh(interval_steps=interval), takes=9) == list(range(interval, STEPS, interval))


def test_schedule() -> None:
    settings = Refresh(policy={"name": "schedule", "intervals": [[0, 4], [10, 3], [20, 0], [41, 100]]})
    assert asked(settings) == [4, 8, 10, 13, 16, 19, 41]


@pytest.mark.parametrize(("takes", "expected"), [(0, [5, 10, 20, 25, 35, 40, 50, 55]), (12, [5, 20, 35, 50])])
def test_drift_asks_below_the_bound_and_not_while_one_is_under_way(takes: int, expected: list[int]) -> None:
    overlaps = {step: 0.5 if step % 15 else 0.8 for step in range(STEPS)}  # at 15, 30, 45 just enough
    assert asked(Refresh(policy={"name": "drift", "overlap": 0.8}, interval_steps=5), overlaps, takes) == expected


@pytest.mark.parametrize("pairs", [None, [], [[5, 5]], [[0, 5], [9, 1], [9, 2]], [[0, 5, 6]], [[0, -1]]])
def test_a_wrong_schedule_is_refused(pairs: list[list[int]] | None) -> None:
    options = {} if pairs is None else {"intervals": pairs}
    with refused(parameter="pretrain.refresh.policy.intervals"):
        check_refresh(Refresh(policy={"name": "schedule", **options}))


def test_a_map_that_never_comes_is_refused() -> None:
    check_refresh(Refresh(policy={"name": "map", "every_steps": 9}, interval_steps=10))
    with refused(parameter="pretrain.refresh.policy"):
        check_refresh(Refresh(policy={"name": "map", "every_steps": 10}, interval_steps=10))


OWN = """
from realm_lab.errors import UserError
from realm_lab.engine.params.sections import Section
class First(Section):
    first: int = 8
class Doubling:
    def __init__(self, settings, options: First):
        self.first = options.first
    def wants_refresh(self, now):
        return now.step >= self.first and now.step.bit_count() == 1
class Nothing:
    def __init__(self, settings):
        pass
class Untyped:
    def __init__(self, settings, options):
        pass
class DecidesAlone(Doubling):
    def wants_refresh(self):
        return True
class Undecided(Doubling):
    def wants_refresh(self, now):
        return self.second
class Refuses(Doubling):
    def wants_refresh(self, now):
        raise UserError("give it a schedule")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    (tmp_path / "my_refresh.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return SimpleNamespace()


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("sometimes", "'sometimes'"),
        ("my_refresh:Nothing", "no method wants_refresh"),
        ("my_refresh:DecidesAlone", "DecidesAlone.wants_refresh' takes (), but it is called with (now)"),
        ("my_refresh:Undecided", "AttributeError in my_refresh.py, line 22"),
        ("my_refresh:Untyped", "'options' has no type"),
    ],
)
def test_what_is_no_policy_is_refused_in_a_line(policy: str, says: str) -> None:
    with refused(says, parameter="pretrain.refresh.policy"):
        check_refresh(Refresh(policy=policy))


@pytest.mark.usefixtures("own")
def test_an_error_of_a_users_code_is_kept() -> None:
    with refused("give it a schedule", path="", parameter=""):
        check_refresh(Refresh(policy="my_refresh:Refuses"))


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(("options", "steps"), [({}, [8, 16, 32]), ({"first": 2}, [2, 4, 8, 16, 32])])
def test_a_policy_of_a_user_has_options(options: dict[str, int], steps: list[int]) -> None:
    assert asked(Refresh(policy={"name": "my_refresh:Doubling", **options})) == steps
    with refused(parameter="pretrain.refresh.policy.last"):
        check_refresh(Refresh(policy={"name": "my_refresh:Doubling", "last": 3}))
