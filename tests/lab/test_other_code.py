"""Edits of the engine after a run: results of other code are named, and computed again or accepted on request."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from realm_lab.engine.systems.identity import plan_run
from realm_lab.engine.training.pretrain import PretrainTask
from realm_lab.errors import UserError
from realm_lab.lab.other_code import settle_code
from realm_lab.records.code import CodeReader
from realm_lab.records.code_record import EDITED, read_code
from realm_lab.records.digests import check_folder
from realm_lab.records.files import read_json
from tests import tiny
from tests.factories.interleaved import meanwhile
from tests.lab.conftest import leave
from tests.limits import HANG_SECONDS

REPOSITORY = Path(__file__).parents[2]
STUDY = """\
question: Does it matter?
baseline: realm
seeds: [0]
cells:
  realm: {}
  warm_start: {system: warm_start}
"""
MASKS = """
import importlib
from pathlib import Path

from my_helper import FIRST

later = importlib.import_module("my_" + "later")


def some(request, generator):
    return [FIRST + later.MORE + int(Path("my_number.txt").read_text().split()[0])]
"""
EQUATION = "return (candidate_log_probs_BK + reader_log_probs_BK).logsumexp(dim=1)"
# edited file -> the stages that reach it
EDITS = {
    "realm_lab/engine/models/realm.py": {"pretrain", "finetune", "evaluate"},  # Eq. 1
    "realm_lab/engine/worlds/world.py": {"prepare"},
    "realm_lab/engine/training/warm_start.py": {"warm_start"},
    "realm_lab/engine/training/pretrain.py": {"pretrain"},
    "realm_lab/engine/evaluation/overlap.py": {"evaluate"},
    "my_helper.py": {"pretrain", "evaluate"},  # of a custom masking scheme
    "my_later.py": {"pretrain", "evaluate"},  # which it imports by a name that is not written
    "my_number.txt": {"pretrain", "evaluate"},  # which it reads
    "my_plugin.py": {"prepare", "warm_start", "pretrain", "finetune", "evaluate"},  # could change anything
}
OPENED = ("my_later.py", "my_number.txt")  # known from code.json only
STAGES = ["prepare", "warm_start", "pretrain", "finetune", "evaluate"]
LOOK = """
import contextlib, io, json, sys
from pathlib import Path
from realm_lab import cli
from realm_lab.engine.params.load import load
from realm_lab.evidence.report.code_notes import code_notes
from realm_lab.evidence.report.frames import load_study
from realm_lab.lab.effective import stage_digests
from realm_lab.lab.plan import default_plan

