"""The environments that realm_lab supports: every bound of pyproject.toml has a reason, and is tested."""

from __future__ import annotations

import re
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

REPOSITORY = Path(__file__).resolve().parents[1]
TEXT = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
PROJECT: dict[str, Any] = tomllib.loads(TEXT)["project"]
EXTRAS = PROJECT["optional-dependencies"]
WANTED = [Requirement(line) for line in [*PROJECT["dependencies"], *EXTRAS["platform"], *EXTRAS["faiss"]]]


def lowest(requirement: Requirement) -> Version:
    [bound] = [one for one in requirement.specifier if one.operator == ">="]
    return Version(bound.version)


def test_every_bound_has_a_reason() -> None:
    for requirement in WANTED:
        name = re.escape(requirement.name)
        assert re.search(rf'"{name}>=[^"]*"[\],]*  # \w', TEXT), f"{requirement}: no reason on its line"
    assert re.search(r"^requires-python = .*  # \w", TEXT, re.M)


def test_the_lowest_versions_are_those_that_are_tested() -> None:
    lines = (REPOSITORY / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    pinned = {canonicalize_name(name): Version(version) for name, version in pairs}
    differing = {str(one): pinned.get(canonicalize_name(one.name)) for one in WANTED}
    assert {text: pin for text, pin in differing.items() if pin != lowest(Requirement(text))} == {}


def test_the_newest_versions_are_allowed() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    versions = {canonicalize_name(name): version for name, version in pinned.items()}
    assert [str(one) for one in WANTED if versions[canonicalize_name(one.name)] not in one.specifier] == []


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
        code = f"import sys; sys.version_info = {version}; {check[1]}"
        assert (subprocess.run([sys.executable, "-c", code], check=False).returncode == 0) == (python in supported)
        monkeypatch.setattr(sys, "version_info", (*version, 0))
        assert (doctor._python().state == "OK") == (python in supported)
        monkeypatch.undo()
