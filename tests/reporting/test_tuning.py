"""A study at each cell's best value: what is chosen, from what, and what the report says then."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from realm_lab.core.files import digest, read_json, write_json
from realm_lab.reporting.study_contents import StudyContents
from realm_lab.reporting.study_report import build
from realm_lab.reporting.tuning import best, tuned_verdict, what_changes
from realm_lab.runner.collect import write_study_report
from realm_lab.tracking.run_dir import RunRecord, read_run_record, write_run_record
from realm_lab.tracking.study_record import (
    StudyRecord,
    StudyRun,
    StudyTuning,
    TunedStudyCell,
    write_study_record,
)
from tests.reporting import studies

RATE = "pretrain.candidates"  # any parameter of the synthetic runs, which have it in their records
# cell -> the curve's end at the own value and at the other one
DEV = {"realm": (0.9, 0.8), "random_token": (0.4, 0.7), "no_null": (0.9, 0.9)}
AT_OTHER = {"realm": 0.5, "random_token": 0.97, "no_null": 0.1}  # exact match of the grid's runs


def tuned_study(runs: Path, *, skip: tuple[tuple[str, int], ...] = (), changed: str = "") -> StudyRecord:
    """The synthetic study with a grid of one other value, seeds 0 and 1 of its three."""
    study = studies.make_study(runs)
    base = read_run_record(runs / study.of("realm")[0].run / "run.json")
    own = base.params["pretrain"]["candidates"]
    members, cells = [], []
    for cell, ends in DEV.items():
        for run in study.of(cell)[:2]:
            record = read_run_record(runs / run.run / "run.json")
            end_at(runs, record, ends[0])
            if (cell, run.seed) in skip:
                members.append(_at_other(runs, record, cell, own + 4, None, changed))
            else:
                members.append(_at_other(runs, record, cell, own + 4, ends[1], changed))
        cells.append(TunedStudyCell(f"{cell},candidates={own + 4}", f"{cell} at {own + 4}", cell, own + 4))
    tuning = StudyTuning(RATE, (own, own + 4), own, "cloze_exact_match", (0, 1), tuple(cells), tuple(members))
    study = replace(study, tuning=tuning)
    write_study_record(runs, study)
    return study


def end_at(runs: Path, record: RunRecord, value: float) -> None:
    """A curve that rises beyond its end before it: only the last value counts."""
    path = runs / record.stages["pretrain"] / "metrics.jsonl"
    rows = [{"step": step, "time": 1.0, "cloze_exact_match": v} for step, v in ((0, 0.1), (5, 0.99), (10, value))]
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(old + "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _at_other(runs: Path, record: RunRecord, cell: str, value: int, end: float | None, changed: str) -> StudyRun:
    params = json.loads(json.dumps(record.params))
    params["pretrain"]["candidates"] = value
    if changed == cell:
        params["pretrain"]["batch_size"] = 1234
    key = digest([record.run_key, value])
    made = replace(
        record,
        run_key=key,
        cell_key=digest([record.cell_key, value]),
        params=params,
        stages={stage: f"stages/{stage}-{digest([stage, key])[:12]}" for stage in record.stages},
    )
    write_run_record(runs, made)
    if end is not None:
        for stage, folder in made.stages.items():
            studies._write_stage(runs / folder, stage, digest([stage, key]), cell, record.seed, 1)
        end_at(runs, made, end)
        results = runs / made.stages["evaluate"] / "results.json"
        write_json(results, read_json(results) | {"exact_match": AT_OTHER[cell] + 0.01 * record.seed})
    return StudyRun(f"{cell},candidates={value}", record.seed, key, made.name)


def test_of_equal_values_the_cells_own_is_best() -> None:
    assert best([{0: 0.5, 1: 0.7}, {0: 0.6, 1: 0.8}], own=0) == 1
    assert best([{0: 0.5}, {0: 0.5}, {0: 0.5}], own=1) == 1
    assert best([{0: 0.5}, {0: 0.6}, {0: 0.6}], own=0) == 1


def test_each_cell_is_compared_at_its_best_value(tmp_path: Path) -> None:
    study = tuned_study(tmp_path / "runs")
    assert study.tuning is not None
    own = study.tuning.own
    contents = StudyContents(tmp_path / "runs", "table")
    tuned = contents.tuned
    assert tuned is not None
    chosen = {row.cell.name: tuned.tuning.values[row.chosen or 0] for row in tuned.grid}
    assert chosen == {"realm": own, "random_token": own + 4, "no_null": own}
    cells = {cell.cell.name: cell for cell in tuned.results[0].cells}
    assert cells["random_token"].values == {0: 0.97, 1: 0.98}
    assert cells["realm"].values == {seed: studies.exact_match("realm", seed, 0) for seed in (0, 1)}, (
        "at its own value, on the seeds of the grid"
    )
    assert cells["warm_start"].values.keys() == {0, 1}, "it is the same at every value"
    equal = {cell.cell.name: cell for cell in tuned.equal[0].cells}
    assert equal["random_token"].values[0] == studies.exact_match("random_token", 0, 2)
    assert len(contents.results[0].cells[0].values) == 3, "all else equal has all seeds"


def test_the_report_has_the_grid_and_says_what_changes(tmp_path: Path) -> None:
    tuned_study(tmp_path / "runs")
    contents = StudyContents(tmp_path / "runs", "table")
    plain = StudyContents(tmp_path / "runs", "table")
    plain.tuned = plain.grid = None
    document = build(contents)
    assert [section.key for section in document.sections][:2] == ["results", "tuned"]
    assert document.verdict.startswith(build(plain).verdict)
    text = write_study_report(tmp_path, "table").joinpath("report.md").read_text(encoding="utf-8")
    assert "0.700 ± 0.000 ✓" in text
    assert "Not pre-trained, so the same at every value: warm start only." in text
    assert tuned_verdict(contents.tuned) in document.verdict  # type: ignore[arg-type]
    changes = what_changes(contents.tuned)  # type: ignore[arg-type]
    assert "random <tokens>: " in changes[0]
    assert "The order of the cells changes" in changes[1]
    found = read_json(tmp_path / "reports" / "table" / "summary.json")["tuned"]
    assert found["grid"]["random_token"]["chosen"] == found["own_value"] + 4
    assert found["comparisons"]["exact_match"]["random_token"]["n"] == 2


def test_where_every_cell_is_best_as_it_is_the_verdict_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEV, "random_token", (0.7, 0.7))
    contents = StudyContents(tmp_path / "runs", tuned_study(tmp_path / "runs").name)
    assert contents.tuned is not None
    own = contents.tuned.tuning.own
    assert tuned_verdict(contents.tuned) == (
        "At each cell's best candidates the answer is the same: no cell does better on dev entities at "
        f"{own + 4} than at {own} (seeds 0, 1)."
    )


def test_nothing_is_chosen_from_unequal_budgets(tmp_path: Path) -> None:
    tuned_study(tmp_path / "runs", skip=(("random_token", 1),))
    contents = StudyContents(tmp_path / "runs", "table")
    assert contents.tuned is not None
    chosen = {row.cell.name: row.chosen for row in contents.tuned.grid}
    assert chosen == {"realm": 0, "random_token": None, "no_null": 0}
    cells = {cell.cell.name: cell for cell in contents.tuned.results[0].cells}
    assert cells["random_token"].values == {}
    text = write_study_report(tmp_path, "table").joinpath("report.md").read_text(encoding="utf-8")
    assert (
        "Incomplete grid, so no value is chosen for random &lt;tokens&gt;: no end of pre-training at 16, seed 1" in text
    )
    assert "Incomplete grid: 1 of its 6 runs are unfinished" in text.split("## ")[0]


def test_without_a_best_value_of_the_baseline_nothing_is_compared(tmp_path: Path) -> None:
    tuned_study(tmp_path / "runs", skip=(("realm", 0),))
    contents = StudyContents(tmp_path / "runs", "table")
    assert contents.tuned is not None
    assert contents.tuned.results == []
    assert tuned_verdict(contents.tuned) == ""
    text = write_study_report(tmp_path, "table").joinpath("report.md").read_text(encoding="utf-8")
    assert "No comparison yet: the baseline, REALM, has no best value." in text


@pytest.mark.parametrize(
    ("changed", "message"),
    [("", ""), ("no_null", "Confounded: no_null,candidates=16 also differs from no_null in pretrain.batch_size.")],
)
def test_a_run_of_the_grid_differs_from_its_cell_in_the_tuned_parameter_alone(
    tmp_path: Path, changed: str, message: str
) -> None:
    tuned_study(tmp_path / "runs", changed=changed)
    warnings = build(StudyContents(tmp_path / "runs", "table")).warnings
    assert warnings == ([message] if message else [])


def test_the_results_have_a_row_for_every_run_of_the_grid(tmp_path: Path) -> None:
    study = tuned_study(tmp_path / "runs")
    lines = write_study_report(tmp_path, "table").joinpath("results.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 12 + 6
    assert study.tuning is not None
    assert {run.run_key for run in study.tuning.runs} <= {part for line in lines for part in line.split(",")}
