"""The wheels for a machine without a network: its missing packages, and their requirements."""

import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks import wheels

NEEDS = {"alpha": ["beta>=2", "gamma; python_version < '3.12'", "delta; extra == 'more'"], "beta": ["torch"]}


def test_only_what_is_lacking_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(folder: Path, requirement: str, python: str, machine: str) -> Path:
        asked.append(requirement)
        name = Requirement(requirement).name
        path = folder / f"{name}-2-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            lines = "".join(f"Requires-Dist: {need}\n" for need in NEEDS.get(name, []))
            archive.writestr(f"{name}-2.dist-info/METADATA", f"Name: {name}\n{lines}")
        return path

    monkeypatch.setattr(wheels, "_download", download)
    wanted = [Requirement(text) for text in ("alpha", "torch>=2.11", "old>=3", "new>=3")]
    have = {"torch": "", "old": "2.9", "new": "3.1"}  # "" stands for any version
    found = wheels.download_lacking(tmp_path, wanted, have, "3.12", "x86_64")
    assert asked == ["alpha", "old>=3", "beta>=2"]
    assert [path.name.split("-")[0] for path in found] == ["alpha", "beta", "old"]
    assert [path.name.split("-")[0] for path in wheels.download_lacking(tmp_path, wanted, have, "3.11", "x86_64")] == [
        "alpha",
        "beta",
        "gamma",
        "old",
    ]
