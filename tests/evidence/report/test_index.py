"""reports/index.html and the explorer: made of committed files, self-contained, safe with hostile texts."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from realm_lab.evidence.report.index import write_index
from realm_lab.evidence.report.report import write_all
from realm_lab.records.files import read_json, write_json, write_text
from realm_lab.records.study import write_study_record
from tests.evidence.report import synthetic
from tests.evidence.report.opened_page import open_page

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script> & \"q\" 'r'"
REPORTS = Path(__file__).resolve().parents[3] / "reports" / "reference"
COMMITTED = sorted(
    path.parent.name for path in REPORTS.glob("*/summary.json") if (path.parent / "results.csv").exists()
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, undrawn: None) -> Path:
    """The page of a project with a default run, a study whose texts are hostile, and a report made by hand."""
    root = tmp_path_factory.mktemp("project")
    synthetic.make_default(root / "runs")
    cells = (synthetic.CELLS[0], replace(synthetic.CELLS[2], title=HOSTILE), synthetic.CELLS[1])
    study = synthetic.make_study(root / "runs", (0, 1), name="masks", cells=cells)
    write_study_record(root / "runs", replace(study, question=f"Which masks? {HOSTILE}"))
    write_text(root / "reports" / "by-hand" / "report.md", f"# By hand {HOSTILE}\n\nNot made by a study.\n")
    return write_all(root)


def test_it_needs_nothing_from_elsewhere_and_escapes_every_text(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "http://" not in text
    assert "https://" not in text
    assert "<img src=x" not in text
    assert "alert(2)</script>" not in text
    assert text.count("data:image/png;base64,") == 2, "the first figure of each study"
    assert "By hand" in text


def test_a_broken_report_is_said_and_the_others_are_shown(page: Path, tmp_path: Path) -> None:
    shutil.copytree(page.parent, tmp_path / "reports")
    (tmp_path / "reports" / "masks" / "summary.json").write_text("{")
    text = write_index(tmp_path / "reports").read_text(encoding="utf-8")
    assert "reports/masks/summary.json" in text
    assert 'id="study-default"' in text


def test_a_report_without_a_run_hides_no_reference(page: Path, tmp_path: Path) -> None:
    reports = shutil.copytree(page.parent, tmp_path / "reports")
    shutil.copytree(reports / "masks", reports / "reference" / "masks")
    summary = read_json(reports / "masks" / "summary.json")
    assert 'href="masks/report.md"' in write_index(reports).read_text(encoding="utf-8")
    write_json(reports / "masks" / "summary.json", summary | {"coverage": summary["coverage"] | {"complete": 0}})
    text = write_index(reports).read_text(encoding="utf-8")
    assert 'href="reference/masks/report.md"' in text
    assert 'href="masks/report.md"' not in text


@pytest.mark.slow
def test_the_committed_page_is_that_of_the_committed_reports(tmp_path: Path) -> None:
    shutil.copytree(
        REPORTS, tmp_path / "reports", ignore=shutil.ignore_patterns("index.html", "report.html", "compare")
    )
    text = write_index(tmp_path / "reports").read_text(encoding="utf-8")
    assert [name for name in COMMITTED if f'id="study-{name}"' not in text] == []
    assert 'role="alert"' not in text
    committed = (REPORTS / "index.html").read_text(encoding="utf-8")
    assert text == committed, "`realm-lab report NAME` of any committed study writes it again"


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1366), ("dark", 390)])
def test_the_table_is_sorted_and_filtered_and_opens_a_report(browser: Any, page: Path, scheme: str, width: int) -> None:
    with open_page(browser, page.as_uri(), scheme, width) as opened:
        view, names = opened.page, "table.studies tbody th:visible"
        assert view.locator(names).all_inner_texts() == ["default", "masks"]
        view.get_by_role("button", name="study").click()
        view.get_by_role("button", name="study").click()
        assert view.locator(names).all_inner_texts() == ["masks", "default"]
        view.fill("input[name=words]", "which masks")
        assert view.locator(names).all_inner_texts() == ["masks"]
        view.get_by_role("link", name="masks").click()
        assert view.locator("#study-masks .verdict").is_visible()
        assert not view.locator("table.studies").is_visible()
        wide = "[...document.querySelectorAll('table')].filter((one) => one.getBoundingClientRect().right > innerWidth)"
        assert view.evaluate(f"{wide}.length") == 0
        view.get_by_role("link", name="All studies").first.click()
        lines = "(one) => [...one.childNodes].map((text) => { const r = document.createRange(); r.selectNode(text);"
        lines += " return r.getClientRects().length; })"
        view.emulate_media(media="print")
        view.set_viewport_size({"width": 718, "height": 900})  # of A4
        numbers = view.locator("table.studies tbody td.number")
        assert numbers.first.evaluate(lines) == [1], "no number is broken on paper"
        view.emulate_media(media="screen", color_scheme=scheme)
        assert view.locator("table.studies").is_visible()
        assert opened.messages == []
        assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 380)])
def test_the_explorer_works_in_a_browser(browser: Any, page: Path, scheme: str, width: int) -> None:
    with open_page(browser, (page.parent / "default" / "report.html").as_uri(), scheme, width) as opened:
        view = opened.page
        assert opened.messages == []
        assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
        assert view.evaluate("document.documentElement.scrollWidth") <= width, "nothing is wider than the window"
        assert view.locator("#explorer").is_visible()
        everything = view.locator("#explorer .count").inner_text()
        shown = view.locator("#explorer details:visible")
        assert everything == f"{shown.count()} of {shown.count()} examples"
        view.fill("#explorer input[name=words]", "land2")
        assert 0 < shown.count() < int(everything.split()[0])
        view.select_option("#explorer select[name=kind]", "question")
        assert shown.count() == 0
        view.select_option("#explorer select[name=kind]", "")
        view.fill("#explorer input[name=words]", "alert")
        assert "<script>alert('x')</script>" in shown.first.inner_text()
        assert shown.first.locator("mark").first.text_content().startswith("city")
        assert opened.messages == []


def test_the_explorer_data_is_a_fair_sample(page: Path) -> None:
    data = json.loads((page.parent / "default" / "examples.json").read_text(encoding="utf-8"))
    seeds = {(example["cell"], example["seed"], example["kind"]) for example in data["examples"]}
    assert len(seeds) == 8, "two systems, two seeds, sentences and questions"
    told = [(one["cell"], one["moment"]) for one in data["examples"] if (one["seed"], one["answer"]) == (0, "city0")]
    before, after = ("realm", "before pre-training"), ("realm", "after pre-training")
    assert told == [("warm_start", "without pre-training"), before, after], "once for each, beside each other"
    [gold] = [candidate for candidate in data["examples"][0]["candidates"] if candidate["is_gold"]]
    assert gold["span"] == data["examples"][0]["answer"]
    assert gold["before"] == "\U0001f600 "
