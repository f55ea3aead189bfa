"""A page in a real browser, from file://, with its messages and requests."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.limits import HANG_SECONDS

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --disable-extensions --disable-default-apps --no-first-run --disable-dev-shm-usage"
).split()


class Opened(NamedTuple):
    page: Any
    messages: list[str]
    requests: list[str]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    program = CHROMIUM if CHROMIUM.exists() else shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=str(program), args=FLAGS, timeout=1000 * HANG_SECONDS)
        yield started
        started.close()


@contextmanager
def open_page(browser: Any, address: str, color_scheme: str, width: int) -> Iterator[Opened]:
    """The page at an address, in a window of this width."""
    context = browser.new_context(color_scheme=color_scheme, viewport={"width": width, "height": 900})
    context.set_default_timeout(1000 * HANG_SECONDS)
    page = context.new_page()
    found = Opened(page, [], [])

    def dismiss(dialog: Any) -> None:
        found.messages.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("console", lambda message: found.messages.append(message.text))
    page.on("pageerror", lambda error: found.messages.append(str(error)))
    page.on("dialog", dismiss)
    page.on("request", lambda sent: found.requests.append(sent.url))
    page.goto(address)
    yield found
    context.close()
