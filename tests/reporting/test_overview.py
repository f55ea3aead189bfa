"""reports/index.html: every committed report is on it, with or without run folders, and the same bytes come again."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from realm_lab.errors import UserError
from realm_lab.reporting.fragment import FILE, MOST_ROWS, Spark, read_fragment
from realm_lab.reporting.inline_svg import Drawings
from realm_lab.reporting.overview_page import refresh, sparkline
from realm_lab.runner.all_reports import report_all
from realm_lab.runner.collect import collect
from realm_lab.runner.report_cache import FOLDER, study_digest
from tests.reporting import reports_project as project

STUDY = project.STUDY


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    project.make_project(root)
    return root


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """A project that a test may change."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_has_the_default_run_the_study_and_a_link_to_what_was_made_by_hand(made: Path) -> None:
    text = (made / "reports" / "index.html").read_text()
    ids = [attributes["id"] for _, attributes in Page(text).tags if attributes.get("id")]
    assert {"studies", "default", f"study-{STUDY}", "explorer", "other-reports", "figure-recall"} <= set(ids)
    assert len(ids) == len(set(ids))
    assert 'href="by-hand/report.md"' in text
    assert f'href="{STUDY}/index.html"' in text
    assert "2 studies, 10 of 10 runs complete" in text
    assert text.count("<polyline") == 3, "the default run, the study's baseline, and its other cell that pre-trains"


def test_hostile_text_opens_no_element(made: Path) -> None:
    page = Page((made / "reports" / "index.html").read_text())
    assert [attributes.get("type") for tag, attributes in page.tags if tag == "script"] == ["application/json", None]
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_a_clone_without_run_folders_shows_the_same_page(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "reports", tmp_path / "reports")
    before = everything(tmp_path / "reports")
    (tmp_path / "reports" / "index.html").unlink()
    report_all(tmp_path)
    assert everything(tmp_path / "reports") == before


def test_deleted_reports_are_rebuilt_byte_for_byte_with_and_without_what_was_kept(copy: Path) -> None:
    folder = copy / "reports" / STUDY
    before = everything(folder)
    for name in before.keys() - {"discussion.md"}:
        (folder / name).unlink()
    report_all(copy)
    assert everything(folder) == before, "from what was kept"
    shutil.rmtree(copy / "runs" / FOLDER)
    for name in before.keys() - {"discussion.md"}:
        (folder / name).unlink()
    report_all(copy)
    assert everything(folder) == before, "from the run folders"


def test_what_a_person_wrote_beside_a_report_is_not_kept_and_not_touched(copy: Path) -> None:
    note = copy / "reports" / STUDY / "discussion.md"
    note.write_text("written anew\n")
    collect(copy, STUDY)
    assert note.read_text() == "written anew\n"
    assert not list((copy / "runs" / FOLDER).rglob("discussion.md"))


def test_a_changed_run_is_never_answered_with_what_was_kept(copy: Path) -> None:
    before = study_digest(copy, STUDY)
    assert before is not None
    run = json.loads((copy / "runs" / "studies" / STUDY / "study.json").read_text())["runs"][0]["run"]
    stages = json.loads((copy / "runs" / run / "run.json").read_text())["stages"]
    path = copy / "runs" / stages["evaluate"] / "results.json"
    results = json.loads(path.read_text())
    path.write_text(json.dumps(results | {"exact_match": 0.123456}))
    assert study_digest(copy, STUDY) != before
    collect(copy, STUDY)
    assert "0.123456" in (copy / "reports" / STUDY / "results.csv").read_text()
    status = copy / "runs" / stages["evaluate"] / "status.json"
    status.write_text(json.dumps(json.loads(status.read_text()) | {"state": "FAILED"}))
    assert study_digest(copy, STUDY) is None, "a study that is not finished is never kept"


