"""What a person sees in MLflow's interface after a mirroring: runs by name, curves, nothing from the network."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from realm_lab.tracking.mlflow_mirror import mirror

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SERVER_START_SECONDS = 180
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
RUNS = ["random_mask-s0", "random_mask-s1", "realm-s0", "realm-s1", "warm_start-s0", "warm_start-s1"]


@pytest.fixture(scope="module")
def server(made: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of MLflow over six mirrored runs; experiment 1 is theirs."""
    folder = tmp_path_factory.mktemp("served")
    made.make_runs(folder / "runs")
    summary = mirror(folder / "runs", f"sqlite:///{folder / 'mlflow.db'}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", summary.uri, "--workers", "1"]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        cwd=folder,
        env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines: list[str] = []
    started = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "Application startup complete" in line:
                started.set()
        started.set()  # it ended: do not wait

    threading.Thread(target=read, daemon=True).start()
    try:
        assert started.wait(SERVER_START_SECONDS), "".join(lines)
        assert process.poll() is None, "".join(lines)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


@pytest.fixture
def page(server: str) -> Iterator[Any]:
    """A tab that reaches the server and nothing else; asking for anything else fails the test."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    outside: list[str] = []

    def refuse(route: Any) -> None:
        outside.append(route.request.url)
        route.abort()

    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_FLAGS)
        tab = browser.new_page(viewport={"width": 1600, "height": 2400})
        tab.set_default_timeout(45_000)
        tab.route(lambda url: url.startswith("http") and not url.startswith(server), refuse)
        yield tab
        browser.close()
    assert outside == []


def open_runs(page: Any, server: str, more: str = "") -> None:
    page.goto(f"{server}/#/experiments/1/runs?workflowType=machine_learning{more}", wait_until="domcontentloaded")
    page.get_by_role("link", name=RUNS[0]).wait_for()


def test_the_list_names_every_run_once_and_shows_it_finished(page: Any, server: str, tmp_path: Path) -> None:
    open_runs(page, server)
    names = page.get_by_role("link", name=re.compile(r"-s\d$")).all_inner_texts()
    assert sorted(names) == RUNS
    assert page.get_by_text("Runs of the study").is_visible()
    page.screenshot(path=tmp_path / "runs.png")


def test_the_charts_show_curves_and_bars(page: Any, server: str, tmp_path: Path) -> None:
    open_runs(page, server, "&compareRunsMode=CHART")
    card = page.get_by_test_id("experiment-view-compare-runs-card")
    scores = card.filter(has_text="evaluate/exact_match")
    scores.locator(".barlayer .point").first.wait_for()
    assert scores.locator(".barlayer .point").count() == len(RUNS)
    page.screenshot(path=tmp_path / "bars.png")
    page.get_by_placeholder("Search metric charts").fill("pretrain/")  # charts below the window are not drawn
    curve = card.filter(has_text="pretrain/retrieval_utility").filter(has_not_text="final")
    curve.locator(".scatterlayer .js-line").first.wait_for()
    colors = {line.evaluate("line => line.style.stroke") for line in curve.locator(".scatterlayer .js-line").all()}
    assert len(colors) == 4  # a curve for each run that pre-trains, told apart by color
    page.screenshot(path=tmp_path / "curves.png")


def test_grouping_by_label_gives_a_mean_curve_for_each_label(page: Any, server: str, tmp_path: Path) -> None:
    open_runs(page, server, "&compareRunsMode=CHART")
    page.get_by_role("button", name="Group by").click()
    page.get_by_role("menuitemcheckbox", name="realm.label").click()
    page.keyboard.press("Escape")
    for label in ("random_mask", "realm", "warm_start"):
        page.get_by_title(f"Group: {label}").or_(page.get_by_text(f"Group: {label}")).first.wait_for()
    page.screenshot(path=tmp_path / "grouped.png")


def test_the_page_of_a_run_tells_its_story(page: Any, server: str, tmp_path: Path) -> None:
    open_runs(page, server)
    page.get_by_role("link", name="realm-s0").click()
    page.get_by_text("seed 0 of study").wait_for()
    for text in ("exact_match 0.", "realm.label", "evaluate/bm25/recall_at_5", "corpus ("):
        page.get_by_text(text).first.wait_for()
    page.screenshot(path=tmp_path / "run.png")
