"""`sweep NAME --try`: what becomes small, what stays apart, and how long a whole run is said to take."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from realm_lab.cli import main
from realm_lab.core.files import read_json
from realm_lab.params.load import flatten
from realm_lab.runner.plan import StudyPlan, plan_study
from realm_lab.runner.try_out import STEPS, _seconds, _small
from tests.runner.conftest import PARAMETERS, leave

Planned = Callable[..., StudyPlan]
AXES = """
baseline: {pretrain.steps: 600, pretrain.masking: salient_span}
axes: {pretrain.steps: [600, 200, 400], pretrain.masking: [salient_span, random_token]}
set: {launch.threads: 1, finetune.steps: 2}
"""


def test_cells_stay_different_where_all_of_them_are_small(planned: Planned, tmp_path: Path) -> None:
    plan, path = planned(AXES), tmp_path / "small.yaml"
    path.write_text(json.dumps(_small(plan)))
    again = plan_study(path, tmp_path, params_path=PARAMETERS)
    sizes = {run.cell: flatten(run.params) for run in again.runs}
    assert [cell.name for cell in again.cells] == [cell.name for cell in plan.cells]
    assert [values["pretrain.steps"] for values in sizes.values()] == [STEPS + 2] * 2 + [STEPS] * 2 + [STEPS + 1] * 2
    assert {values["finetune.steps"] for values in sizes.values()} == {2}, "not more than a whole run has"
    assert {values["evaluate.questions"] for values in sizes.values()} == {12}
    assert {values["launch.threads"] for values in sizes.values()} == {1}
    assert len({run.run_key for run in again.runs}) == len(again.runs) == 6, "one seed"


def test_a_small_study_has_the_preset_of_its_study(planned: Planned, tmp_path: Path) -> None:
    study, path = "preset: toy\nbaseline: warm\ncells: {warm: {system: warm_start}}\n", tmp_path / "small.yaml"
    path.write_text(json.dumps(_small(planned(study))))
    (run,) = plan_study(path, tmp_path, params_path=PARAMETERS).runs
    assert run.params.preset == "toy"


def test_a_whole_run_takes_what_its_parts_took(planned: Planned, tmp_path: Path) -> None:
    """A small pre-training of ten seconds: 1 s around it, four steps of 1 s, one refresh of 3 s, two evaluations."""
    whole = "baseline: a\ncells: {a: {set: {pretrain.steps: 100, pretrain.refresh.interval_steps: 10}}}\n"
    tried = planned(whole.replace("100", "4").replace("10}", "2}")).runs[0]
    run = planned(whole).runs[0]
    folder = leave(tmp_path, tried, "pretrain", "COMPLETE", wall_seconds=10.0)
    times = {0: 100.0, 1: 102.0, 2: 103.0, 3: 107.0, 4: 108.0}  # each step ends; the refresh is in the third
    rows = [{"step": step, "time": time, "loss": 1.0, "refreshes": step > 2} for step, time in times.items() if step]
    rows = [{"step": 0, "time": 100.0, "utility": 1.0}, *rows, {"step": 4, "time": 109.0, "utility": 1.0}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    around, step, evaluation, refresh = 10 - 4 - 2, 1.0, 1.0, 3.0
    evaluations = 1 + 100 / run.params.evaluate.interval_steps
    expected = around + 100 * step + evaluations * evaluation + (100 / 10 - 1) * refresh
    assert _seconds("pretrain", run, tried, tmp_path / "runs") == pytest.approx(expected)


@pytest.mark.slow
def test_a_tried_study_leaves_the_project_its_corpus_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(PARAMETERS, tmp_path / "params.yaml")
    (tmp_path / "experiments").mkdir()
    study = "question: Does it run?\nseeds: [0, 1]\nbaseline: warm\ncells: {warm: {system: warm_start}}\n"
    (tmp_path / "experiments" / "mine.yaml").write_text(study)
    assert main(["--root", str(tmp_path), "sweep", "mine", "--try"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^warm: a whole run takes about [\d.]+ s \(prepare [\d.]+ s, warm-start ", out, re.MULTILINE)
    assert re.search(r"^mine, 2 runs: about [\d.]+ s of work is left", out, re.MULTILINE)
    tried = read_json(tmp_path / "runs" / "try" / "reports" / "mine" / "summary.json")
    assert [run["seed"] for run in tried["runs"]] == [0]
    assert not (tmp_path / "reports").exists()
    assert len(list(tmp_path.glob("runs/stages/*"))) == len(list(tmp_path.glob("runs/corpora/*"))) == 1
    assert not (tmp_path / "runs" / "studies").exists()
