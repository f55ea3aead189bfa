"""A study with forks: shared steps of pre-training are done once, in any order; errors name the line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from realm_lab.cli import main
from realm_lab.core.files import read_json
from realm_lab.errors import UserError
from realm_lab.runner.housekeeping import unneeded
from realm_lab.runner.plan import StudyPlan
from realm_lab.runner.preview import cost_of_forks
from realm_lab.runner.sweep import part_of
from realm_lab.runner.tasks import tasks_of
from realm_lab.tracking.run_dir import StageRun, read_run_records
from realm_lab.tracking.state import StageStates
from realm_lab.tracking.study_record import read_study_record, study_folder
from realm_lab.training.pretrain import PretrainTask
from tests import tiny
from tests.runner.conftest import leave

STUDY = """
baseline: realm
cells:
  late: {fork: {from: realm, step: 8}, set: {pretrain.null_document: "off"}}
  early: {fork: {from: realm, step: 4}, set: {pretrain.null_document: "off"}}
  realm:
  same: {fork: {from: realm, step: 8}}
"""
TUNE = ("finetune", "evaluate")


def test_shared_steps_are_tasks_of_their_own(planned: Callable[..., StudyPlan], tmp_path: Path) -> None:
    plan = part_of(planned(STUDY), (), seeds=1)
    tasks = tasks_of(plan.runs, StageStates(tmp_path / "runs"))
    assert [(task.stages, task.cells) for task in tasks] == [
        (("prepare", "warm_start", "pretrain@4"), ("realm", "late", "early", "same")),
        (("pretrain@8",), ("realm", "late", "same")),
        (("pretrain", *TUNE), ("early",)),
        (("pretrain", *TUNE), ("realm",)),
        (("pretrain", *TUNE), ("late",)),
        (("pretrain", *TUNE), ("same",)),
    ]
    assert [task.after for task in tasks[1:]] == [(tasks[0].name,)] * 2 + [(tasks[1].name,)] * 3
    assert all(task.params == plan.of(task.cells[0])[0].params for task in tasks[2:])
    assert tasks[1].title == "pretrain to step 8, seed 0 (shared by 3 cells)"
    assert "28 steps of pre-training instead of 48 (58 %)" in cost_of_forks(plan)  # 12 + 4 + 8 + 4 of 4 * 12


def test_a_parent_that_is_done_is_trained_again_only_to_the_step(
    planned: Callable[..., StudyPlan], tmp_path: Path
) -> None:
    plan = part_of(planned(STUDY), (), seeds=1)
    for stage in ("prepare", "warm_start", "pretrain", *TUNE):
        leave(tmp_path, plan.of("realm")[0], stage, "COMPLETE")
    leave(tmp_path, plan.of("late")[0], "pretrain", "COMPLETE")
    tasks = tasks_of([run for run in plan.runs if run.cell != "same"], StageStates(tmp_path / "runs"))
    assert [task.stages for task in tasks] == [TUNE, ("pretrain@4", "pretrain", *TUNE)]
    alone = tasks_of(plan.of("same"), StageStates(tmp_path / "runs"))
    assert [task.stages for task in alone] == [("pretrain@8", "pretrain", *TUNE)]


@pytest.mark.slow
@pytest.mark.parametrize("first", ["", "early"])  # all at once; or first only a fork
def test_every_step_is_done_once(write: Callable[..., Path], tmp_path: Path, first: str) -> None:
    project = tmp_path / "project"
    (project / "experiments").mkdir(parents=True)
    (project / "params.yaml").write_text(tiny.PARAMETERS.read_text())
    write(STUDY, head="question: When?\nseeds: [0]\n").rename(project / "experiments" / "forks.yaml")
    command = ["sweep", "forks", "--launcher", "inline", "--root", str(project)]
    with tiny.steps_done(PretrainTask) as done:
        if first:
            main([*command, "--cells", first])
        assert main(command) == 0
    assert sorted(done) == sorted([*range(12), *range(8, 12), *range(4, 12), *range(8, 12)])
    runs = {run.cell: run.run for run in read_study_record(study_folder(project / "runs", "forks") / "study.json").runs}
    records = {record.name: record for record in read_run_records(project / "runs")}
    folders = {cell: project / "runs" / records[run].stages["pretrain"] for cell, run in runs.items()}
    results = {cell: tiny.outcome(StageRun(path, "pretrain"))[1:] for cell, path in folders.items()}
    assert results["same"] == results["realm"]
    assert results["late"][0] != results["realm"][0]
    assert read_json(project / "reports" / "forks" / "summary.json")["confounds"] == []
    assert not unneeded(project), "a state stays as long as a fork of it"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("early: {fork: {from: realm, step: 12}}", 6),
        ("early: {fork: {from: relm, step: 4}}", 6),
        ("early: {fork: {from: realm, steps: 4}}", 6),
        ("early: {fork: {step: 4}}", 6),
        ("early: {fork: {from: realm, step: 4}, system: warm_start}", 6),
        ("early: {fork: {from: realm, step: 4}, set: {pretrain.batch_size: 9}}", 6),
        ("early: {fork: {from: realm, step: 4}, set: {warm_start.reader.steps: 9}}", 6),
        ("early: {set: {fork: {step: 4}}}", 6),
        ("early: {fork: {from: realm, step: 4}}\n  later: {fork: {from: early, step: 5}}", 7),
        ("early: {fork: {from: warm, step: 4}}\n  warm: {system: warm_start}", 6),
    ],
)
def test_errors_name_file_and_line(planned: Callable[..., StudyPlan], change: str, line: int) -> None:
    study = f"baseline: realm\ncells:\n  realm:\n  {change}\n"
    with pytest.raises(UserError) as caught:
        planned(study)
    assert f"study.yaml, line {line}:" in str(caught.value)
