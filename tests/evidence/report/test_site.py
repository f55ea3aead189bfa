"""The site of the documentation in a real browser: pages fit a phone, tables are stacked, no other host is needed."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from realm_lab import __version__
from tests.evidence.report.opened_page import open_page

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PHONE = 390
FIRST_SCREEN = 800  # pixels from the top
PARTS = ("docs", "reports/LOG.md", "reports/reference", "realm_lab", "mkdocs.yml")


def test_pages_fit_a_phone_and_need_no_network(browser: Any, tmp_path: Path, repository: Path) -> None:
    builder = Path(sys.executable).with_name("zensical")
    if not builder.exists():
        pytest.skip("no zensical: make setup-dev")
    (tmp_path / "reports").mkdir()
    for part in PARTS:
        copy = shutil.copytree if (repository / part).is_dir() else shutil.copyfile
        copy(repository / part, tmp_path / part)
    subprocess.run([sys.executable, tmp_path / "docs" / "site_pages.py"], check=True)
    subprocess.run([builder, "build", "--strict"], cwd=tmp_path, check=True)
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert tmp_path / "site" / "reports" / "reference" / "table2" / "report" / "index.html" in pages
    with open_page(browser, pages[0].as_uri(), "light", PHONE) as opened:
        for page in pages:
            opened.page.goto(page.as_uri())
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= PHONE, page
            assert not [sent for sent in opened.requests if not sent.startswith(("file:", "data:", "blob:"))], page
            if page == tmp_path / "site" / "index.html":
                assert opened.page.get_by_text(f"Version {__version__}").bounding_box()["y"] < FIRST_SCREEN
            if page.parent.name == "concepts":
                assert opened.page.locator("math").count() > 3
                shown = "cell => [getComputedStyle(cell).display, getComputedStyle(cell, '::before').content]"
                assert opened.page.locator("td[data-label]").first.evaluate(shown) == ["block", '"meaning: "']
