"""`realm-lab demo`: the study that comes with the package is complete, answers, and can be reported."""

import shutil
from pathlib import Path

import pytest

import realm_lab
from docs.demo_study import main as main_of_demo
from realm_lab.cli.parser import main as cli
from realm_lab.lab.demo import FOLDER, QUESTION, install, planned
from realm_lab.lab.other_code import described, other_code
from realm_lab.records.files import read_json, write_text
from realm_lab.records.run import Run
from realm_lab.records.study import (
    StudyCell,
    StudyRecord,
    read_study_record,
    study_folder,
    write_study_record,
)

TINY = Path(__file__).parents[1] / "tiny.yaml"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo")
    assert cli(["--root", str(root), "demo"]) == 0
    return root


@pytest.mark.slow
def test_the_demo_answers_its_question(project: Path) -> None:
    reply = realm_lab.load_run("demo/realm-s50", project).ask(QUESTION)
    assert reply.answer == "dukdub"
    assert reply.candidates[0].utility > 1


@pytest.mark.slow
def test_the_present_code_trained_the_demo(project: Path) -> None:
    """Else comparisons with it would name other code. `make demo-study` trains it again, mostly to the same bits."""
    found = other_code(planned(project).runs, project)
    assert not found, described(found)


@pytest.mark.slow
def test_the_demo_is_a_finished_study(project: Path) -> None:
    results = realm_lab.results("demo", project).set_index("cell")
    assert results.loc["realm", "exact_match"] > results.loc["warm_start", "exact_match"] + 0.4
    assert cli(["--root", str(project), "report", "demo"]) == 0
    assert (project / "reports" / "demo" / "report.md").exists()
    assert cli(["--root", str(project), "demo", "what is the capital of vovzib ?"]) == 0  # a second time


@pytest.mark.slow
def test_made_by_one_command_its_stages_serve_other_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stages are whole, with the code that computed them: a study with one more cell trains only this cell."""
    folder, root = tmp_path / "demo", tmp_path / "project"
    cells = "question: q\nseeds: [50]\nbaseline: realm\ncells:\n  realm: {}\n  warm_start: {system: warm_start}\n"
    write_text(folder / "demo.yaml", cells)
    shutil.copy2(TINY, folder / "params.yaml")
    monkeypatch.setattr("realm_lab.lab.demo.FOLDER", folder)
    main_of_demo(tmp_path / "build")
    assert {read_json(path)["host"] for path in folder.rglob("status.json")} == {""}
    assert not [*folder.rglob("env.json")]
    install(root)
    before = {path.name for path in (root / "runs" / "stages").iterdir()}
    assert cli(["compare", "demo/realm", "demo/warm_start", "--root", str(root)]) == 0
    assert "other code" not in capsys.readouterr().out
    write_text(root / "experiments" / "more.yaml", f"{cells}  k: {{set: {{pretrain.candidates: 3}}}}\n")
    sweep = ["sweep", "more", "--root", str(root), "--params", str(TINY), "--launcher", "inline"]
    assert cli(sweep) == 0
    made = {path.name.partition("-")[0] for path in (root / "runs" / "stages").iterdir() if path.name not in before}
    assert made == {"pretrain", "finetune", "evaluate"}


def test_another_study_of_that_name_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = (StudyCell("mine", "mine", "realm", {}),)
    mine = StudyRecord("demo", "?", "mine", cells, (0,), (Run("mine", 0, "f" * 12, "realm-s0-ffffffffffff"),))
    write_study_record(tmp_path / "runs", mine)
    assert cli(["--root", str(tmp_path), "demo"]) == 2
    assert "study.json" in capsys.readouterr().err
    assert read_study_record(study_folder(tmp_path / "runs", "demo") / "study.json") == mine


def test_the_demo_is_small_and_names_no_machine() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8 * 2**20
    assert {read_json(path)["host"] for path in FOLDER.rglob("status.json")} == {""}
