"""A report with its figures drawn: its parts, a study's custom figures, and the figures of the default run."""

import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from realm_lab.evidence.report.figures import Sketch
from realm_lab.evidence.report.frames import StudyFrames
from realm_lab.evidence.report.report_files import stale
from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.records.files import read_json
from realm_lab.records.plugins import Choice
from realm_lab.records.study import StudyRecord, write_study_record
from tests import tiny
from tests.evidence.report.synthetic import make_default, report


def test_the_report_has_its_parts_and_is_the_same_again(tmp_path: Path, study: StudyRecord) -> None:
    text = report(tmp_path)
    assert "Attention" not in text, "a clean study has no warning"
    assert "Plan: none was noted in a ledger" in text
    assert text.count("| BM25, the same passages | 0.625 ± 0.000 | 3 | – | – | reference |") == 1  # only of recall@5
    utility = text.partition("\n## Retrieval utility by its parts\n")[2].partition("\n## ")[0]
    assert re.search(r"\| REALM \|.* 24\.000 ± 0\.000 \| 4\.800 ± ", utility)
    assert "−0.069" in text  # the paper's baseline below its REALM
    assert "random &lt;tokens&gt;" in text
    assert "&lt;script&gt;alert" in text
    assert "{{" not in text.replace("{{ 7", "")
    folder = tmp_path / "reports" / "table"
    summary = read_json(folder / "summary.json")
    assert summary["coverage"] == {"runs": 12, "complete": 12, "states": {"COMPLETE": 12}}
    assert summary["comparisons"]["exact_match"].keys() == {"warm_start", "random_token", "no_null"}
    assert len((folder / "results.csv").read_text().splitlines()) == 1 + 12
    before = tiny.files(tmp_path / "reports")
    figures = ("deltas", "other_metrics", "curves", "cost", "staleness")
    assert {Path(name).name for name in before if name.endswith(".png")} == {f"{figure}.png" for figure in figures}
    report(tmp_path)
    assert tiny.files(tmp_path / "reports") == before


def toy_figure(study: StudyFrames) -> Any:
    """Seeds of the study, drawn by its own figure."""
    from realm_lab.evidence.report.figures import canvas

    figure = canvas(2.0)
    figure.subplots().plot(study.results["exact_match"])
    return figure


def broken_figure(study: Any) -> Any:
    """It fails."""
    raise RuntimeError("no such luck")


class Best(ReportSection):
    """The best run."""

    name = "best"
    heading = "Best run"

    @functools.cached_property
    def rows(self) -> Rows:
        best = self.report.results.sort_values("exact_match").iloc[-1]
        return [{"variant": str(best["cell"]), "exact match": f"{best['exact_match']:.2f}"}]

    def data(self) -> dict[str, Any]:
        return {self.name: self.rows}


class TakenName(Best):
    """A section with the name of a field of summary.json, which it would replace."""

    name = "coverage"


class BrokenSection(ReportSection):
    """A section that fails."""

    name = "broken"

    @functools.cached_property
    def rows(self) -> Rows:
        raise RuntimeError("no such luck")


class BrokenDrawing(ReportSection):
    """A section whose figure fails when it is drawn."""

    name = "broken_drawing"

    def figures(self) -> list[Sketch]:
        return [Sketch("broken", "A figure.", "A figure", lambda: broken_figure(None))]


def test_a_study_may_have_sections_of_its_own(tmp_path: Path, study: StudyRecord) -> None:
    names = ("Best", "TakenName", "BrokenSection", "BrokenDrawing", "missing", "broken_figure")
    own = tuple(Choice(f"tests.evidence.report.test_drawn_reports:{name}") for name in names)
    write_study_record(tmp_path / "runs", replace(study, sections=own))
    text = report(tmp_path)
    assert text.count("## Best run\n\n| variant | exact match |") == 1
    assert "failed with RuntimeError in test_drawn_reports.py" in text.replace("\\_", "_")
    assert "no function or class 'missing'" in text.replace("\\_", "_")
    assert "summary.json has another 'coverage'" in text
    folder = tmp_path / "reports" / "table"
    assert read_json(folder / "summary.json")["best"][0]["variant"] in text
    assert read_json(folder / "summary.json")["warnings"] == [], "a section that works again leaves no warning"
    assert stale(folder) == []


@pytest.mark.slow
def test_a_study_may_have_figures_of_its_own(tmp_path: Path, study: StudyRecord) -> None:
    own = tuple(Choice(f"tests.evidence.report.test_drawn_reports:{name}") for name in ("toy_figure", "broken_figure"))
    write_study_record(tmp_path / "runs", replace(study, figures=own))
    text = report(tmp_path)
    assert "*Seeds of the study, drawn by its own figure.*" in text
    figures = tmp_path / "reports/table/figures"
    drawn = figures / "tests_evidence_report_test_drawn_reports_toy_figure.png"
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert "failed with RuntimeError in test_drawn_reports.py" in text.replace("\\_", "_")
    write_study_record(tmp_path / "runs", study)
    report(tmp_path)
    assert not drawn.exists(), "a drawing of ours without data goes"


@pytest.mark.slow
def test_the_default_run_has_all_its_figures_and_table_3(tmp_path: Path) -> None:
    study = make_default(tmp_path / "runs")
    write_study_record(tmp_path / "runs", replace(study, metrics=()))  # as in the default plan
    text = report(tmp_path, "default")
    assert "**Recall@20, zero-shot**" in text
    assert "**Largest gain, REALM, seed " in text
    folder = tmp_path / "reports" / "default"
    drawn = {path.stem for path in (folder / "figures").iterdir()}
    names = {"retrieval_utility", "recall", "early_warnings", "by_kind", "index_freshness", "warm_start"}
    assert names | {"corpus_update"} <= drawn
    assert stale(folder) == []
    assert read_json(folder / "examples.json")["examples"]
