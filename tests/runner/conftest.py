"""Study files written for a test, over the tiny parameters."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from realm_lab.runner.plan import StudyPlan, plan_study

PARAMETERS = Path(__file__).parents[1] / "tiny.yaml"
HEAD = "question: Does it matter?\nseeds: [0, 1]\n"


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
