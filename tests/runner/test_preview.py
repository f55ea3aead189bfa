"""What `--dry-run` says: states, differences, time."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from realm_lab.runner.plan import StudyPlan, record_study
from realm_lab.runner.preview import Times, plan_as_json, show_plan, time_in_words
from tests.runner.conftest import STAGES, leave

STUDY = """
baseline: realm
cells:
  realm:
  warm: {system: warm_start}
  long: {set: {pretrain.steps: 24}}
launcher: {local: {processes: 2}}
tune: {parameter: pretrain.retriever.learning_rate, values: [0.0005, 0.002], seeds: [1]}
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
    assert [(entry["cell"], entry["seed"], entry["state"]) for entry in found[:3]] == [
        ("realm", 0, "COMPLETE"),
        ("realm", 1, "PENDING"),
        ("warm", 0, "PENDING"),
    ]
    assert all(list(entry) == ["study", "cell", "seed", "run_key", "state", "overrides"] for entry in found)
    assert found[4]["overrides"] == {"pretrain.steps": 24}
    assert found[4]["run_key"] == plan.of("long")[0].run_key
    assert (found[-1]["cell"], found[-1]["overrides"]["pretrain.steps"]) == ("long,learning_rate=0.002", 24)


def test_the_table_says_what_differs_what_is_there_and_how_long(plan: StudyPlan, tmp_path: Path) -> None:
    text = shown(plan, tmp_path)
    for part in (
        "pretrain.steps = 24",
        "system = warm_start",
        "1 pending, 1 complete",
        "8 runs of 3 cells, 2 of them of the grid",
        "grid: pretrain.retriever.learning_rate = 0.002",
        "seeds 1; the best by cloze_exact_match",
        "about 20 min, 10 min shared by 2",  # warm 2 * 30, long 3 * 270, beginning 58, realm 2 * 150, in all 1228 s
    ):
        assert part in text, text


def test_time_is_scaled_by_steps_and_of_the_same_preset(plan: StudyPlan, tmp_path: Path) -> None:
    times = Times(tmp_path)
    long, realm = plan.of("long")[0].params, plan.of("realm")[0].params
    assert [times.stage("pretrain", params) for params in (realm, long)] == [pytest.approx(120.0), pytest.approx(240.0)]
    assert (times.stage("evaluate", long), times.stage("prepare", long)) == (6.0, 10.0)
    assert times.stage("pretrain", realm.model_copy(update={"preset": "toy"})) is None


def test_nothing_to_go_by_is_unknown(planned: Callable[..., StudyPlan], tmp_path: Path) -> None:
    assert "time unknown" in shown(planned(STUDY), tmp_path)


@pytest.mark.parametrize(
    ("seconds", "words"), [(None, "unknown"), (0.0, "-"), (45.0, "45 s"), (720.0, "12 min"), (12600.0, "3.5 h")]
)
def test_times_in_words(seconds: float | None, words: str) -> None:
    assert time_in_words(seconds) == words
