"""The report of a study: its numbers by hand, its verdicts, its parts, and the files that it never replaces."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from realm_lab.cli import main
from realm_lab.errors import UserError
from realm_lab.evidence.ledger import note_plan
from realm_lab.evidence.report.comparison import as_json, compare_cells, question_intervals
from realm_lab.evidence.report.frames import load_runs, load_study
from realm_lab.evidence.report.published import published
from realm_lab.evidence.report.report import write_all, write_study_report
from realm_lab.records.files import read_json
from realm_lab.records.metrics import METRICS, Metric, register_metric
from realm_lab.records.study import StudyRecord, write_study_record
from tests import tiny
from tests.evidence.report.synthetic import (  # fmt: skip
    CELLS,
    edit,
    exact_match,
    make_study,
    report,
    stage_folder,
    verdict,
)
from tests.evidence.report.synthetic import METRICS as COMPARED
from tests.factories.errors import refused

pytestmark = pytest.mark.usefixtures("undrawn")  # test_drawn_reports.py has the figures


def compared(root: Path) -> Any:
    frames = load_study(root / "runs", "table")
    intervals = question_intervals(frames.record, frames.results, COMPARED, frames.runs)
    return compare_cells(frames.record, frames.results, COMPARED, intervals)


def test_deltas_are_those_of_the_given_numbers(tmp_path: Path) -> None:
    make_study(tmp_path / "runs", tuple(range(6)))
    found = as_json(compared(tmp_path))["exact_match"]["random_token"]
    ours = [exact_match("random_token", seed, 2) for seed in range(6)]
    theirs = [exact_match("realm", seed, 0) for seed in range(6)]
    assert [*found["deltas"].values()] == pytest.approx(list(np.subtract(ours, theirs)))
    assert found["interval"] == pytest.approx(list(stats.ttest_rel(ours, theirs).confidence_interval(0.95)))
    assert (found["n"], found["p"]) == (6, 2 / 64)
    assert found["corrected_p"] == found["smallest_corrected_p"] == 2 / 64, "nine tests: three metrics, three cells"
    for field in ("per_example_interval", "seeds_and_questions_interval"):
        low, high = found[field]
        assert low < np.subtract(ours, theirs).mean() < high
    assert np.ptp(found["seeds_and_questions_interval"]) > np.ptp(found["interval"])
    assert "significantly lower for warm start only (0.260) and random" in report(tmp_path)


def test_a_comparison_of_systems_says_which_is_better(tmp_path: Path) -> None:
    cells = (CELLS[0], replace(CELLS[1], system="orqa"), replace(CELLS[2], changes={}, system="dpr"))
    study = make_study(tmp_path / "runs", tuple(range(6)), cells=cells)
    assert verdict(study, compared(tmp_path)).lead == (
        "REALM (0.960) is significantly better than warm start only (0.260) and random <tokens> (0.810) in exact match."
    )


def test_the_verdict_says_what_other_metrics_show(tmp_path: Path) -> None:
    cells = tuple(cell for cell in CELLS if cell.name in ("realm", "no_null"))
    study = make_study(tmp_path / "runs", tuple(range(6)), cells=cells)
    said = "Compared with REALM (0.960), exact match is not significantly different for no null document (0.960)."
    assert verdict(study, compared(tmp_path)).lead.startswith(said)
    assert verdict(study, compared(tmp_path)).rest == "", "nothing else differs"
    for run in study.of("no_null"):
        path = stage_folder(tmp_path / "runs", study, "no_null", run.seed, "evaluate") / "results.json"
        edit(path, lambda found: found.update(recall_at_5=0.0))
    results = compared(tmp_path)
    said = "Recall@5, zero-shot is significantly lower for no null document (−0."
    assert verdict(study, results).rest.startswith(said)
    costs = [result._replace(metric=METRICS["wall_seconds"]) for result in results[1:]]
    assert verdict(study, [results[0], *costs]).rest == "", "a cost is no result"
    assert "No answer yet" in verdict(study, []).lead


def test_what_cannot_be_compared_says_why(tmp_path: Path, study: StudyRecord) -> None:
    reasons = {"retrieval": "it finds nothing", "BM25": "no"}

    def verdict_of(baseline: str) -> str:
        record = replace(study, baseline=baseline)
        frames = load_runs(tmp_path / "runs", record)
        return str(verdict(record, compare_cells(record, frames.results, ["recall_at_5"], None, frames.not_measured)))

    def results(cell: str, seed: int) -> Path:
        return stage_folder(tmp_path / "runs", study, cell, seed, "evaluate") / "results.json"

    for seed in (0, 1, 2):
        edit(results("no_null", seed), lambda found: found.update(recall_at_5=None, not_measured=reasons))
        edit(results("warm_start", seed).with_name("status.json"), lambda found: found.update(state="PREEMPTED"))
    for cell, seed in (("realm", 0), ("random_token", 1), ("random_token", 2)):
        edit(results(cell, seed), lambda found: found.pop("recall_at_5"))
    assert verdict_of("realm") == (
        "Not compared: warm start only (no data), random <tokens> (no seed of the baseline), no null document (not "
        "measured: it finds nothing)."
    )
    assert verdict_of("no_null") == (
        "No answer: recall@5, zero-shot of the baseline is not measured (it finds nothing)."
    )
    assert verdict_of("warm_start") == "No answer yet: the baseline has no finished run."
    write_study_report(tmp_path, "table")
    summary = read_json(tmp_path / "reports" / "table" / "summary.json")
    assert summary["gaps"]["recall_at_5"] == {
        "warm_start": {"gap": "no data", "reason": ""},
        "random_token": {"gap": "no seed of the baseline", "reason": ""},
        "no_null": {"gap": "not measured", "reason": "it finds nothing"},
    }
    assert "recall_at_5" not in summary["comparisons"] or not summary["comparisons"]["recall_at_5"]


def test_unfinished_runs_are_named(tmp_path: Path, study: StudyRecord) -> None:
    preempted = stage_folder(tmp_path / "runs", study, "no_null", 1, "evaluate") / "status.json"
    edit(preempted, lambda found: found.update(state="PREEMPTED"))
    failed = stage_folder(tmp_path / "runs", study, "random_token", 2, "evaluate") / "status.json"
    edit(
        failed,
        lambda found: found.update(state="FAILED", error="no memory", flags=[{"name": "odd", "text": "odd: a | b"}]),
    )
    text = report(tmp_path)
    [flagged] = [run for run in read_json(tmp_path / "reports" / "table" / "summary.json")["runs"] if "flags" in run]
    assert (flagged["cell"], flagged["seed"], flagged["why"]["cause"]) == ("random_token", 2, "error")
    assert flagged["flags"] == [{"stage": "evaluate", "name": "odd", "text": "odd: a | b"}]
    assert load_study(tmp_path / "runs", "table").results["exact_match"].isna().sum() == 2
    assert "10 of 12 runs complete · 1 flag (1 in random &lt;tokens&gt;) ·" in text
    lists = text.partition("\n## Flagged runs: 1\n")[2]
    assert "\n- random_token, seed 2, evaluate: odd: a \\| b\n" in lists
    assert "\n- Incomplete: 10 of 12 runs are complete (1 FAILED, 1 PREEMPTED).\n" in lists
    assert re.search(r"\| random_token, 2 \| .* \| FAILED \| ", text)
    assert re.search(r"\| random_token, 2 \|.* evaluate \| 20 of 20 \| evaluate: no memory \|", text)
    found = as_json(compared(tmp_path))["exact_match"]
    assert (found["no_null"]["n"], found["random_token"]["n"], found["warm_start"]["n"]) == (2, 2, 3)


def test_a_name_with_a_dot_is_whole(tmp_path: Path) -> None:
    make_study(tmp_path / "runs", (0, 1), name="v1.2")
    assert main(["report", "v1.2", "--root", str(tmp_path)]) == 0
    assert (tmp_path / "reports" / "v1.2" / "report.md").is_file()


def test_published_numbers_are_named(tmp_path: Path, study: StudyRecord) -> None:
    found = published("table2.stale_30x")
    assert found.values == {"exact_match": 0.287, "recall_at_5": 0.151}
    assert found.baseline == {"exact_match": 0.382, "recall_at_5": 0.385}
    later = published("table1.bm25_dpr_reader")
    assert (later.values, later.later) == ({}, {"exact_match": 0.326}), "the paper does not have it, a later one does"
    cells = (replace(study.cells[0], paper="table1.realm"), replace(study.cells[1], paper="table1.bm25_dpr_reader"))
    write_study_record(tmp_path / "runs", replace(study, cells=(*cells, *study.cells[2:])))
    text = report(tmp_path)
    assert text.count("*later papers*: ") == text.count("Karpukhin et al. 2020, Table 4") == 1
    assert text.count("compare directions, not numbers") == 2, "each table of the paper once"
    unknown = replace(study.cells[0], paper="table2.raelm")
    write_study_record(tmp_path / "runs", replace(study, cells=(unknown, *study.cells[1:])))
    with pytest.raises(UserError, match=r"no such published system; choose table2\.realm, "):
        report(tmp_path)


def test_a_new_metric_is_one_entry_and_its_value(tmp_path: Path, study: StudyRecord) -> None:
    register_metric(Metric("brevity", "brevity of answers", unit="words", digits=1, better="down"))
    try:
        for run in study.runs:
            path = stage_folder(tmp_path / "runs", study, run.cell, run.seed, "evaluate") / "results.json"
            edit(path, lambda found: found.update(brevity=2.0 + run.seed))  # noqa: B023
        write_study_record(tmp_path / "runs", replace(study, metrics=("brevity",)))
        text = report(tmp_path)
        assert "**Brevity of answers, words**" in text
        assert "| REALM | 3.0 ± 1.0 | 3 | – | – | baseline |" in text
        assert ",brevity," in (tmp_path / "reports" / "table" / "results.csv").read_text().splitlines()[0]
        assert "brevity of answers" in (tmp_path / "reports" / "index.html").read_text()
        assert main(["compare", "table/realm", "table/no_null", "--root", str(tmp_path)]) == 0
        compared = tmp_path / "reports" / "compare" / "table.realm-vs-table.no_null" / "report.md"
        assert "Brevity of answers" in compared.read_text()
    finally:
        del METRICS["brevity"]


def test_what_was_not_run_and_what_holds_in_every_cell_is_said(tmp_path: Path, study: StudyRecord) -> None:
    told = replace(study, not_run={"closed book": "too much | text to read"}, common={"pretrain.steps": 7})
    write_study_record(tmp_path / "runs", told)
    text = report(tmp_path)
    assert " · in every variant, over the preset: pretrain.steps = 7\n" in text
    rows = text.partition("**Not run**")[2].partition("\n\n**")[0]
    assert re.search(r"\| closed book +\| too much \\\| text to read +\|", rows)


@pytest.mark.slow
def test_a_smaller_report_never_replaces_a_more_complete_one(
    tmp_path: Path, study: StudyRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    report(tmp_path)
    before = tiny.files(tmp_path / "reports")
    shutil.rmtree(stage_folder(tmp_path / "runs", study, "no_null", 1, "evaluate"))
    assert main(["report", "table", "--root", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "counts 12 complete runs, here are 11; it stays as it is" in error
    assert "--force" in error
    assert error.count("\n") == 1
    assert main(["report", "--root", str(tmp_path)]) == 0
    assert "study table: its report stays as it is" in capsys.readouterr().err
    assert tiny.files(tmp_path / "reports") == before
    assert main(["report", "table", "--force", "--root", str(tmp_path)]) == 0
    assert read_json(tmp_path / "reports" / "table" / "summary.json")["coverage"]["complete"] == 11


def test_without_runs_everything_stays(tmp_path: Path, study: StudyRecord) -> None:
    text = report(tmp_path)
    before = tiny.files(tmp_path / "reports")
    shutil.rmtree(tmp_path / "runs")
    assert main(["report", "--root", str(tmp_path)]) == 0
    assert main(["report", "tabel", "--root", str(tmp_path)]) == 2
    (tmp_path / "reports" / "table" / "report.md").write_text("of older code")
    (tmp_path / "reports" / "table" / "figures" / "deltas.png").unlink()
    assert main(["report", "table", "--root", str(tmp_path)]) == 0, "rendered again from its data"
    assert tiny.files(tmp_path / "reports") == before
    assert main(["report", "table", "--html", "--root", str(tmp_path)]) == 0, "a page of a committed report"
    page = (tmp_path / "reports" / "table" / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert page.count("<details>") == text.count("<details")
    with refused(path=tmp_path / "elsewhere"):
        write_all(tmp_path / "elsewhere")


def test_a_report_without_a_ledger_names_that(tmp_path: Path) -> None:
    make_study(tmp_path / "runs")
    text = report(tmp_path)
    make_study(tmp_path / "planned" / "runs")
    (tmp_path / "table.yaml").write_text("seeds", encoding="utf-8")
    runs = tmp_path / "planned" / "runs"
    note_plan(runs, load_study(runs, "table").record, tmp_path / "table.yaml", 0)
    planned = report(tmp_path / "planned")
    assert [one.count("Plan: none") for one in (text, planned)] == [1, 0]
