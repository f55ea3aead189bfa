"""`realm-lab demo`: the study that comes with the package is complete, answers, and can be reported."""

import json
from pathlib import Path

import pytest

import realm_lab
from realm_lab.cli.parser import main
from realm_lab.runner.demo import FOLDER, QUESTION
from realm_lab.tracking.study_record import (
    StudyCell,
    StudyRecord,
    StudyRun,
    read_study_record,
    study_folder,
    write_study_record,
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo")
    assert main(["--root", str(root), "demo"]) == 0
    return root


@pytest.mark.slow
def test_the_demo_answers_its_question(project: Path) -> None:
    reply = realm_lab.load_run("demo/realm-s50", project).ask(QUESTION)
    assert reply.answer == "dukdub"
    assert reply.candidates[0].utility > 1


@pytest.mark.slow
def test_the_demo_is_a_finished_study(project: Path) -> None:
    results = realm_lab.results("demo", project).set_index("cell")
    assert results.loc["realm", "exact_match"] > results.loc["warm_start", "exact_match"] + 0.4
    assert main(["--root", str(project), "report", "demo"]) == 0
    assert (project / "reports" / "demo" / "report.md").exists()
    assert main(["--root", str(project), "demo", "what is the capital of vovzib ?"]) == 0  # a second time


def test_another_study_of_that_name_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = (StudyCell("mine", "mine", "realm", {}),)
    mine = StudyRecord("demo", "?", "mine", cells, (0,), (StudyRun("mine", 0, "f" * 12, "realm-s0-ffffffffffff"),))
    write_study_record(tmp_path / "runs", mine)
    assert main(["--root", str(tmp_path), "demo"]) == 2
    assert "study.json" in capsys.readouterr().err
    assert read_study_record(study_folder(tmp_path / "runs", "demo") / "study.json") == mine


def test_the_demo_is_small_and_names_no_machine() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4 * 2**20
    for path in FOLDER.rglob("status.json"):
        assert json.loads(path.read_text(encoding="utf-8"))["host"] == ""