def said(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(list(words))
    return code, out.getvalue(), err.getvalue()

root = Path(".")
print(json.dumps({
    "sweep": said("sweep", "study"),
    "dry_run": said("sweep", "study", "--dry-run"),
    "dry_run_json": said("sweep", "study", "--dry-run", "--json"),
    "status": json.loads(said("status", "study", "--json")[1]),
    "report": code_notes(load_study(root / "runs", "study"))[1],
    "dvc": stage_digests(default_plan(load(root / "params.yaml")).runs, root / "runs"),
}))
"""


class Project:
    """A copy of the package in a folder with a study, run in separate processes."""

    def __init__(self, folder: Path):
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / "realm_lab", folder / "realm_lab", ignore=ignored)
        parameters = (REPOSITORY / "tests" / "tiny.yaml").read_text() + "plugins: [my_plugin]\n"
        (folder / "params.yaml").write_text(parameters.replace("masking: salient_span", "masking: my_masks:some"))
        (folder / "experiments").mkdir()
        (folder / "experiments" / "study.yaml").write_text(STUDY)
        (folder / "my_masks.py").write_text(MASKS)
        (folder / "my_helper.py").write_text("FIRST = 1\n")
        (folder / "my_later.py").write_text("MORE = 0\n")
        (folder / "my_number.txt").write_text("0\n")
        (folder / "my_plugin.py").touch()

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(self.folder)}
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
        )

    def sweep(self, *flags: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "realm_lab", "sweep", "study", "--launcher", "inline", *flags)

    def look(self) -> dict[str, Any]:
        done = self.python("-c", LOOK)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def edit(self, name: str) -> None:
        path = self.folder / name
        text = path.read_text()
        half = text.replace(EQUATION, EQUATION.replace("return ", "return 0.5 * "))
        path.write_text(half if half != text else f"{text}EDITED = 1\n")

    def results(self, stage: str) -> dict[str, Any]:
        return {path.parent.name: read_json(path) for path in self.folder.glob(f"runs/stages/{stage}-*/results.json")}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project after a sweep."""
    made = Project(tmp_path_factory.mktemp("edited"))
    done = made.sweep()
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.slow
def test_each_edit_of_code_is_named_everywhere_and_that_of_a_comment_nowhere(project: Project) -> None:
    unedited = project.look()
    assert unedited["sweep"][0] == 0
    assert (unedited["status"]["other_code"], unedited["report"]) == ("", [])
    for name, stages in EDITS.items():
        before = (project.folder / name).read_text()
        project.edit(name)
        module, found = name if name in OPENED else name.removesuffix(".py").replace("/", "."), project.look()
        (project.folder / name).write_text(before)
        code, _, error = found["sweep"]
        assert (code, module in error, len(error.splitlines())) == (2, True, 1), name
        assert module in found["status"]["other_code"]
        assert any(module in line for line in found["report"])
        assert (module in found["dry_run"][1], module in found["dry_run_json"][2]) == (True, True)
        changes = [run["other_code"] for run in found["status"]["runs"]]
        assert {stage for by_stage in changes for stage in by_stage if module in by_stage[stage]} == stages, name
        moved = {stage for stage, digest in found["dvc"].items() if digest != unedited["dvc"][stage]}
        first = min(STAGES.index(stage) for stage in stages)
        assert moved - {"report"} == {*STAGES[first:]}, name  # DVC: and all after it
    for name in ("realm_lab/engine/models/embedder.py", "my_later.py"):
        with (project.folder / name).open("a") as file:
            file.write("# a comment\n")
    found = project.look()
    assert found["sweep"][0] == 0
    assert (found["status"], found["dvc"], found["report"]) == (unedited["status"], unedited["dvc"], [])


@pytest.mark.slow
def test_other_code_is_computed_again_or_accepted(project: Project) -> None:
    for name in EDITS:
        project.edit(name)
    before, made = project.results("pretrain"), {path.name for path in (project.folder / "runs" / "stages").iterdir()}
    stopped = project.sweep()
    assert (stopped.returncode, project.results("pretrain")) == (2, before)
    assert project.sweep("--fresh").returncode == 0
    assert {path.name for path in (project.folder / "runs" / "stages").iterdir()} == made, "keys say nothing of code"
    after = project.results("pretrain")
    assert after.keys() == before.keys()
    [(old, new)] = [(before[name]["marginal_log_likelihood"], after[name]["marginal_log_likelihood"]) for name in after]
    assert new != pytest.approx(old), "Eq. 1 is another one"

    project.edit("realm_lab/engine/evaluation/overlap.py")
    again = project.results("evaluate")
    assert project.sweep("--accept").returncode == 0
    assert project.results("evaluate") == again
    found = project.look()
    assert (found["sweep"][0], found["status"]["other_code"]) == (0, "")
    assert [("realm_lab.engine.evaluation.overlap" in line, "evaluate" in line) for line in found["report"]] == [
        (True, True)
    ]
    report = (project.folder / "reports" / "study" / "report.md").read_text()
    assert "realm_lab.engine.evaluation.overlap" in report.replace("\\", "")


class Edited(CodeReader):
    """The code of today, in which one module has changed."""

    def reached(self, roots: Iterable[str]) -> dict[str, str]:
        return {**super().reached(roots), "realm_lab.engine.training.warm_start": "edited"}


def test_a_stage_goes_on_from_other_code_only_if_that_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.prepare(tiny.params(), tmp_path)
    warm_start = tiny.run("warm_start", tiny.params(), tmp_path)
    for name in ("code_reader", "new_reader"):
        monkeypatch.setattr(f"realm_lab.records.code_record.{name}", lambda runs: Edited())
    with pytest.raises(UserError, match=r"realm_lab\.engine\.training\.warm_start"):
        tiny.run("pretrain", tiny.params(), tmp_path)
    assert tiny.stage_run("pretrain", tiny.params(), tmp_path).status().state == "PENDING"
    with tiny.steps_done(PretrainTask, killed_at=9):
        tiny.run("pretrain", tiny.params({"launch.other_code": "accept"}), tmp_path)
    record = read_code(warm_start.path)
    assert record is not None
    assert [one.modules for one in record.accepted] == [{"realm_lab.engine.training.warm_start": "edited"}]
    tiny.run("pretrain", tiny.params(), tmp_path)  # from its checkpoint: that change is known
    assert len((read_code(warm_start.path) or record).accepted) == 1


def test_two_processes_that_accept_at_once_leave_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = plan_run(tiny.params({"launch.other_code": "accept"}), "warm_start", 0)
    folder = leave(tmp_path, run, "warm_start", "COMPLETE")
    monkeypatch.setattr("realm_lab.records.code_record.code_reader", lambda runs: Edited())
    with meanwhile("code.json", lambda: settle_code([run], tmp_path)):
        settle_code([run], tmp_path)
    check_folder(folder)
    record = read_code(folder)
    assert record is not None
    assert len(record.accepted) == 1


def test_code_that_is_edited_while_a_process_runs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.prepare(tiny.params(), tmp_path)
    readers = iter([CodeReader(), Edited()])  # before the work, and at its end
    monkeypatch.setattr("realm_lab.records.code_record.new_reader", lambda runs: next(readers))
    warm_start = tiny.run("warm_start", tiny.params(), tmp_path)
    assert "realm_lab.engine.training.warm_start" in capsys.readouterr().err
    record = read_code(warm_start.path)
    assert record is not None
    assert [name for name, found in record.modules.items() if found == EDITED] == [
        "realm_lab.engine.training.warm_start"
    ]
    monkeypatch.setattr("realm_lab.records.code_record.new_reader", lambda runs: CodeReader())
    with pytest.raises(UserError, match=r"changed since this was computed \(realm_lab\.engine\.training\.warm_start\)"):
        tiny.run("pretrain", tiny.params(), tmp_path)
    monkeypatch.setattr("realm_lab.records.code_record.new_reader", lambda runs: Edited())
    with pytest.raises(UserError, match=r"edited since this command started: realm_lab\.engine\.training\.warm_start"):
        tiny.run("warm_start", tiny.params({"warm_start.reader.steps": 3}), tmp_path)
