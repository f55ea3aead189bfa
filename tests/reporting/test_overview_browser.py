"""The common page in a real browser, from file://: silent, alone, sortable, and usable without a mouse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.reporting import reports_project as project
from tests.reporting.opened_page import Opened, open_page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("common")
    return project.make_project(root).as_uri()


@pytest.fixture(params=["light", "dark"])
def opened(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Opened]:
    with open_page(browser, address, request.param, width=1000) as found:
        yield found


def test_it_is_silent_alone_and_no_wider_than_the_window(opened: Opened, address: str) -> None:
    page = opened.page
    page.locator("details summary").first.click()
    page.wait_for_load_state("networkidle")
    assert [url for url in opened.requests if not url.startswith("data:")] == [address]
    assert page.evaluate("document.documentElement.scrollWidth") <= 1000
    page.set_viewport_size({"width": 380, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    assert opened.messages == []


def test_studies_are_sorted_with_the_keyboard(opened: Opened) -> None:
    page = opened.page
    names = page.locator("table.overview tbody th")
    assert names.all_inner_texts() == ["default", project.STUDY]
    header = page.locator("table.overview thead th", has_text="runs complete")
    header.locator("button").focus()
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    assert names.all_inner_texts() == [project.STUDY, "default"], "six runs before four"
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    assert names.all_inner_texts() == ["default", project.STUDY]
    assert page.locator("table.overview thead th", has_text="over pre-training").locator("button").count() == 0


def test_the_explorer_is_filtered_by_study_cell_and_seed(opened: Opened) -> None:
    page = opened.page
    whose = page.locator(".detail .where")
    assert page.locator("select[name=study]").input_value() == "default"
    page.locator("select[name=study]").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("select[name=study]").input_value() == project.STUDY
    assert page.locator("select[name=cell] option").all_inner_texts() == [
        "all", "REALM", project.HOSTILE, "warm start only"
    ]  # fmt: skip
    page.locator("select[name=cell]").select_option("random_token")
    page.locator("select[name=seed]").select_option("1")
    page.locator("select[name=kind]").select_option("question")
    assert whose.inner_text().startswith(f"{project.STUDY} · {project.HOSTILE} · seed 1 · question")
    assert page.locator(".examples small").count() > 0
    assert all(
        text.startswith(f"{project.STUDY} · {project.HOSTILE} · seed 1 · question")
        for text in page.locator(".examples small").all_inner_texts()
    )
    page.locator("select[name=kind]").select_option("cloze")
    page.locator(".turn").focus()
    page.keyboard.press("Enter")
    assert "before pre-training" in whose.inner_text()


def test_hostile_titles_questions_and_passages_are_text(opened: Opened) -> None:
    page = opened.page
    page.locator("select[name=study]").select_option(project.STUDY)
    page.locator("input[name=search]").fill("onerror alert(2)")
    page.locator(".examples button").first.focus()
    page.keyboard.press("ArrowDown")
    assert any(project.HOSTILE in text for text in page.locator(".detail .passage").all_inner_texts())
    assert project.HOSTILE in page.locator(f"#study-{project.STUDY} .question").inner_text()
    assert page.locator("main img, main script:not([type])").count() == 0
    assert opened.messages == []


def test_a_link_of_the_table_leads_to_the_study_and_small_curves_are_described(opened: Opened) -> None:
    page = opened.page
    page.locator("table.overview tbody a", has_text=project.STUDY).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == f"#study-{project.STUDY}"
    label = page.locator("table.overview svg[role=img]").last.get_attribute("aria-label")
    assert label.startswith("retrieval utility, nats per span, from step 0 to 10: REALM 0.00 to 9.50")


def test_what_is_folded_is_printed(opened: Opened) -> None:
    page = opened.page
    assert page.locator("details[open]").count() == 0
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
