"""Runs on_device.py in a separate process, on the pretend accelerator or on a real device."""

import ast
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

TESTS = Path(__file__).with_name("on_device.py")
FUNCTIONS = [each for each in ast.parse(TESTS.read_text()).body if isinstance(each, ast.FunctionDef)]
NAMES = [each.name for each in FUNCTIONS if each.name.startswith("test_")]


def outcomes(device: str, names: Sequence[str], folder: Path, problems: Sequence[str]) -> dict[str, list[str]]:
    """Return the text of each test that had one of the `problems` (elements of JUnit's XML), by its name without
    parameters."""
    report = folder / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}"]
    chosen = [f"{TESTS}::{name}" for name in names]
    environment = os.environ | {"REALM_LAB_TEST_DEVICE": device}
    subprocess.run([sys.executable, "-m", "pytest", *options, *chosen], check=False, env=environment)
    found: dict[str, list[str]] = {name: [] for name in names}
    ran = set()
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.attrib["name"].partition("[")[0]
        ran.add(name)
        for problem in (one for kind in problems for one in case.iter(kind)):
            found.setdefault(name, []).append(f"{case.attrib['name']}: {problem.text}")
    assert ran == set(names), found
    return found
