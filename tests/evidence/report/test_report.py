"""The report of a study: its numbers by hand, its verdicts, its parts, and the files that it never replaces."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from realm_lab.cli import main
from realm_lab.errors import UserError
from realm_lab.evidence.report.comparison import as_json, compare_cells, question_intervals
from realm_lab.evidence.report.frames import load_runs, load_study
from realm_lab.evidence.report.published import published
from realm_lab.evidence.report.report import write_all, write_study_report
from realm_lab.records.files import read_json
from realm_lab.records.study import StudyRecord, write_study_record
from tests import tiny
from tests.evidence.report.synthetic import METRICS as COMPARED
from tests.evidence.report.synthetic import (  # fmt: skip
    edit,
    exact_match,
    make_study,
    report,
    stage_folder,
    verdict,
)
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


def test_what_cannot_be_compared_says_why(tmp_path: Path, study: StudyRecord) -> None:
    reasons = {"retrieval": "it finds nothing", "BM25": "no"}

    def results(cell: str, seed: int) -> Path:
        return stage_folder(tmp_path / "runs", study, cell, seed, "evaluate") / "results.json"

    for seed in (0, 1, 2):
        edit(results("no_null", seed), lambda found: found.update(recall_at_5=None, not_measured=reasons))
        edit(results("warm_start", seed).with_name("status.json"), lambda found: found.update(state="PREEMPTED"))
    for cell, seed in (("realm", 0), ("random_token", 1), ("random_token", 2)):
        edit(results(cell, seed), lambda found: found.pop("recall_at_5"))
    record = replace(study, baseline="no_null")
    frames = load_runs(tmp_path / "runs", record)
    found = compare_cells(record, frames.results, ["recall_at_5"], None, frames.not_measured)
    assert verdict(record, found).lead == (
        "No answer: recall@5, zero-shot of the baseline is not measured (it finds nothing)."
    )
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
    lists = text.partition("\n## Flagged runs: 1\n")[2]
    assert "\n- random_token, seed 2, evaluate: odd: a \\| b\n" in lists
    assert "\n- Incomplete: 10 of 12 runs are complete (1 FAILED, 1 PREEMPTED).\n" in lists
    found = as_json(compared(tmp_path))["exact_match"]
    assert (found["no_null"]["n"], found["random_token"]["n"], found["warm_start"]["n"]) == (2, 2, 3)


def test_a_name_with_a_dot_is_whole(tmp_path: Path) -> None:
    make_study(tmp_path / "runs", (0, 1), name="v1.2")
    assert main(["report", "v1.2", "--root", str(tmp_path)]) == 0
    assert (tmp_path / "reports" / "v1.2" / "report.md").is_file()


def test_published_numbers_are_named(tmp_path: Path, study: StudyRecord) -> None:
    later = published("table1.bm25_dpr_reader")
    assert (later.values, later.later) == ({}, {"exact_match": 0.326}), "the paper does not have it, a later one does"
    unknown = replace(study.cells[0], paper="table2.raelm")
    write_study_record(tmp_path / "runs", replace(study, cells=(unknown, *study.cells[1:])))
    with pytest.raises(UserError, match=r"no such published system; choose table2\.realm, "):
        report(tmp_path)


def test_what_holds_in_every_cell_is_said(tmp_path: Path, study: StudyRecord) -> None:
    write_study_record(tmp_path / "runs", replace(study, common={"pretrain.steps": 7}))
    assert " · in every variant, over the preset: pretrain.steps = 7\n" in report(tmp_path)


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
