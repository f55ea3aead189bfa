"""The report: the same bytes twice, honest sentences, plain words about what is missing, nothing interpreted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from realm_lab.reporting import page
from realm_lab.reporting.document import Text
from realm_lab.reporting.report import FIGURE_NAMES, write_report
from realm_lab.reporting.table import collect
from realm_lab.reporting.verdict import significance, verdict
from realm_lab.reporting.worked_examples import load_examples, worked_examples
from tests.reporting import synthetic


class Elements(HTMLParser):
    """Start tags with attributes, and the texts of script elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs/ and a written reports/, two systems and two seeds."""
    folder = tmp_path_factory.mktemp("study")
    names = synthetic.make_runs(folder / "runs")
    synthetic.write_metrics(folder / "reports", names)
    other = folder / "reports" / "staleness <i>"
    other.mkdir()
    (other / "report.md").write_text("# Staleness & <b>age</b>\n\nNot distinguishable.\n")
    assert write_report(folder / "runs", folder / "reports") == folder / "reports" / "index.html"
    return folder


@pytest.fixture(scope="module")
def html(study: Path) -> str:
    return (study / "reports" / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def markdown(study: Path) -> str:
    return (study / "reports" / "report.md").read_text(encoding="utf-8")


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_two_processes_write_identical_bytes(study: Path) -> None:
    before = everything(study / "reports")
    program = (
        "import sys; from pathlib import Path; from realm_lab.reporting.report import write_report; "
        "write_report(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", program, study / "runs", study / "reports"], check=True)
    assert everything(study / "reports") == before


def test_every_figure_is_written_and_on_the_page(study: Path, html: str, markdown: str) -> None:
    for name in FIGURE_NAMES:
        assert (study / "reports" / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (study / "reports" / "figures" / f"{name}.svg").read_text()
        assert f"figures/{name}.png" in markdown
        assert f'id="figure-{name}"' in html
    assert html.count("<svg") == len(FIGURE_NAMES) + 2, "and the letters of all of them, and one small curve"


def test_the_page_needs_nothing_from_elsewhere(html: str) -> None:
    addresses = [
        value
        for tag, attributes in Elements(html).tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "action", "srcset", "data")
        and not (value or "").startswith(("#", "data:"))
        and tag != "a"
    ]
    assert addresses == []
    assert not re.search(r"@import|url\((?!#)", html)


def test_ids_on_the_page_are_unique(html: str) -> None:
    ids = [attributes["id"] for _, attributes in Elements(html).tags if attributes.get("id")]
    assert len(ids) == len(set(ids))


def test_hostile_text_is_shown_and_never_interpreted(html: str, markdown: str) -> None:
    elements = Elements(html)
    kinds = [attributes.get("type") for tag, attributes in elements.tags if tag == "script"]
    assert kinds == ["application/json", None], "the data must not open a script of its own"
    data = json.loads(elements.scripts[0])
    hostile = [text for text in data["texts"] if synthetic.HOSTILE in text]
    assert len(hostile) == 1
    assert "<" not in elements.scripts[0]
    assert not [tag for tag, _ in elements.tags if tag in ("b", "i")]
    assert "{{ 7*7 }}" in hostile[0]
    assert "49" not in hostile[0]
    assert "<script" not in markdown
    assert "<b>" not in markdown


def test_a_hostile_worked_example_is_escaped_in_both(tmp_path: Path) -> None:
    names = synthetic.make_runs(tmp_path / "runs", (0,))
    path = synthetic.stage_folder(tmp_path / "runs", names[1], "evaluate") / "eval" / "explorer.json"
    examples = json.loads(path.read_text())
    path.write_text(json.dumps([example for example in examples if synthetic.HOSTILE in example["text"]]))
    write_report(tmp_path / "runs", tmp_path / "reports")
    html = (tmp_path / "reports" / "index.html").read_text()
    markdown = (tmp_path / "reports" / "report.md").read_text()
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in html
    assert "> &lt;script&gt;alert" in markdown
    assert "\\| pipe" in markdown


def test_embedded_json_cannot_leave_its_element() -> None:
    text = page.embed({"text": "</script><!--\u2028"})
    assert "<" not in text
    assert json.loads(text) == {"text": "</script><!--\u2028"}


def test_other_studies_are_listed_with_their_verdict(html: str, markdown: str) -> None:
    assert 'href="staleness%20%3Ci%3E/report.md"' in html
    assert "Staleness &amp; &lt;b&gt;age&lt;/b&gt;" in html
    assert "[Staleness &amp; &lt;b&gt;age&lt;/b&gt;](staleness%20%3Ci%3E/report.md): Not distinguishable." in markdown


def test_the_sections_come_in_order(markdown: str) -> None:
    headings = [line[3:] for line in markdown.splitlines() if line.startswith("## ")]
    assert headings == [
        "Results",
        "Figures",
        "Edition swap",
        "Worked examples",
        "Coverage and provenance",
        "How to reproduce",
        "Other studies",
    ]


def test_the_main_table_has_the_numbers(markdown: str) -> None:
    rows = [line.split("|") for line in markdown.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert next(row[2] for row in cells if row[1] == "warm_start") == "0.311 ± 0.148"
    assert next(row[2] for row in cells if row[1] == "realm") == "0.960 ± 0.017"
    assert next(row[6] for row in cells if row[1] == "BM25") == "0.750 ± 0.014"
    assert next(row[2] for row in cells if row[1] == "paper: REALM") == "0.382"
    assert "another data set" in markdown


def verdict_of(folder: Path, before: list[float], after: list[float]) -> str:
    synthetic.make_runs(folder, tuple(range(len(before))), exact_match={"warm_start": before, "realm": after})
    return verdict(collect(folder, "default"))


def test_a_gain_in_both_seeds_is_said_with_its_limits(tmp_path: Path) -> None:
    assert verdict_of(tmp_path, [0.25, 0.25], [0.95, 0.97]) == (
        "Over 2 seeds, REALM pre-training raised exact match from 0.250 to 0.960 "
        "(seed 0: 0.250 → 0.950; seed 1: 0.250 → 0.970); "
        "with 2 seeds no seed-level significance is possible (smallest two-sided p = 0.5)."
    )


def test_a_loss_is_called_a_loss(tmp_path: Path) -> None:
    text = verdict_of(tmp_path, [0.5, 0.4], [0.3, 0.2])
    assert "did not help: it lowered exact match from 0.450 to 0.250" in text
    assert "raised" not in text


def test_seeds_that_disagree_are_said_to_disagree(tmp_path: Path) -> None:
    up = verdict_of(tmp_path / "up", [0.2, 0.4], [0.9, 0.3])
    assert "on average, but the direction differs between seeds" in up
    down = verdict_of(tmp_path / "down", [0.2, 0.9], [0.3, 0.3])
    assert "did not raise exact match on average" in down
    assert "the direction differs between seeds" in down


def test_no_difference_is_no_gain(tmp_path: Path) -> None:
    assert "made no difference" in verdict_of(tmp_path, [0.2, 0.3], [0.2, 0.3])


def test_one_seed_is_called_one_seed(tmp_path: Path) -> None:
    text = verdict_of(tmp_path, [0.2], [0.9])
    assert text.startswith(
        "With the one seed 0, exact match was 0.200 for warm_start and 0.900 after REALM pre-training;"
    )
    assert "raised" not in text
    assert "no difference can be claimed" in text
    assert "one seed says nothing about the spread" in text


def test_significance_needs_six_seeds() -> None:
    assert "no seed-level significance is possible (smallest two-sided p = 0.0625)" in significance(5)
    assert "can reach is 0.031" in significance(6)


def test_missing_pieces_are_stated(tmp_path: Path) -> None:
    runs, reports = tmp_path / "runs", tmp_path / "reports"
    names = synthetic.make_runs(runs, explorer=False, edition_swap=False, bm25=False)
    synthetic.set_status(synthetic.stage_folder(runs, names[3], "pretrain"), state="FAILED", error="out of memory")
    for stage in ("finetune", "evaluate"):
        synthetic.set_status(synthetic.stage_folder(runs, names[3], stage), state="PENDING")
    write_report(runs, reports)
    markdown = (reports / "report.md").read_text()
    first_lines = markdown[: markdown.index("## ")]
    assert "Incomplete: 3 pieces are missing or unfinished." in first_lines
    assert "stage pretrain is FAILED at step 560 of 560 (out of memory)" in first_lines
    assert "With the one seed 0" in first_lines
    for sentence in ("No edition swap", "BM25: no run measured it", "No worked example", "No figure of edition swap"):
        assert sentence in markdown
    html = (reports / "index.html").read_text()
    assert "No examples to explore" in html
    assert "realm, seed 0: no examples (eval/explorer.json is not there)." in html
    assert not (reports / "figures" / "edition_swap.png").exists()


FLAG = "collapsed: p(null|x) above 0.99 since step 1200 <b>*now*</b>"


def test_a_flagged_run_is_said_before_anything_else(tmp_path: Path) -> None:
    runs, reports = tmp_path / "runs", tmp_path / "reports"
    names = synthetic.make_runs(runs)
    synthetic.set_status(synthetic.stage_folder(runs, names[1], "pretrain"), flags=[FLAG])
    synthetic.set_status(synthetic.stage_folder(runs, names[3], "finetune"), state="RUNNING", host="elsewhere")
    write_report(runs, reports)
    markdown, html = (reports / "report.md").read_text(), (reports / "index.html").read_text()
    shown = "realm, seed 0, pretrain: collapsed: p(null\\|x) above 0.99 since step 1200 &lt;b&gt;\\*now\\*&lt;/b&gt;"
    paragraphs = markdown.split("\n\n")
    assert paragraphs[2] == f"> **FLAGGED RUN.** {shown}"
    assert paragraphs[3].startswith("> **Attention.** Incomplete")
    assert paragraphs[4].endswith(" Flagged as collapsed: realm, seed 0.**")
    escaped = "collapsed: p(null|x) above 0.99 since step 1200 &lt;b&gt;*now*&lt;/b&gt;"
    head = html[html.index("<header>") : html.index("<h1>")]
    assert head.index(f"</strong> realm, seed 0, pretrain: {escaped}") < head.index("Incomplete")
    assert html[html.index("<h1>") : html.index("</h1>")].endswith("Flagged as collapsed: realm, seed 0.")
    assert "b" not in {tag for tag, _ in Elements(html).tags}
    # The main table, each seed, and the identity of every run.
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in markdown.splitlines()]
    assert [row[-2] for row in rows if row[1:2] == ["realm"]][:3] == ["1 of 2", shown.partition("pretrain: ")[2], "–"]
    assert [row[-2] for row in rows if row[1:2] == ["warm_start"]][:3] == ["0 of 2", "–", "–"]
    assert any(names[1] in row and shown.partition("pretrain: ")[2] in row for row in rows)


def test_another_flag_is_no_collapse(tmp_path: Path) -> None:
    names = synthetic.make_runs(tmp_path / "runs", (0,))
    synthetic.set_status(synthetic.stage_folder(tmp_path / "runs", names[1], "evaluate"), flags=["non_finite_results"])
    write_report(tmp_path / "runs", tmp_path / "reports")
    markdown = (tmp_path / "reports" / "report.md").read_text()
    assert "> **FLAGGED RUN.** realm, seed 0, evaluate: non_finite_results\n" in markdown
    assert "ollapsed" not in markdown


def test_runs_without_flags_show_nothing_of_flags(html: str, markdown: str) -> None:
    assert "FLAGGED" not in markdown
    assert "Flagged" not in markdown + html
    assert "flagged |" not in markdown
    assert '<p class="warning' not in html


def test_a_figure_without_data_does_not_stay_from_an_earlier_report(tmp_path: Path) -> None:
    runs, reports = tmp_path / "runs", tmp_path / "reports"
    names = synthetic.make_runs(runs, (0,))
    write_report(runs, reports)
    (reports / "figures" / "mine.png").write_bytes(b"kept")
    synthetic.set_status(synthetic.stage_folder(runs, names[1], "evaluate"), state="RUNNING", host="elsewhere")
    write_report(runs, reports)
    assert not (reports / "figures" / "edition_swap.png").exists()
    assert (reports / "figures" / "mine.png").exists()


@pytest.mark.parametrize("text", ["[", '{"a": 1}', '[{"candidates": [{"span": [5, 2]}, 7]}, 3]', '[{"text": null}]'])
def test_a_strange_explorer_file_stops_nothing(tmp_path: Path, text: str) -> None:
    names = synthetic.make_runs(tmp_path / "runs", (0,))
    (synthetic.stage_folder(tmp_path / "runs", names[1], "evaluate") / "eval" / "explorer.json").write_text(text)
    collection = collect(tmp_path / "runs", "default")
    examples, notes = load_examples(collection)
    blocks = worked_examples(collection, examples)
    assert isinstance(blocks[0], Text)
    assert blocks[0].missing
    assert notes or examples[-1]["label"] == "realm"


def test_no_runs_at_all_is_a_report_that_says_so(tmp_path: Path) -> None:
    path = write_report(tmp_path / "runs", tmp_path / "reports")
    assert "There is no run to report on" in path.read_text()
    assert "No verdict" in (tmp_path / "reports" / "report.md").read_text()


def test_different_corpora_and_engines_are_pointed_out(tmp_path: Path) -> None:
    names = synthetic.make_runs(tmp_path / "runs")
    path = tmp_path / "runs" / names[1] / "run.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"engine_version": 2, "inputs": {"corpus": "other"}}))
    write_report(tmp_path / "runs", tmp_path / "reports")
    markdown = (tmp_path / "reports" / "report.md").read_text()
    assert "different engine versions (1, 2)" in markdown
    assert "Seed 0: the systems were run on different corpora." in markdown


def test_parameters_set_by_hand_are_told_from_the_preset(tmp_path: Path) -> None:
    names = synthetic.make_runs(tmp_path / "runs", (0,))
    path = tmp_path / "runs" / names[1] / "run.json"
    record = json.loads(path.read_text())
    record["params"]["pretrain"]["candidates"] = 20
    path.write_text(json.dumps(record))
    write_report(tmp_path / "runs", tmp_path / "reports")
    lines = [re.sub(r"[| ]+", " ", line) for line in (tmp_path / "reports" / "report.md").read_text().splitlines()]
    assert " pretrain.candidates 20 8 by hand " in lines
    assert " model.hidden_size 64 768 preset " in lines
    assert " pretrain.candidates 12 20 " in lines, "what differs between the systems is listed"


def test_nothing_of_the_machine_s_folders_is_in_a_report(study: Path) -> None:
    text = (study / "reports" / "report.md").read_text() + (study / "reports" / "index.html").read_text()
    assert str(study) not in text


def test_importing_the_report_loads_no_drawing_library() -> None:
    program = "import sys, realm_lab.reporting.report; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert not {"matplotlib", "torch", "mlflow"} & set(done.stdout.split())
