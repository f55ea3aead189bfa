"""Output of `--dry-run`: states, differences, and the remaining work; nothing is written."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from realm_lab.cli import main
from realm_lab.engine.params.load import flatten, load
from realm_lab.lab.plan import default_plan, plan_study
from realm_lab.lab.preview import expected_time
from realm_lab.lab.study import StudyPlan
from realm_lab.lab.try_out import STEPS, _seconds, _small
from realm_lab.lab.wanted import record_study
from realm_lab.records.files import read_json, write_json
from tests import tiny
from tests.factories.finished import finished
from tests.lab.conftest import PARAMETERS, leave
from tests.lab.made_search import SPACE, write_search

STUDY = """
baseline: realm
cells:
  realm:
  warm: {system: warm_start}
  long: {set: {pretrain.steps: 24}}
"""


@pytest.fixture
def plan(planned: Callable[..., StudyPlan], tmp_path: Path) -> StudyPlan:
    """A study with realm, seed 0, finished."""
    made = planned(STUDY)
    record_study(made, tmp_path)
    done = made.of("realm")[0]
    for stage in ("prepare", *tiny.STAGES):
        leave(tmp_path, done, stage, "COMPLETE")
    return made


def test_the_time_that_is_left_is_that_of_the_reference_runs(plan: StudyPlan, tmp_path: Path) -> None:
    assert expected_time(plan, plan.runs, tmp_path) == ""
    folder = tmp_path / "reports" / "reference" / "any"
    folder.mkdir(parents=True)
    realm, warm = plan.of("realm")[0].run_key, plan.of("warm")[0].run_key
    table = (
        f"study,cell,run_key,device_hours\nany,a,{realm},0.5\nany,b,{warm},0.25\nstudy,long,old,0.25\nany,realm,old,9\n"
    )
    (folder / "results.csv").write_text(table)
    # seed 0: two thirds of warm and three quarters of long, as the warm start is there; seed 1: realm with the shared
    # warm start, and the same of the others
    assert "(1.21 device hours for 5 runs, as in reports/reference)" in expected_time(plan, plan.runs, tmp_path)


def said(root: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Return the output of a command that runs nothing, without the blanks of its table."""
    assert main([*arguments, "--root", str(root), "--params", str(PARAMETERS), "--dry-run"]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_a_stage_says_what_it_would_do_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(tmp_path, capsys, "evaluate")
    assert lines[6:10] == [
        "2 runs of 2 variants; 3 tasks to do",
        "to do: prepare, warm-start, seed 0 (shared by 2 variants)",
        "to do: warm_start seed 0: finetune, evaluate",
        "to do: realm seed 0: pretrain, finetune, evaluate",
    ]
    assert list(tmp_path.iterdir()) == []
    for stage in ("prepare", "warm_start"):
        leave(tmp_path, default_plan(load(PARAMETERS)).runs[0], stage, "COMPLETE")
    lines = said(tmp_path, capsys, "pretrain")
    assert lines[4:6] == ["1 runs of 2 variants; 1 tasks to do", "to do: realm seed 0: pretrain"]


def test_a_search_says_where_it_looks_and_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_search(tmp_path, SPACE)
    how = "trials for retrieval_utility, at most 1 at a time, each with seeds [0]; there are:"
    lines = said(tmp_path, capsys, "sweep", str(path), "--set", "pretrain.retriever.warmup_steps=2")
    assert lines[2:] == [
        "pretrain.retriever.learning_rate 0.0005 {low: 0.0001, high: 0.01, log: true}",
        "pretrain.refresh.interval_steps 5 {low: 1, high: 9}",
        f"6 {how} none",
    ]
    assert not (tmp_path / "runs").exists()
    write_json(tmp_path / "runs/studies/search-mine/trials.json", {"trials": [{"state": "complete"}] * 2})
    assert said(tmp_path, capsys, "sweep", str(path))[-1] == f"6 {how} 2 complete"


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


def test_a_whole_run_takes_what_its_parts_took(planned: Planned, tmp_path: Path) -> None:
    """A small pre-training of ten seconds; its last three steps take 2 s each, with a refresh in the third, and
    an evaluation 1 s."""
    whole = "baseline: a\ncells: {a: {set: {pretrain.steps: 100, pretrain.refresh.interval_steps: 10}}}\n"
    tried = planned(whole.replace("100", "4").replace("10}", "2}")).runs[0]
    run = planned(whole).runs[0]
    folder = leave(tmp_path, tried, "pretrain", "COMPLETE", wall_seconds=10.0)
    times = {0: 100.0, 1: 102.0, 2: 103.0, 3: 107.0, 4: 108.0}  # each step ends; the refresh is in the third
    rows = [{"step": step, "time": time, "loss": 1.0, "refreshes": step > 2} for step, time in times.items() if step]
    rows = [{"step": 0, "time": 100.0, "utility": 1.0}, *rows, {"step": 4, "time": 109.0, "utility": 1.0}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert _seconds("pretrain", run, tried, tmp_path / "runs") == pytest.approx(
        10.0 + 96 * (2.0 + 1.0 / run.params.evaluate.interval_steps)
    )


def test_an_evaluation_embeds_the_passages_once(planned: Planned, tmp_path: Path) -> None:
    """20 of 320 questions and 4 of 12 sentences took 10 s: 6 s to search 980 passages, 1 s for the sentences, 2 s for
    the answers, and 0.5 s for BM25."""
    sizes = "{{evaluate.questions: {}, evaluate.cloze_sentences: {}}}"
    studies = [f"baseline: a\ncells: {{a: {{set: {sizes.format(*some)}}}}}\n" for some in ((9999, 90), (20, 4))]
    run, tried = (planned(study).runs[0] for study in studies)
    counts = {"questions_test": 320, "cloze_test": 12, "passages": 980}
    leave(tmp_path, tried, "prepare", "COMPLETE", {"counts": counts})
    folder = leave(tmp_path, tried, "evaluate", "COMPLETE", wall_seconds=10.0)
    rows = [{"step": step, "time": 100.0 + spent} for step, spent in enumerate((0.0, 6.0, 7.0, 9.0, 9.0, 9.5))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    finished(folder)
    more = 1.0 * (12 / 4 - 1) + 2.0 * (320 / 20 - 1)
    assert _seconds("evaluate", run, tried, tmp_path / "runs") == pytest.approx(10.0 + more)


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


def test_a_tried_study_has_the_preset_and_the_plug_ins_of_the_whole(planned: Planned) -> None:
    small = _small(planned("preset: toy\nplugins: [tests.tiny]\n" + STUDY))
    assert (small["preset"], small["plugins"]) == ("toy", ["tests.tiny"])