def test_a_part_of_a_study_does_not_replace_the_whole_report(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(copy / "reports" / STUDY)
    run = json.loads((copy / "runs" / "studies" / STUDY / "study.json").read_text())["runs"][0]["run"]
    stages = json.loads((copy / "runs" / run / "run.json").read_text())["stages"]
    shutil.rmtree(copy / "runs" / stages["evaluate"])
    report_all(copy)
    assert everything(copy / "reports" / STUDY) == before
    collect(copy, STUDY)
    text = (copy / "reports" / "index.html").read_text()
    assert "Incomplete: masks." in text, "asked for by name it is written"
    assert 'class="tag">incomplete' in text


def test_a_search_is_left_to_its_own_report(copy: Path) -> None:
    """Its trials may end before they are evaluated."""
    record = json.loads((copy / "runs" / "studies" / STUDY / "study.json").read_text())
    folder = copy / "runs" / "studies" / "search-rates"
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps(record | {"name": "search-rates", "last_stage": "pretrain"}))
    report_all(copy)
    assert not (copy / "reports" / "search-rates").exists()


def test_a_broken_part_is_said_and_the_others_are_shown(copy: Path) -> None:
    (copy / "reports" / STUDY / FILE).write_text('{"format": 1}')
    text = refresh(copy / "reports").read_text()
    assert f"reports/{STUDY}/{FILE}: not the overview of a report" in text
    assert f'href="{STUDY}/index.html"' in text, "it is linked instead"
    assert 'id="figure-recall"' in text
    with pytest.raises(UserError, match="write the report again"):
        read_fragment(copy / "reports" / STUDY)


def test_a_drawing_that_is_gone_is_said(copy: Path) -> None:
    (copy / "reports" / STUDY / "figures" / "deltas.svg").unlink()
    assert "This drawing is not in figures/ any more" in refresh(copy / "reports").read_text()


def test_a_part_is_small_and_reads_back_what_the_report_said(made: Path) -> None:
    fragment = read_fragment(made / "reports" / STUDY)
    assert (made / "reports" / STUDY / FILE).stat().st_size < 200_000
    assert fragment.facts.is_whole
    assert fragment.facts.cells[1] == ["random_token", project.HOSTILE]
    assert fragment.document.verdict.startswith("Which masks?")
    tables = [block for section in fragment.document.sections for block in section.blocks if block.kind == "table"]
    assert tables
    assert all(len(table.frame) <= MOST_ROWS for table in tables)
    assert not {"coverage", "worked-examples"} & {section.key for section in fragment.document.sections}


def test_a_small_curve_says_what_it_shows() -> None:
    svg = str(sparkline(Spark("utility <nats>", [("A & B", [0, 10], [-1.0, 2.0]), ("C", [0, 10], [0.0, 0.5])])))
    assert 'aria-label="utility &lt;nats&gt;, from step 0 to 10: A &amp; B −1.00 to 2.00; C 0.00 to 0.50."' in svg
    assert 'class="ink" points="3.0,43.0 167.0,3.0"' in svg
    assert "no pre-training" in str(sparkline(None))


def test_drawings_share_letters_and_have_ids_of_their_own() -> None:
    letter = '<defs><path id="DejaVuSans-13" d="M 1 2 \nz\n" transform="scale(0.015625)"/></defs>'
    svg = (
        f'<?xml?><svg width="1pt" viewBox="0 0 9 9"><metadata>m</metadata><g id="text_1">{letter}<!-- 0 -->'
        '<use xlink:href="#DejaVuSans-13" transform="translate(63.375 0)"/></g>'
        '<clipPath id="p1"><path d="M 1.23456 2 \nL 3 4 \n"/></clipPath>'
        '<g clip-path="url(#p1)" style="fill: #0072b2"/></svg>'
    )
    drawings = Drawings()
    first, second = drawings.inline(svg), drawings.inline(svg)
    assert first.startswith('<svg viewBox="0 0 9 9">')
    assert '<use href="#l0" x="63.38"/>' in first
    assert 'id="d1-p1"' in first
    assert "url(#d1-p1)" in first
    assert "url(#d2-p1)" in second
    assert "var(--blue)" in first
    assert "1.23 2" in first
    assert "text_1" not in first
    assert drawings.letters().count("<path") == 1
