"""What a sweep prints where there is no terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from realm_lab.runner import progress
from realm_lab.runner.plan import StudyPlan
from realm_lab.runner.tasks import tasks_of
from realm_lab.tracking.metric_log import MetricLog
from realm_lab.tracking.state import JobState, StageStates
from tests.runner.conftest import leave


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_running_stage_says_where_it_is_with_its_last_loss(
    planned: Callable[..., StudyPlan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_terminal: bool,
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setenv("FORCE_COLOR" if is_terminal else "NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    plan = planned("baseline: realm\ncells: {realm: , warm: {system: warm_start}}\n")
    [task, *_] = tasks_of(plan.runs, StageStates(tmp_path / "runs"))
    leave(tmp_path, plan.runs[0], "prepare", "COMPLETE")
    folder = leave(tmp_path, plan.runs[0], "warm_start", "RUNNING", step=30, total_steps=90, steps_per_second=0.5)
    for step, values in ((20, {"loss": 3.25}), (30, {"recall_at_5": 0.5})):
        MetricLog(folder / "metrics.jsonl").log(step, values)
    shown = progress.SweepProgress([task], tmp_path)
    assert shown.console.is_terminal == is_terminal
    with shown.bars:
        shown.update({task.name: JobState("RUNNING")})
    said, title = capsys.readouterr().err, "warm-start, seed 0 (shared by 2 cells)"
    assert task.title == f"prepare, {title}"
    if is_terminal:
        assert f"{title}, loss 3.250" in said
        assert "30/90" in said
    else:
        assert said == f"{title}: step 30 of 90, loss 3.250, 2.0 s/step, 2.0 min left\n"
