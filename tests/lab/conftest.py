"""Study files written for a test, over the tiny parameters, and files of stages on disk."""

import json
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from realm_lab.engine.systems.identity import code_roots, kept_corpus_folder
from realm_lab.lab.plan import plan_study
from realm_lab.lab.study import StudyPlan
from realm_lab.records.code_record import CodeStates
from realm_lab.records.run import Run, stage_folder
from tests import tiny
from tests.evidence.report.opened_page import browser
from tests.factories.finished import finished
from tests.lab.fake_slurm import Fake
from tests.slurm_cluster.cluster import Cluster
from tests.slurm_cluster.project import joined

__all__ = ["browser"]

PARAMETERS = tiny.PARAMETERS
HEAD = "question: Does it matter?\nseeds: [0, 1]\n"


@pytest.fixture(scope="module", autouse=True)
def no_figures(undrawn: None) -> None:
    """Draw no figures: other tests look at the figures of a report."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """SLURM with two nodes."""
    with joined(Cluster(tmp_path_factory.mktemp("slurm"))) as running:
        yield running


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of a project, not made yet."""
    return tmp_path / "project"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake(tmp_path / "fake", monkeypatch)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """write(text, name) -> the study's file; two lines, a question and two seeds, go before the text."""

    def made(text: str, name: str = "study", head: str = HEAD) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(head + textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    return made


@pytest.fixture
def planned(write: Callable[..., Path], tmp_path: Path) -> Callable[..., StudyPlan]:
    """planned(text, **options) -> the plan of a study in the test's folder."""

    def made(text: str, name: str = "study", **options: object) -> StudyPlan:
        return plan_study(write(text, name), tmp_path, params_path=PARAMETERS, **options)  # type: ignore[arg-type]

    return made


def leave(root: Path, run: Run, stage: str, state: str, results: Any = None, **more: Any) -> Path:
    """Write the files of a stage in this state: status.json and code.json, and its results if it has finished."""
    if stage == "prepare" and state == "COMPLETE":
        kept = kept_corpus_folder(root, run)
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "manifest.json").write_text("{}")
    folder = stage_folder(root / "runs", stage, run.key(stage))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status.json").write_text(json.dumps({"state": state, "attempt": 1, **more}))
    roots = code_roots(run.params, run.system)[stage]
    CodeStates(root / "runs").write(stage, run.folders(root / "runs"), roots)
    if state == "COMPLETE":
        finished(folder, results or {})
    return folder
