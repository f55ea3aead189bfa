"""What `--dry-run` says: states, differences, time."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from realm_lab.errors import UserError
from realm_lab.runner.plan import StudyPlan, record_study
from realm_lab.runner.preview import Times, check_budget, plan_as_json, show_plan, time_in_words, wall_seconds
from realm_lab.runner.tasks import tasks_of
from tests.runner.test_state import STAGES, leave

STUDY = """
baseline: realm
cells:
  realm:
  warm: {system: warm_start}
  long: {set: {pretrain.steps: 24}}
launcher: {local: {processes: 2}}
"""
SECONDS = {"warm_start": 48.0, "pretrain": 120.0, "finetune": 24.0, "evaluate": 6.0}
STEPS = {"warm_start": 24, "pretrain": 12, "finetune": 12, "evaluate": 6}


@pytest.fixture
def plan(planned: Callable[..., StudyPlan], tmp_path: Path) -> StudyPlan:
    """A study of which realm, seed 0, is finished."""
    made = planned(STUDY)
    record_study(made, tmp_path)
    done = made.of("realm")[0]
    leave(tmp_path, done, "prepare", "COMPLETE", wall_seconds=10.0)
    for stage in STAGES:
        leave(tmp_path, done, stage, "COMPLETE", wall_seconds=SECONDS[stage], total_steps=STEPS[stage])
    return made


def shown(plan: StudyPlan, root: Path) -> str:
    text = io.StringIO()
    show_plan(plan, root, Console(file=text, width=160))
    return text.getvalue()


def test_json_has_exactly_the_fixed_keys(plan: StudyPlan, tmp_path: Path) -> None:
    found = plan_as_json(plan, tmp_path)
    assert [(entry["cell"], entry["seed"], entry["state"]) for entry in found] == [
        ("realm", 0, "COMPLETE"),
        ("realm", 1, "PENDING"),
        ("warm", 0, "PENDING"),
        ("warm", 1, "PENDING"),
        ("long", 0, "PENDING"),
        ("long", 1, "PENDING"),
    ]
    assert all(list(entry) == ["study", "cell", "seed", "run_key", "state", "overrides"] for entry in found)
    assert found[4]["overrides"] == {"pretrain.steps": 24}
    assert found[4]["run_key"] == plan.of("long")[0].run_key


def test_the_table_says_what_differs_and_what_is_there(plan: StudyPlan, tmp_path: Path) -> None:
    text = shown(plan, tmp_path)
    assert "pretrain.steps = 24" in text
    assert "system = warm_start" in text
    assert "1 complete, 1 pending" in text
    assert "6 runs of 3 cells" in text


def test_time_is_scaled_by_steps(plan: StudyPlan, tmp_path: Path) -> None:
    times = Times(tmp_path)
    long, realm = plan.of("long")[0].params, plan.of("realm")[0].params
    assert times.stage("pretrain", realm) == pytest.approx(120.0)
    assert times.stage("pretrain", long) == pytest.approx(240.0)
    assert times.stage("evaluate", long) == pytest.approx(6.0)
    assert times.stage("prepare", long) == pytest.approx(10.0)
    tasks = tasks_of(plan, tmp_path)
    # seed 0: warm 30, long 270; seed 1: beginning 58, realm 150, warm 30, long 270
    assert wall_seconds(tasks, times, 1) == pytest.approx(808.0)
    two = wall_seconds(tasks, times, 2)
    assert two is not None
    assert 808.0 / 2 <= two <= 808.0 - 270.0
    assert wall_seconds(tasks, times, 100) == pytest.approx(58.0 + 270.0)
    assert "about 13 min for one worker" in shown(plan, tmp_path)


def test_nothing_to_go_by_is_unknown(planned: Callable[..., StudyPlan], tmp_path: Path) -> None:
    assert "time unknown" in shown(planned(STUDY), tmp_path)


def test_another_preset_says_nothing_of_this_one(plan: StudyPlan, tmp_path: Path) -> None:
    other = plan.of("realm")[0].params.model_copy(update={"preset": "toy"})
    assert Times(tmp_path).stage("pretrain", other) is None


def test_a_plan_above_its_budget_is_refused(plan: StudyPlan, planned: Callable[..., StudyPlan], tmp_path: Path) -> None:
    check_budget(planned(STUDY + "budget: {device_hours: 0.23}\n"), tmp_path)
    with pytest.raises(
        UserError, match=r"line 11: budget: what is to do takes about 0\.2 device hours, more than 0\.2;"
    ):
        check_budget(planned(STUDY.rstrip() + "\nbudget:\n\n  device_hours: 0.2\n"), tmp_path)


@pytest.mark.parametrize(
    ("seconds", "words"), [(None, "unknown"), (0.0, "-"), (45.0, "45 s"), (720.0, "12 min"), (12600.0, "3.5 h")]
)
def test_times_in_words(seconds: float | None, words: str) -> None:
    assert time_in_words(seconds) == words
