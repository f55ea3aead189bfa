"""The environments that realm_lab supports: every bound of pyproject.toml is tested."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from realm_lab.cli import doctor
from tests.evidence.report.synthetic import make_study

REPOSITORY = Path(__file__).resolve().parents[1]
TEXT = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
PROJECT: dict[str, Any] = tomllib.loads(TEXT)["project"]
EXTRAS = PROJECT["optional-dependencies"]
LISTS = (PROJECT["dependencies"], EXTRAS["engine"], EXTRAS["platform"], EXTRAS["faiss"])
WANTED = [Requirement(line) for lines in LISTS for line in lines]


def lowest(requirement: Requirement) -> Version:
    [bound] = [one for one in requirement.specifier if one.operator == ">="]
    return Version(bound.version)


def test_the_lowest_versions_are_those_that_are_tested() -> None:
    lines = (REPOSITORY / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    pinned = {canonicalize_name(name): Version(version) for name, version in pairs}
    differing = {str(one): pinned.get(canonicalize_name(one.name)) for one in WANTED}
    assert {text: pin for text, pin in differing.items() if pin != lowest(Requirement(text))} == {}


def test_all_name_the_same_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = SpecifierSet(PROJECT["requires-python"])
    pythons = {f"3.{minor}" for minor in range(9, 20)}
    supported = {python for python in pythons if python in allowed}
    listed = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d", line)}
    assert listed == supported
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    check = re.search(r"^SUPPORTED := (.*)$", makefile, re.M)
    assert check is not None
    for python in sorted(pythons):
        version = (3, int(python.partition(".")[2]))
        monkeypatch.setattr(sys, "version_info", (*version, 0))
        with pytest.raises(SystemExit) as left:
            exec(check[1])
        assert (not left.value.code) == (python in supported)
        assert (doctor._python().state == "OK") == (python in supported)
        monkeypatch.undo()


@pytest.mark.slow
@pytest.mark.drill
def test_the_evidence_alone_is_small_and_judges(tmp_path: Path) -> None:
    """A new environment without the engine: the installation, and the commands that people run on tables."""
    package, reports = tmp_path / "package", tmp_path / "project" / "reports"
    shutil.copytree(REPOSITORY / "realm_lab", package / "realm_lab", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, package)
    python = tmp_path / "environment" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(python.parents[1])], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    pip += ["--no-compile", "-c", str(REPOSITORY / "constraints.txt")]  # Python compiles what these commands import
    installed = subprocess.run([*pip, str(package)], capture_output=True, text=True, check=False)
    if "No matching distribution" in installed.stderr or "connection" in installed.stderr.lower():
        pytest.skip(f"packages cannot be had: {installed.stderr.splitlines()[-1]}")
    assert installed.returncode == 0, installed.stderr
    files = [path for path in python.parents[1].rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < 500e6
    assert not [*python.parents[1].glob("lib/*/site-packages/torch")]

    shutil.copytree(REPOSITORY / "reports" / "reference" / "masking", reports / "masking")
    before = {path.name: path.read_bytes() for path in (reports / "masking").iterdir() if path.is_file()}
    study = make_study(tmp_path / "project" / "runs")
    sides = [f"{study.name}/{cell.name}" for cell in study.cells[:2]]

    def realm_lab(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [str(python), "-m", "realm_lab", *words]
        return subprocess.run(
            command, cwd=tmp_path / "project", env=environment, capture_output=True, text=True, check=False
        )

    table = reports / "masking" / "results.csv"
    judged = realm_lab("verdict", str(table), "--metric", "exact_match", "--baseline", "salient_span", "--json")
    assert json.loads(judged.stdout)["metrics"], judged.stderr
    assert realm_lab("report", "masking").returncode == 0
    assert {name: (reports / "masking" / name).read_bytes() for name in before} == before
    for words in (["compare", *sides], ["status"], ["status", "--runs"], ["--root", str(REPOSITORY), "claims"]):
        done = realm_lab(*words)
        assert done.returncode == 0, done.stderr
    refused = realm_lab("pretrain", "--preset", "smoke")
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False), refused.stderr
    assert "pip install 'realm_lab[engine]'" in refused.stderr.splitlines()[-1]
