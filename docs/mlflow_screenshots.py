"""The pictures of docs/mlflow.md: a study in MLflow's interface, taken with a real browser.

    python docs/mlflow_screenshots.py --runs runs --study masking

mirrors the runs into a separate database, starts MLflow's server on 127.0.0.1 and drives Debian's Chromium. Written
are docs/mlflow-compare.png (the page that the study's link opens) and docs/mlflow-study.png (the list of its runs).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from realm_lab.lab.tracking.mirror import mirror
from realm_lab.lab.tracking.saved_view import HEADLINES, link

START_SECONDS = 180
WAIT_MS = 120_000
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
# Nothing moves for long: without a graphics card, the processor draws each picture of an animation.
STILL = (
    "* { animation-duration: 1ms !important; animation-iteration-count: 1 !important; "
    "transition-duration: 1ms !important }"
)
CURVES = ("pretrain/retrieval_utility", "pretrain/recall_at_5")


@contextmanager
def served(uri: str, *options: str) -> Iterator[str]:
    """Run MLflow's server over a database, with further options, until the block ends; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--workers", "1"]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [*command, *options, "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
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
            if not started.wait(START_SECONDS) or process.poll() is not None:
                raise RuntimeError("".join(lines))
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


@contextmanager
def chromium() -> Iterator[Any]:
    """Start Debian's Chromium until the block ends."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_FLAGS, timeout=WAIT_MS)
        yield browser
        browser.close()


@contextmanager
def browser_tab(browser: Any, server: str, width: int = 1366, height: int = 900) -> Iterator[Any]:
    """Open a new tab, which can reach only the server. `tab.outside` lists the other addresses that the tab asked
    for."""
    tab = browser.new_page(viewport={"width": width, "height": height})
    tab.set_default_timeout(WAIT_MS)
    tab.outside = []
    style = f"Object.assign(document.createElement('style'), {{ textContent: '{STILL}' }})"
    tab.add_init_script(f"addEventListener('DOMContentLoaded', () => document.head.append({style}))")

    def refuse(route: Any) -> None:
        tab.outside.append(route.request.url)
        route.abort()

    tab.route(lambda url: url.startswith("http") and not url.startswith(server), refuse)
    yield tab
    tab.close()


def experiment_of(uri: str, study: str) -> str:
    """The id of a study's experiment."""
    from mlflow import MlflowClient

    found = MlflowClient(tracking_uri=uri).get_experiment_by_name(f"realm_lab/{study}")
    assert found is not None, f"no study '{study}' in {uri}"
    return str(found.experiment_id)


def open_view(tab: Any, server: str, experiment: str, mode: str = "CHART") -> None:
    """Open the saved view of a study, as the link of `realm-lab mirror` does; `mode` TABLE: its list of runs."""
    tab.goto(server + link(experiment).replace("CHART", mode), wait_until="domcontentloaded")
    tab.get_by_text("Group: ").or_(tab.get_by_title("Group: ")).first.wait_for()
    close_assistant(tab)
    banner = tab.get_by_role("button", name="Hide banner")
    if banner.count():
        banner.dispatch_event("click")


def close_assistant(tab: Any) -> None:
    """Close the panel over the page in which MLflow offers its assistant."""
    close = tab.locator('[data-component-id="mlflow.assistant.chat_panel.close"]')
    if close.count():
        close.first.dispatch_event("click")  # a click scrolls first, which the panel does not always let it do


def study_picture(tab: Any, server: str, experiment: str, path: Path) -> None:
    """Take the picture of the list of a study's runs, grouped by cell, all groups open."""
    open_view(tab, server, experiment, "TABLE")
    tab.screenshot(path=path)


def chart(tab: Any, metric: str) -> Any:
    """The chart of a metric."""
    cards = tab.get_by_test_id("experiment-view-compare-runs-card")
    return cards.filter(has=tab.get_by_text(metric, exact=True)).first


def compare_picture(tab: Any, server: str, experiment: str, path: Path) -> None:
    """Take the picture of the page that a study's link opens: mean curves over the seeds, a color for each cell, and
    scores as bars."""
    open_view(tab, server, experiment)
    for metric in CURVES:
        chart(tab, metric).locator(".scatterlayer .js-line").first.wait_for()
    for metric in HEADLINES:
        chart(tab, metric).locator(".barlayer .point").first.wait_for()
    tab.screenshot(path=path)


def main() -> None:
    """Take both pictures of a study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--study", default="default")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder of the pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        uri = f"sqlite:///{folder}/mlflow.db"
        print(mirror(options.runs, uri))
        experiment = experiment_of(uri, options.study)
        with served(uri) as server, chromium() as browser, browser_tab(browser, server) as tab:
            study_picture(tab, server, experiment, options.out / "mlflow-study.png")
            tab.set_viewport_size({"width": 1366, "height": 1240})  # MLflow draws only the charts in view
            compare_picture(tab, server, experiment, options.out / "mlflow-compare.png")


if __name__ == "__main__":
    main()
