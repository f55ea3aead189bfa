"""A person's view of MLflow's interface after a mirroring: a study by cell, curves, nothing from the network."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from mlflow import MlflowClient

from realm_lab.lab.tracking.mirror import mirror
from tests.lab.tracking import made_runs

pytestmark = [pytest.mark.browser, pytest.mark.slow]

RUNS = ["random_mask-s0", "random_mask-s1", "realm-s0", "realm-s1", "warm_start-s0", "warm_start-s1"]
CELLS = ["random_mask", "realm", "warm_start"]


class Served(NamedTuple):
    """MLflow over one mirrored study."""

    url: str
    experiment: str
    uri: str  # of the store


@pytest.fixture(scope="module")
def server(pictures: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A study of three cells and two seeds."""
    folder = tmp_path_factory.mktemp("served")
    made_runs.make_runs(folder / "runs")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    mirror(folder / "runs", uri)
    with pictures.served(uri) as url:
        yield Served(url, pictures.experiment_of(uri, "default"), uri)


@pytest.fixture(scope="module")
def browser(pictures: ModuleType) -> Iterator[Any]:
    """The Chromium that takes the screenshots."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    with pictures.chromium() as started:
        yield started


@pytest.fixture
def page(server: Served, pictures: ModuleType, browser: Any) -> Iterator[Any]:
    """A tab that reaches the server and nothing else; asking for anything else fails the test."""
    with pictures.browser_tab(browser, server.url, height=2400) as tab:
        yield tab
    assert tab.outside == []


def test_the_link_shows_the_runs_by_cell_the_three_metrics_and_the_curves(
    page: Any, server: Served, pictures: ModuleType, tmp_path: Path
) -> None:
    """In a browser without history, nothing is clicked, except to close MLflow's offers."""
    pictures.compare_picture(page, server.url, server.experiment, tmp_path / "compare.png")
    for cell in CELLS:
        assert page.get_by_text(f"Group: {cell}").or_(page.get_by_title(f"Group: {cell}")).first.is_visible()
    for metric in ("exact_match", "recall_at_5", "retrieval_utility"):
        bars = pictures.chart(page, metric).locator(".barlayer .point path").all()
        assert len(bars) == len(CELLS)
    for metric in ("pretrain/retrieval_utility", "pretrain/recall_at_5"):
        lines = pictures.chart(page, metric).locator(".scatterlayer .js-line").all()
        assert len(lines) >= 2  # of the cells that pre-train


def test_the_list_of_the_same_view_has_the_metrics_as_columns(
    page: Any, server: Served, pictures: ModuleType, tmp_path: Path
) -> None:
    pictures.study_picture(page, server.url, server.experiment, tmp_path / "study.png")
    names = page.get_by_role("link", name=re.compile(r"-s\d$")).all_inner_texts()
    assert sorted(names) == RUNS
    headers = {header.strip() for header in page.locator(".ag-header-cell").all_inner_texts()}
    columns = {"exact_match", "recall_at_5", "retrieval_utility", "pretrain.masking", "realm.seed", "realm.changes"}
    assert columns <= headers


def test_a_search_by_a_parameter_finds_its_runs(page: Any, server: Served, pictures: ModuleType) -> None:
    pictures.open_view(page, server.url, server.experiment, "TABLE")
    search = page.get_by_test_id("search-box")
    search.fill("params.`pretrain.masking` = 'random_token' and params.seed = '1'")
    search.press("Enter")
    page.get_by_role("link", name="realm-s0").wait_for(state="detached")
    assert page.get_by_role("link", name=re.compile(r"-s\d$")).all_inner_texts() == ["random_mask-s1"]


def test_four_runs_are_compared_by_the_parameters_that_differ(page: Any, server: Served) -> None:
    found = MlflowClient(tracking_uri=server.uri).search_runs([server.experiment], "params.variant LIKE 'r%'")
    ids = json.dumps([run.info.run_id for run in found])
    page.goto(f"{server.url}/#/compare-runs?runs={ids}&experiments={json.dumps([server.experiment])}")
    for text in ("Comparing 4 Runs", "pretrain.masking", "random_token", "salient_span"):
        page.get_by_text(text).first.wait_for()


def test_the_page_of_a_run_tells_its_story(page: Any, server: Served, pictures: ModuleType) -> None:
    pictures.open_view(page, server.url, server.experiment)
    page.get_by_role("link", name="random_mask-s0").click()
    page.get_by_text("Record: ").wait_for()
    for text in ("realm.changes", "pretrain.masking", "toy corpus"):
        page.get_by_text(text).first.wait_for()
    page.get_by_role("tab", name="Model metrics").click()
    first = page.get_by_test_id("experiment-view-compare-runs-card").first
    first.locator(".scatterlayer .js-line").first.wait_for()  # a curve, no bar
    page.get_by_role("tab", name="System metrics").click()
    page.get_by_text("peak_memory_gibibytes").first.wait_for()
