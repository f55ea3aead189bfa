"""What a person sees in MLflow's interface after a mirroring: a study by cell, curves, nothing from the network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from realm_lab.tracking.mlflow_mirror import mirror
from tests.tracking import made_runs

pytestmark = [pytest.mark.browser, pytest.mark.slow]

RUNS = ["random_mask-s0", "random_mask-s1", "realm-s0", "realm-s1", "warm_start-s0", "warm_start-s1"]
CELLS = ["random_mask", "realm", "warm_start"]


class Served(NamedTuple):
    """MLflow over one mirrored study."""

    url: str
    experiment: str


@pytest.fixture(scope="module")
def server(pictures: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A study of three cells and two seeds."""
    folder = tmp_path_factory.mktemp("served")
    made_runs.make_runs(folder / "runs")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    mirror(folder / "runs", uri)
    with pictures.served(uri) as url:
        yield Served(url, pictures.experiment_of(uri, "default"))


@pytest.fixture
def page(server: Served, pictures: ModuleType) -> Iterator[Any]:
    """A tab that reaches the server and nothing else; asking for anything else fails the test."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    with pictures.browser_tab(server.url, height=2400) as tab:
        yield tab
    assert tab.outside == []


def search(tag: str, value: str) -> str:
    """For the address of a list of runs: those with this tag."""
    return quote(f'tags.{tag} = "{value}"')


def open_runs(page: Any, server: Served, more: str = "") -> None:
    url = f"{server.url}/#/experiments/{server.experiment}/runs?workflowType=machine_learning{more}"
    page.goto(url, wait_until="domcontentloaded")


def test_the_list_shows_the_study_grouped_by_cell(
    page: Any, server: Served, pictures: ModuleType, tmp_path: Path
) -> None:
    pictures.study_picture(page, server.url, server.experiment, tmp_path / "study.png")
    for cell in CELLS:
        assert page.get_by_text(f"Group: {cell}").or_(page.get_by_title(f"Group: {cell}")).first.is_visible()
    names = page.get_by_role("link", name=re.compile(r"-s\d$")).all_inner_texts()
    assert sorted(names) == RUNS
    assert (tmp_path / "study.png").stat().st_size > 20_000


def test_the_curves_of_utility_and_recall_are_side_by_side_a_color_for_each_cell(
    page: Any, server: Served, pictures: ModuleType, tmp_path: Path
) -> None:
    pictures.compare_picture(page, server.url, server.experiment, tmp_path / "compare.png")
    for metric in ("retrieval_utility", "recall_at_5"):
        lines = pictures.curves(page, metric).locator(".scatterlayer .js-line").all()
        assert len({line.evaluate("line => line.style.stroke") for line in lines}) == 2  # of those that pre-train
        assert pictures.curves(page, metric).first.is_visible()


def test_the_page_of_a_run_tells_its_story(page: Any, server: Served, pictures: ModuleType) -> None:
    pictures.open_grouped(page, server.url, server.experiment)
    page.get_by_role("link", name="random_mask-s0").click()
    page.get_by_text("Record: ").wait_for()
    for text in ("realm.changes", "evaluate/bm25/recall_at_5", "pretrain.masking"):
        page.get_by_text(text).first.wait_for()
