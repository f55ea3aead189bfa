"""The page in a real browser, from file://: silent, alone, and usable without a mouse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from realm_lab.reporting.report import write_report
from tests.reporting import synthetic
from tests.reporting.opened_page import Opened, open_page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    synthetic.make_runs(folder / "runs")
    return write_report(folder / "runs", folder / "reports").as_uri()


@pytest.fixture(params=["light", "dark"])
def opened(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Opened]:
    with open_page(browser, address, request.param, width=900) as found:
        yield found


def first_column(page: Any, caption: str) -> list[str]:
    table = page.locator("figure.table", has_text=caption).locator("tbody").first
    return table.locator("tr > :first-child").all_inner_texts()


def test_it_opens_silently_and_asks_for_nothing(opened: Opened, address: str) -> None:
    opened.page.locator(".examples button").nth(1).click()
    opened.page.wait_for_load_state("networkidle")
    assert opened.messages == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [address]


def test_nothing_is_wider_than_the_window(opened: Opened) -> None:
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 900


def test_text_and_paper_differ_enough(opened: Opened) -> None:
    luminance = opened.page.evaluate(
        """() => ["color", "backgroundColor"].map((name) => {
            const parts = getComputedStyle(document.body)[name].match(/[\\d.]+/g).slice(0, 3).map(Number);
            const [r, g, b] = parts.map((c) => c / 255)
                .map((c) => c <= 0.04 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        })"""
    )
    low, high = sorted(luminance)
    assert (high + 0.05) / (low + 0.05) > 7


def test_a_table_is_sorted_with_the_keyboard(opened: Opened) -> None:
    page = opened.page
    caption = "Mean ± standard deviation"
    assert first_column(page, caption) == ["warm_start", "realm", "BM25"]
    header = page.locator("figure.table", has_text=caption).locator("thead th", has_text="recall@5, zero-shot")
    header.locator("button").focus()
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    assert first_column(page, caption) == ["realm", "BM25", "warm_start"]
    page.keyboard.press("Space")
    assert header.get_attribute("aria-sort") == "ascending"
    assert first_column(page, caption) == ["warm_start", "BM25", "realm"]
    exact = page.locator("figure.table", has_text=caption).locator("thead th").nth(1).locator("button")
    exact.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert first_column(page, caption)[-1] == "BM25", "what was not measured stays below in both directions"


def test_the_explorer_is_filtered_and_walked_with_the_keyboard(opened: Opened) -> None:
    page = opened.page
    buttons = page.locator(".examples button")
    assert page.locator(".count").inner_text() == "16 of 42 examples"
    page.locator("select[name=seed]").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator(".count").inner_text() == "8 of 42 examples"
    page.locator("input[name=search]").focus()
    page.keyboard.type("lupgas capital")
    shown = buttons.count()
    assert 0 < shown < 8
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-current')") == "true"
    before = page.locator(".detail .text").inner_text()
    page.keyboard.press("ArrowDown")
    assert page.locator(".detail .text").inner_text() != before
    assert page.locator(".examples [aria-current=true]").count() == 1
    page.locator("input[name=search]").fill("nothing holds this")
    assert page.locator(".count").inner_text() == "0 of 42 examples"
    assert page.locator(".detail").inner_text() == ""


def test_before_and_after_pre_training_are_one_key_apart(opened: Opened) -> None:
    page = opened.page
    assert "after pre-training" in page.locator(".detail .where").inner_text()
    page.locator(".turn").focus()
    page.keyboard.press("Enter")
    assert "before pre-training" in page.locator(".detail .where").inner_text()
    page.keyboard.press("Enter")
    assert "after pre-training" in page.locator(".detail .where").inner_text()


def test_hostile_text_is_text(opened: Opened) -> None:
    page = opened.page
    page.locator("input[name=search]").fill("alert quoted")
    page.locator(".examples button").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".detail .text").inner_text().startswith(synthetic.HOSTILE)
    assert page.locator(".detail script, .examples script").count() == 0
    assert opened.messages == []


def test_the_span_is_marked_and_the_bars_show_the_probabilities(opened: Opened) -> None:
    page = opened.page
    row = page.locator(".detail tbody tr").first
    answer = page.locator(".detail .facts b").first.inner_text()
    assert row.locator("mark").inner_text() == answer
    width = float(row.locator(".bar i").evaluate("node => parseFloat(node.style.width)"))
    assert width == pytest.approx(100 * float(row.locator("td").first.inner_text()), abs=0.1)


def test_a_question_shows_the_prediction_and_no_utility(opened: Opened) -> None:
    page = opened.page
    page.locator("select[name=kind]").select_option("question")
    assert page.locator(".detail .facts").inner_text().startswith("answer")
    assert "prediction" in page.locator(".detail .facts").inner_text()
    assert page.locator(".detail th").all_inner_texts() == ["p(z|x)", "p(span|z,x)", "passage"]


def test_a_system_without_pre_training_is_not_called_pre_trained(opened: Opened) -> None:
    page = opened.page
    page.locator("select[name=cell]").select_option("warm_start")
    assert page.locator(".examples button").count() == 16
    assert page.locator(".detail .where").inner_text().endswith("not pre-trained")
