"""`realm-lab logs`: the history of a run, from its folders."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from realm_lab.lab import progress
from realm_lab.lab.logs import show_log
from realm_lab.lab.study import StudyPlan
from realm_lab.lab.tasks import tasks_of
from realm_lab.lab.wanted import record_study
from realm_lab.records.files import read_json
from realm_lab.records.metric_log import MetricLog
from realm_lab.records.run import Run, read_run
from realm_lab.records.state import StageState, StageStates
from tests.lab.conftest import leave


@pytest.fixture
def run(planned: Callable[..., StudyPlan], tmp_path: Path) -> Run:
    """A recorded run whose warm start is complete."""
    plan = planned("baseline: realm\ncells: {realm: }\n")
    record_study(plan, tmp_path)
    leave(tmp_path, plan.runs[0], "prepare", "COMPLETE", started_at=100.0, finished_at=103.0, wall_seconds=3.0)
    leave(tmp_path, plan.runs[0], "warm_start", "COMPLETE", started_at=103.0, finished_at=107.0, wall_seconds=4.0)
    return plan.runs[0]


def record(run: Run, root: Path) -> Run:
    return read_run(root / "runs" / run.name / "run.json")


def told(run: Run, root: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show_log(root, record(run, root), follow=False)
    return [line[21:] for line in capsys.readouterr().out.splitlines()]


def test_a_log_tells_steps_losses_refreshes_evaluations_and_flags(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [{"name": "collapsed", "text": "collapsed: it retrieves nothing"}]
    folder = leave(tmp_path, run, "pretrain", "FAILED", total_steps=40, error="ValueError: why", flags=flags)
    log = MetricLog(folder / "metrics.jsonl")
    for step, values in (
        (0, {"retrieval_utility": 0.25, "unheard_of": 1.0}),
        (10, {"loss": 3.5, "refreshes": 0.0}),
        (20, {"loss": 2.5, "refreshes": 2.0}),
        (20, {"probe_gold_utility": 0.125}),
    ):
        log.log(step, values)
    rows = [row | {"time": 200.0 + row["step"] / 2} for row in log.rows()]
    log.path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = told(run, tmp_path, capsys)
    assert lines[1] == "prepare: complete after 3.0 s"
    first = lines.index("pretrain step 0 of 40: evaluation: retrieval_utility 0.25")
    assert lines[first + 1 : first + 6] == [
        "pretrain step 10 of 40: loss 3.5",
        "pretrain step 20 of 40: loss 2.5, 0.5 s per step, index refreshed 2 times",
        "pretrain step 20 of 40: watch: probe_gold_utility 0.125",
        "pretrain: FLAGGED: collapsed: it retrieves nothing",
        "pretrain: failed: ValueError: why",
    ]
    assert lines[-1].startswith("evaluate: pending")


def test_what_a_failed_process_printed_comes_last(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = leave(tmp_path, run, "pretrain", "FAILED", error="ValueError: why")
    printed = tmp_path / "runs" / "studies" / "study" / "logs" / f"{folder.name}.txt"
    printed.parent.mkdir()
    printed.write_text("Traceback\nValueError: why\n")
    (printed.parent / "pretrain-0123456789ab.txt").write_text("printed by the processes of another run\n")
    show_log(tmp_path, record(run, tmp_path), follow=False)
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if "another run" in line]
    assert lines[-3:] == [
        f"printed by its processes ({printed}):",
        "Traceback",
        "ValueError: why",
    ]


def test_a_log_that_is_followed_says_each_line_once_until_the_run_has_ended(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = leave(tmp_path, run, "pretrain", "RUNNING", total_steps=2, attempt=1)
    steps = iter((1, 2))

    def advance(seconds: float) -> None:
        step = next(steps)
        MetricLog(folder / "metrics.jsonl").log(step, {"loss": 1.0})
        if step == 2:
            leave(tmp_path, run, "pretrain", "FAILED", total_steps=2, error="stop")

    monkeypatch.setattr("time.sleep", advance)
    show_log(tmp_path, record(run, tmp_path), follow=True)
    lines = [line[21:] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if ": loss" in line] == [
        "pretrain step 1 of 2: loss 1",
        next(line for line in lines if line.startswith("pretrain step 2 of 2: loss 1")),
    ]
    assert lines.count("prepare: complete after 3.0 s") == 1
    assert lines[-1].endswith("stop")
    assert read_json(folder / "status.json")["state"] == "FAILED"


def test_a_trial_that_ends_with_pretraining_is_not_followed_further(
    planned: Callable[..., StudyPlan], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned("baseline: realm\ncells: {realm: }\n")
    record_study(replace(plan, design=replace(plan.design, last_stage="pretrain")), tmp_path)
    leave(tmp_path, run, "pretrain", "COMPLETE")
    monkeypatch.setattr("time.sleep", pytest.fail)
    show_log(tmp_path, record(run, tmp_path), follow=True)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_running_stage_says_where_it_is_with_its_last_loss(
    planned: Callable[..., StudyPlan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_terminal: bool,
) -> None:
    monkeypatch.setattr(progress, "SECONDS_TO_FIRST_LINE", 0.0)
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
    with shown:
        shown.show({task.name: StageState("PENDING")})  # no line, so the next look has the first one
        shown.show({task.name: StageState("RUNNING")})
    said, title = capsys.readouterr().err, "warm-start, seed 0 (shared by 2 variants)"
    assert task.title == f"prepare, {title}"
    if is_terminal:
        assert f"{title}, loss 3.250" in said
        assert "30/90" in said
    else:
        assert said == f"{title}: step 30 of 90, loss 3.250, 2.0 s/step, 2.0 min left\n"
