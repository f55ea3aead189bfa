"""Without the extras `platform` and `faiss` only their features fail, with one line that names the extra."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from realm_lab.cli import doctor
from realm_lab.records.files import read_json
from tests import tiny

REPOSITORY = Path(__file__).resolve().parents[1]
MISSING = ("dvc", "faiss", "mlflow", "optuna", "sqlalchemy", "submitit")  # the packages of the extras
COMPILER = ("torch._dynamo", "sympy")  # torch's compiler: its import takes a second, and a plain run is without it
STUDY = "question: What?\nseeds: [0]\nbaseline: one\ncells: {one: {}}\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder in which Python finds none of the packages, nor do the processes that it starts."""
    block(tmp_path, *MISSING)
    (tmp_path / "params.yaml").write_bytes(tiny.PARAMETERS.read_bytes())
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "tiny.yaml").write_text(STUDY)
    return tmp_path


def block(project: Path, *modules: str) -> None:
    (project / "without").mkdir(exist_ok=True)
    (project / "without" / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({modules}))\n")


def realm_lab(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (project / "without", REPOSITORY)))
    environment = os.environ | {"PYTHONPATH": path}
    command = [sys.executable, "-m", "realm_lab", *words]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def refused(done: subprocess.CompletedProcess[str], package: str, extra: str) -> None:
    last = done.stderr.splitlines()[-1]  # before it a slow machine prints what starts
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert package in last
    assert f"pip install 'realm_lab[{extra}]'" in last


@pytest.mark.slow
def test_a_run_needs_none_of_them(project: Path) -> None:
    block(project, *MISSING, *COMPILER)
    done = realm_lab(project, "sweep", "tiny", "--launcher", "inline")
    assert done.returncode == 0, done.stderr
    assert read_json(project / "reports" / "tiny" / "summary.json")
    refused(realm_lab(project, "pretrain", "--set", "pretrain.search.backend=faiss_flat"), "faiss-cpu", "faiss")


@pytest.mark.slow
def test_one_line_names_the_extra(project: Path) -> None:
    refused(realm_lab(project, "init", "new"), "dvc", "platform")
    assert not (project / "new").exists()
    (project / "runs").mkdir()
    refused(realm_lab(project, "mirror"), "mlflow", "platform")
    (project / "any.yaml").write_text("question: Which?\nseeds: [0]\nspace: {pretrain.batch_size: {low: 1, high: 9}}\n")
    refused(realm_lab(project, "sweep", "any.yaml"), "optuna", "platform")


def test_the_blocked_packages_are_those_of_the_extras() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {Requirement(text).name.lower() for name in ("platform", "faiss") for text in extras[name]}
    assert {name.removesuffix("-cpu") for name in wanted} == set(MISSING)


@pytest.mark.slow
def test_slurm_needs_submitit(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "sbatch").write_text("#!/bin/sh\nexit 0\n")
    (project / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(project), prepend=os.pathsep)
    refused(realm_lab(project, "sweep", "tiny", "--launcher", "slurm"), "submitit", "platform")
    assert not (project / "runs" / "studies").exists()


def test_the_doctor_takes_them_for_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_versions", lambda package: ["1"] * (package == "torch"))
    found = {finding.subject: finding for finding in doctor._packages() if finding.subject != "git"}
    assert {name: finding.state for name, finding in found.items()} == {
        "PyTorch": "OK",
        **dict.fromkeys(("FAISS", "MLflow", "DVC", "Optuna", "submitit"), "note"),
    }
    assert all(finding.remedy.startswith("pip install ") for name, finding in found.items() if name != "PyTorch")
