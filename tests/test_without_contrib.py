"""The core needs no plug-in: in an environment without realm_lab/contrib the pipeline runs, and only its commands are
gone."""

import csv
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from realm_lab.cli.parser import PLUGINS, build_parser
from tests import tiny

REPOSITORY = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment: every package of the current one, and realm_lab without contrib/ and
    entry points. The current interpreter would find contrib/ if realm_lab is installed as editable."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for path in (path for name in ("purelib", "platlib") for path in Path(sysconfig.get_path(name)).iterdir()):
        if "realm_lab" not in path.name and not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)
    shutil.copytree(REPOSITORY / "realm_lab", packages / "realm_lab", ignore=shutil.ignore_patterns("contrib"))
    found = folder / "bin" / "python"
    assert "No module named 'realm_lab.contrib'" in run(found, folder, "-c", "import realm_lab.contrib").stderr
    return found


def run(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([python, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_its_commands_are_absent(python: Path, tmp_path: Path) -> None:
    done = run(python, tmp_path, "-m", "realm_lab", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    absent = {name for name, target in project["entry-points"][PLUGINS].items() if ".contrib." in target}
    listed = set(re.findall(r"^  ([a-z][\w-]*)  ", done.stdout, re.M))
    assert absent
    assert listed
    assert not listed & absent
    assert {*build_parser().verbs()} - absent >= listed


def test_the_pipeline_runs_and_is_reported(python: Path, tmp_path: Path) -> None:
    own = tiny.PARAMETERS.read_text()
    for text, words in ((own, ["run"]), (own, ["report"]), ("preset: toy\n", ["run", "--dry-run"])):
        (tmp_path / "params.yaml").write_text(text)
        done = run(python, tmp_path, "-m", "realm_lab", *words)
        assert done.returncode == 0, done.stderr
    with (tmp_path / "reports" / "default" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["cell"], row["status"]) for row in rows} == {("realm", "COMPLETE"), ("warm_start", "COMPLETE")}
    assert all(0 <= float(row["exact_match"]) <= 1 for row in rows)
    assert (tmp_path / "reports" / "default" / "report.md").is_file()
