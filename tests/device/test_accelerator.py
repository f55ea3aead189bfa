"""The pretend accelerator: on_device.py in a process of its own, each of its tests under its own name here."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.device import pretend

TESTS = Path(__file__).with_name("on_device.py")
FUNCTIONS = [each for each in ast.parse(TESTS.read_text()).body if isinstance(each, ast.FunctionDef)]
NAMES = [each.name for each in FUNCTIONS if each.name.startswith("test_")]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not pretend.has_compiler(), reason=f"no C++ compiler: {pretend.COMPILER} is not on PATH"),
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[str]]:
    """What each test said where it failed, by its name without parameters."""
    pretend.compiled()
    report = tmp_path_factory.mktemp("device") / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}"]
    subprocess.run([sys.executable, "-m", "pytest", *options, str(TESTS)], check=False)
    found: dict[str, list[str]] = {name: [] for name in NAMES}
    ran = set()
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.attrib["name"].partition("[")[0]
        ran.add(name)
        for problem in (*case.iter("failure"), *case.iter("error"), *case.iter("skipped")):
            found.setdefault(name, []).append(f"{case.attrib['name']}: {problem.text}")
    assert ran == set(NAMES), found
    return found


@pytest.mark.parametrize("name", NAMES)
def test_on_the_pretend_accelerator(outcomes: Mapping[str, list[str]], name: str) -> None:
    assert not outcomes[name], "\n".join(outcomes[name])
