"""What `--dry-run` says: states and differences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from realm_lab.runner.plan import StudyPlan, record_study
from realm_lab.runner.preview import expected_time, plan_as_json, show_plan
from tests.runner.conftest import STAGES, leave

STUDY = """
baseline: realm
cells:
  realm:
  warm: {system: warm_start}
  long: {set: {pretrain.steps: 24}}
"""


@pytest.fixture
def plan(planned: Callable[..., StudyPlan], tmp_path: Path) -> StudyPlan:
    """A study of which realm, seed 0, is finished."""
    made = planned(STUDY)
    record_study(made, tmp_path)
    done = made.of("realm")[0]
    for stage in ("prepare", *STAGES):
        leave(tmp_path, done, stage, "COMPLETE")
    return made


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


def test_the_table_says_what_differs_and_what_is_there(
    plan: StudyPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_plan(plan, tmp_path)
    text = capsys.readouterr().out
    for part in (
        "pretrain.steps = 24",
        "system = warm_start",
        "1 pending, 1 complete",
        "6 runs of 3 cells; 6 tasks to do",
    ):
        assert part in text, text


def test_the_time_that_is_left_is_that_of_the_reference_runs(plan: StudyPlan, tmp_path: Path) -> None:
    assert expected_time(plan, tmp_path) == ""
    folder = tmp_path / "reports" / "reference" / "any"
    folder.mkdir(parents=True)
    realm, warm = plan.of("realm")[0].run_key, plan.of("warm")[0].run_key
    table = (
        f"study,cell,run_key,device_hours\nany,a,{realm},0.5\nany,b,{warm},0.25\nstudy,long,old,0.25\nany,realm,old,9\n"
    )
    (folder / "results.csv").write_text(table)
    # realm, seed 1: .5; warm: .25, and two thirds of it where the warm start is there; long: .25, and three quarters
    assert "(1.35 device hours for 5 runs, as in reports/reference)" in expected_time(plan, tmp_path)
