"""The browser, and a synthetic study that is made once and copied for each test that changes it."""

import shutil
from pathlib import Path

import pytest

from realm_lab.records.study import StudyRecord
from tests.evidence.report import synthetic
from tests.evidence.report.opened_page import browser

__all__ = ["browser"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyRecord]:
    """(project, study "table" of four cells and three seeds); not to be changed."""
    root = tmp_path_factory.mktemp("made")
    return root, synthetic.make_study(root / "runs")


@pytest.fixture
def study(tmp_path: Path, made: tuple[Path, StudyRecord]) -> StudyRecord:
    """A copy of the study `made` in tmp_path/runs, which a test may change."""
    shutil.copytree(made[0] / "runs", tmp_path / "runs")
    return made[1]


@pytest.fixture(autouse=True)
def small_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw figures small, since nobody looks at the figures of tests."""
    monkeypatch.setattr("realm_lab.evidence.report.figures.DOTS_PER_INCH", 30)
