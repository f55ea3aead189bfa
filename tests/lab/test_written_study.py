"""Studies that a command line describes: `sweep --axis ... --name NAME` and `pretrain --name NAME --set ...`."""

import json
import shutil
from pathlib import Path

import pytest

from realm_lab.cli import main
from realm_lab.lab.written_study import write_axes
from realm_lab.records.yaml_file import read_yaml
from tests.lab.conftest import PARAMETERS

AXES = ("--axis", "pretrain.masking=salient_span,tests.tiny_masks:slowly", "--axis", "pretrain.candidates=6,4")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(PARAMETERS, tmp_path / "params.yaml")
    return tmp_path


def test_one_line_writes_the_file_of_every_combination_and_is_that_study(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--root", str(project), "sweep", *AXES, "--seeds", "2", "--set", "pretrain.steps=3", "--dry-run", "--json"]
    assert main([*asked, "--name", "mine"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert [(run["seed"], run["overrides"]["pretrain.steps"]) for run in planned] == [(0, 3), (1, 3)] * 4
    first, last = planned[0]["overrides"], planned[-1]["overrides"]
    assert (first["pretrain.masking"], first["pretrain.candidates"]) == ("salient_span", 6)
    assert (last["pretrain.masking"], last["pretrain.candidates"]) == ("tests.tiny_masks:slowly", 4)
    assert not (project / "experiments" / "mine.yaml").exists(), "a plan that is only printed"
    given = {"pretrain.steps": 3}
    assert write_axes(project, "mine", AXES[1::2], 2, None, given) == (project / "experiments" / "mine.yaml", True)
    assert main(["--root", str(project), "sweep", "mine", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == planned
    assert main([*asked, "--name", "mine"]) == 0  # the same line again is the same study
    assert (project / "experiments" / "mine.yaml").exists()
    assert main([*asked, "--axis", "pretrain.batch_size=4,8", "--name", "mine"]) == 2
    assert "is another study" in capsys.readouterr().err


def test_a_budget_takes_seeds_until_decided(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--root", str(project), "sweep", "--axis", "pretrain.steps=3,4", "--name", "mine", "--budget", "90 min"]
    assert main([*asked, "--dry-run", "--json"]) == 0
    assert {run["seed"] for run in json.loads(capsys.readouterr().out)} == {0, 1, 2, 3}
    path, _ = write_axes(project, "mine", ["pretrain.steps=3,4"], None, None, {}, "90 min")
    assert read_yaml(path)["seeds"] == {"until": "decided", "within": "90 min"}


def test_without_a_number_of_seeds_those_of_the_parameters_are_run(project: Path) -> None:
    write_axes(project, "mine", ["pretrain.steps=3,4"], None, None, {"preset": "smoke"})
    written = read_yaml(project / "experiments" / "mine.yaml")
    assert (written["preset"], written["seeds"], written["baseline"]) == ("smoke", [0], {"pretrain.steps": 3})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--axis", "pretrain.stepz=3,4", "--name", "mine"], "--axis: unknown parameter 'pretrain.stepz'"),
        (["--axis", "pretrain.steps", "--name", "mine"], "--axis pretrain.steps: write it as KEY=VALUE,VALUE"),
        (["--axis", "pretrain.steps=3", "--set", "pretrain.steps=4", "--name", "mine"], "given twice"),
        (["--axis", "pretrain.steps=3", "--name", "default"], "choose another"),
        (["--axis", "pretrain.steps=3,4"], "give --name"),
        (["mine", "--axis", "pretrain.steps=3,4", "--name", "mine"], "no other study"),
        (["--axis", "pretrain.steps=3,4", "--name", "mine", "--budget", "2h", "--seeds", "4"], "leave out --seeds"),
        (["mine", "--budget", "2h"], "until: decided, within"),
        ([], "name a study, or give --axis"),
        (["--axis", "pretrain.steps=3,4", "--name", "mine", "--cancel"], "name only the study"),
    ],
)
def test_a_wrong_line_leaves_no_file(
    project: Path, capsys: pytest.CaptureFixture[str], line: list[str], message: str
) -> None:
    assert main(["--root", str(project), "sweep", *line]) == 2
    assert message in capsys.readouterr().err
    assert not list(project.glob("experiments/*.yaml"))


def cells(text: str, project: Path, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The cells whose runs a dry run lists."""
    assert main(["--root", str(project), "sweep", "mine", "--cells", text, "--dry-run", "--json"]) == 0
    return {run["cell"] for run in json.loads(capsys.readouterr().out)}


def test_a_part_of_a_study_is_named_by_its_cells(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_axes(project, "mine", AXES[1::2], None, None, {})
    first, last = "masking=salient_span,candidates=6", "masking=slowly,candidates=4"
    assert cells(last, project, capsys) == {last}
    assert cells(f"{last},{first}", project, capsys) == {first, last}
    assert main(["--root", str(project), "sweep", "mine", "--cells", f"{last},masking=slow", "--dry-run"]) == 2
    assert "no variant 'masking=slow'; did you mean 'masking=slowly,candidates=6'" in capsys.readouterr().err
