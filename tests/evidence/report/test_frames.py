"""The loader: run folders become frames; missing or broken ones are listed, in the words of records/state.py."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from realm_lab.evidence.report import tables
from realm_lab.evidence.report.default_run import metrics_of
from realm_lab.evidence.report.figures import COLOURS
from realm_lab.evidence.report.figures_training import retrieval_utility
from realm_lab.evidence.report.frames import column, load_committed, load_study, read_results, results_text
from realm_lab.evidence.report.sections.corpus_updates import update_rows
from realm_lab.evidence.statistics.intervals import Summary, summarise
from realm_lab.evidence.statistics.wording import NOTHING, mean_sd, signed
from realm_lab.records.computed import Prediction
from realm_lab.records.digests import write_last
from realm_lab.records.files import read_json
from realm_lab.records.metrics import METRICS, Metric
from realm_lab.records.study import StudyRecord, write_study_record
from tests.evidence.report.synthetic import edit, exact_match, report, run_json, stage_folder
from tests.factories.errors import refused
from tests.factories.finished import finished


def test_a_summary_is_the_textbook_one_and_one_value_has_no_spread() -> None:
    found = summarise([0.2, 0.4, 0.9, float("nan")])
    assert found is not None
    assert found[:2] == (3, pytest.approx(0.5))
    assert found.sd == pytest.approx(math.sqrt((0.09 + 0.01 + 0.16) / 2))
    assert summarise([0.5]) == Summary(1, 0.5, None, 0.5, 0.5)
    assert summarise([]) is None
    assert [mean_sd(summarise(values)) for values in ([0.5], [0.2, 0.4])] == ["0.500", "0.300"]
    assert (mean_sd(found), mean_sd(None)) == ("0.500 ± 0.361", NOTHING)


def test_a_run_is_a_row_with_every_number_of_it(tmp_path: Path, study: StudyRecord) -> None:
    frames = load_study(tmp_path / "runs", "table")
    assert len(frames.results) == 12
    assert frames.problems == []
    assert column(frames.results, "no_null", "exact_match") == {
        seed: exact_match("no_null", seed, 3) for seed in (0, 1, 2)
    }
    assert column(frames.results, "no_null", "index_staleness_steps") == dict.fromkeys((0, 1, 2), 31.0)
    assert column(frames.results, "no_null", "wall_seconds") == dict.fromkeys((0, 1, 2), 4 * 240.0)
    assert column(frames.results, "warm_start", "device_hours")[0] == pytest.approx(3 * 120 / 3600)
    assert column(frames.results, "realm", "corpus_update.follows")[0] == 0.95
    assert column(frames.results, "realm", "no_such_metric") == {}
    assert frames.of("realm")[0].values["recall_at_5"] == 0.475


def test_corpus_updates_of_its_runs_are_a_table_of_the_study(tmp_path: Path, study: StudyRecord) -> None:
    for seed, change in enumerate((1.0, 2.0, 4.5)):
        folder = run_json(tmp_path / "runs", study, "realm", seed).parent / "corpus_updates" / "v1.1"
        sides = {"old": {"log_likelihood": -9.0, "exact_match": 0.5}, "new": {"log_likelihood": change - 9.0}}
        shares = {side: {"follows": share, "stays": 1 - share} for side, share in (("old", 0.0), ("new", 0.25))}
        asked = {f"{side}_corpus": found for side, found in shares.items()}
        write_last(folder / "result.json", {"clozes": {"only": sides | {"difference": {}}}, "questions": asked}, ())
    frames = load_study(tmp_path / "runs", "table")
    only = "corpus_updates.v1.1.only"
    assert column(frames.results, "realm", f"{only}.new.log_likelihood") == {0: -8.0, 1: -7.0, 2: -4.5}
    assert "corpus_updates" not in str(metrics_of(frames.record, frames.results, [])), "metrics.json has fixed keys"
    rows = update_rows(frames.results, frames.cells)
    half = 4.302653 * math.sqrt(3.25 / 3)  # Student's t with two degrees of freedom, and the variance
    assert rows[0]["new − old [95 %]"] == f"+2.50 [{signed(2.5 - half, 2)} to {signed(2.5 + half, 2)}]"
    assert [row["p"] for row in rows] == ["0.250"] * 3, "the smallest p of three seeds, 2 / 2^3"


def test_no_p_is_zero() -> None:
    sides = {"old": range(12), "new": range(1, 13)}
    values = {f"corpus_updates.v2.questions.{side}.follows": values for side, values in sides.items()}
    table = pd.DataFrame({"cell": "realm", "seed": range(12)} | values)
    assert [row["p"] for row in update_rows(table, [("realm", "REALM")])] == ["< 0.001"]


def test_cells_that_share_a_stage_both_have_its_curves_and_it_is_drawn_once(tmp_path: Path, study: StudyRecord) -> None:
    for seed in (0, 1, 2):
        shared = json.loads(run_json(tmp_path / "runs", study, "realm", seed).read_text())["stages"]["pretrain"]
        edit(run_json(tmp_path / "runs", study, "no_null", seed), lambda found: found["stages"].update(pretrain=shared))  # noqa: B023
    frames = load_study(tmp_path / "runs", "table")
    assert {*frames.curves["cell"]} == {"realm", "random_token", "no_null"}
    assert [name for name, _ in frames.pretrained] == ["realm", "random_token"]
    figure = retrieval_utility(frames)
    colours = {name: COLOURS[number] for number, (name, _) in enumerate(frames.cells)}
    assert [line.get_color() for line in figure.axes[0].lines] == [colours["realm"], colours["random_token"]]


def test_the_age_of_the_index_is_the_mean_over_all_steps_since_the_point_before(
    tmp_path: Path, study: StudyRecord
) -> None:
    """Logged every tenth step, the age of an index that is refreshed every third looks like one of every thirtieth."""
    ages = [step % 3 for step in range(30)]
    path = stage_folder(tmp_path / "runs", study, "realm", 0, "pretrain") / "metrics.jsonl"
    rows = [
        {"step": n, "time": 1.0, "index_staleness_steps": ages[n - 1], "index_staleness_steps_mean": sum(ages[:n]) / n}
        for n in (10, 20, 30)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    finished(path.parent)
    curves = load_study(tmp_path / "runs", "table").curves
    mine = curves[(curves["cell"] == "realm") & (curves["seed"] == 0) & (curves["metric"] == "index_staleness_steps")]
    assert mine["step"].tolist() == [10, 20, 30]
    assert mine["value"].tolist() == pytest.approx([sum(ages[n - 10 : n]) / 10 for n in (10, 20, 30)])


def test_names_that_look_like_numbers_or_nothing_stay_names() -> None:
    text = "cell,seed,run_key,status,exact_match\n007,0,1e5,COMPLETE,0.1\nnull,1,NA,COMPLETE,\n"
    found = read_results(text)
    assert found["cell"].tolist() == ["007", "null"]
    assert found["run_key"].tolist() == ["1e5", "NA"]
    assert results_text(found) == text


@pytest.mark.parametrize("file", ["run.json", "status.json", "results.json", "env.json", "metrics.jsonl"])
def test_a_broken_file_is_a_problem_and_not_a_crash(tmp_path: Path, study: StudyRecord, file: str) -> None:
    folder = stage_folder(tmp_path / "runs", study, "realm", 0, "evaluate" if file == "results.json" else "pretrain")
    path = run_json(tmp_path / "runs", study, "realm", 0) if file == "run.json" else folder / file
    path.write_text('{"step": \n{"a": 1}\n')
    frames = load_study(tmp_path / "runs", "table")
    assert len(frames.curves) > 0
    assert any(f"{path.parent.name}/{file}" in problem for problem in frames.problems)
    assert str(tmp_path) not in " ".join(frames.problems), "the same on every machine"
    assert len(frames.results) == 12
    if file in ("run.json", "status.json"):
        assert tables.coverage(frames.results) == {"runs": 12, "complete": 11, "states": {"COMPLETE": 11, "PENDING": 1}}


def test_values_out_of_bounds_are_named(tmp_path: Path, study: StudyRecord) -> None:
    path = stage_folder(tmp_path / "runs", study, "realm", 0, "evaluate") / "results.json"
    edit(path, lambda found: found.update(exact_match=-5, recall_at_5=1.0000001, retrieval_utility_end=1e308))
    frames = load_study(tmp_path / "runs", "table")
    assert frames.problems == ["realm, seed 0: exact_match is -5, and can only be 0 to 1"]
    assert 0 not in column(frames.results, "realm", "retrieval_utility_end"), "no mean of it could be computed"


def returns(value: Any) -> Any:
    def metric(predictions: list[Prediction]) -> Any:
        return value

    return metric


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("value", ["5.25", math.nan, 1e308])
def test_a_metric_without_a_number_is_a_row_and_no_other_is_affected(
    tmp_path: Path, study: StudyRecord, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.evidence.report.test_frames.letters", returns(value))
    answer = {"id": "q0", "question": "?", "answers": ["a"], "prediction": "a"}
    for run in study.runs:
        folder = stage_folder(tmp_path / "runs", study, run.cell, run.seed, "evaluate")
        (folder / "eval" / "predictions.jsonl").write_text(json.dumps(answer) + "\n")
        finished(folder)
    own = Metric("letters", "letters", part="answers", choice="tests.evidence.report.test_frames:letters")
    metrics = ("letters", *study.metrics)
    write_study_record(tmp_path / "runs", replace(study, metrics=metrics, own_metrics=(own,)))
    try:
        text = report(tmp_path)
    finally:
        METRICS.pop("letters", None)
    summary = read_json(tmp_path / "reports" / "table" / "summary.json")
    reason = f"it returned {value!r}, which is no number to compute with"
    assert summary["lead"] == f"No answer: letters is not measured ({reason})."
    assert summary["comparisons"]["letters"] == {}
    assert summary["comparisons"]["exact_match"]["no_null"]["tests"] == 4 * 3
    assert summary["gaps"]["letters"]["realm"] == {"gap": "not measured", "reason": reason}
    assert "baseline, not measured: it returned" in text


def letters(predictions: list[Prediction]) -> Any:
    """Stand for the metric of a test."""


@pytest.mark.parametrize("name", ["summary.json", "results.csv"])
def test_a_broken_report_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "results.csv").write_text("cell,seed,status\n")
    load_committed(tmp_path)
    (tmp_path / name).write_text("")
    with refused(remedy="write the report again"):
        load_committed(tmp_path)
