"""A study at each cell's best value: what is chosen, from what, and what the report says then."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from realm_lab.core.files import digest, read_json
from realm_lab.reporting.confounds import confounds
from realm_lab.reporting.frames import load_study
from realm_lab.reporting.report import write_study_report
from realm_lab.reporting.tuning import Tuned, best, tune, tuned_verdict
from realm_lab.tracking.run_dir import RunRecord, read_run_record, write_run_record
from realm_lab.tracking.study_record import StudyRecord, StudyRun, StudyTuning, TunedStudyCell, write_study_record
from tests.reporting.synthetic import edit, exact_match, run_json, write_stage

PARAMETER = "pretrain.candidates"  # any parameter of the synthetic runs, which have it in their records
OWN, OTHER = 12, 16
# cell -> the curve's end at the own value and at the other one
ENDS = {"realm": (0.9, 0.8), "random_token": (0.4, 0.7), "no_null": (0.9, 0.9)}
AT_OTHER = {"realm": 0.5, "random_token": 0.97, "no_null": 0.1}  # exact match of the grid's runs


def add_grid(
    runs: Path,
    study: StudyRecord,
    *,
    skip: tuple[tuple[str, int], ...] = (),
    changed: str = "",
    by: str = "cloze_exact_match",
) -> Tuned:
    """Give the synthetic study a grid of one other value, on seeds 0 and 1 of its three."""
    members, cells = [], []
    for cell, ends in ENDS.items():
        for seed in (0, 1):
            record = read_run_record(run_json(runs, study, cell, seed))
            end_at(runs, record, ends[0])
            results = runs / record.stages["evaluate"] / "results.json"
            edit(results, lambda found: found.update(exact_match_dev=0.75))
            end = None if (cell, seed) in skip else ends[1]
            members.append(at_other(runs, record, cell, end, changed))
        cells.append(TunedStudyCell(f"{cell},candidates={OTHER}", f"{cell} at {OTHER}", cell, OTHER))
    tuning = StudyTuning(PARAMETER, (OWN, OTHER), OWN, by, (0, 1), tuple(cells), tuple(members))
    write_study_record(runs, replace(study, tuning=tuning))
    tuned = tune(load_study(runs, "table"))
    assert tuned is not None
    return tuned


def end_at(runs: Path, record: RunRecord, value: float) -> None:
    """A curve that rises beyond its end before it: only the last value counts."""
    rows = [{"step": step, "time": 1.0, "cloze_exact_match": v} for step, v in ((15, 0.99), (20, value))]
    with open(runs / record.stages["pretrain"] / "metrics.jsonl", "a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def at_other(runs: Path, record: RunRecord, cell: str, end: float | None, changed: str) -> StudyRun:
    params = json.loads(json.dumps(record.params))
    params["pretrain"] |= {"candidates": OTHER} | ({"batch_size": 1234} if changed == cell else {})
    key = digest([record.run_key, OTHER])
    stages = {stage: f"stages/{stage}-{digest([stage, key])[:12]}" for stage in record.stages}
    made = replace(record, run_key=key, cell_key=digest([record.cell_key, OTHER]), params=params, stages=stages)
    write_run_record(runs, made)
    if end is not None:
        for stage, folder in made.stages.items():
            write_stage(runs / folder, stage, digest([stage, key]), cell, record.seed, 1)
        end_at(runs, made, end)
        results = runs / made.stages["evaluate"] / "results.json"
        edit(results, lambda found: found.update(exact_match=AT_OTHER[cell] + 0.01 * record.seed))
        edit(results, lambda found: found.update(exact_match_dev=0.25 if cell == "random_token" else 1.0))
    return StudyRun(f"{cell},candidates={OTHER}", record.seed, key, made.name)


def test_of_equal_values_the_cells_own_is_best() -> None:
    assert best([{0: 0.5, 1: 0.7}, {0: 0.6, 1: 0.8}], own=0) == 1
    assert best([{0: 0.5}, {0: 0.5}, {0: 0.5}], own=1) == 1
    assert best([{0: 0.5}, {0: 0.6}, {0: 0.6}], own=0) == 1


def test_each_cell_is_compared_at_its_best_value(tmp_path: Path, study: StudyRecord) -> None:
    tuned = add_grid(tmp_path / "runs", study)
    assert tuned.chosen == {"realm": str(OWN), "random_token": str(OTHER), "no_null": str(OWN)}
    cells = {cell.cell.name: cell for cell in tuned.results[0].cells}
    assert cells["random_token"].values == {0: 0.97, 1: 0.98}
    assert cells["realm"].values == {seed: exact_match("realm", seed, 0) for seed in (0, 1)}, "on the grid's seeds"
    assert cells["warm_start"].values.keys() == {0, 1}, "it is the same at every value"
    equal = {cell.cell.name: cell for cell in tuned.equal[0].cells}
    assert equal["random_token"].values[0] == exact_match("random_token", 0, 2)
    assert cells["random_token"].finding.startswith("higher")
    assert equal["random_token"].finding.startswith("lower")
    folder = write_study_report(tmp_path, "table")
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "0.700 ± 0.000 ✓" in text
    assert "Not pre-trained, so the same at every value: warm start only." in text
    summary = read_json(folder / "summary.json")
    assert tuned_verdict(tuned) in summary["verdict"]
    assert summary["tuned"]["grid"]["random_token"]["chosen"] == OTHER
    assert summary["tuned"]["comparisons"]["exact_match"]["random_token"]["n"] == 2
    assert len((folder / "results.csv").read_text().splitlines()) == 1 + 12 + 6
    assert "at 16" not in (tmp_path / "reports" / "index.html").read_text(), (
        "the grid's cells are no cells of the study"
    )


def test_where_every_cell_is_best_as_it_is_the_verdict_is_not_repeated(
    tmp_path: Path, study: StudyRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENDS, "random_token", (0.7, 0.7))
    assert tuned_verdict(add_grid(tmp_path / "runs", study)) == (
        f"At each cell's best candidates the answer is the same: no cell does better on development data at {OTHER} "
        f"than at {OWN} (seeds 0, 1)."
    )


def test_exact_match_on_development_questions_chooses(tmp_path: Path, study: StudyRecord) -> None:
    tuned = add_grid(tmp_path / "runs", study, by="exact_match_dev")
    assert tuned.chosen == {"realm": str(OTHER), "random_token": str(OWN), "no_null": str(OTHER)}
    text = (write_study_report(tmp_path, "table") / "report.md").read_text(encoding="utf-8")
    assert "best mean of *exact match, development questions*, measured on development data alone" in text
    assert "share their pre-training, and so" not in text


def test_nothing_is_chosen_from_unequal_budgets(tmp_path: Path, study: StudyRecord) -> None:
    tuned = add_grid(tmp_path / "runs", study, skip=(("random_token", 1),))
    assert tuned.chosen.keys() == {"realm", "no_null"}
    assert {cell.cell.name: cell for cell in tuned.results[0].cells}["random_token"].values == {}
    text = (write_study_report(tmp_path, "table") / "report.md").read_text(encoding="utf-8")
    told = "no value is chosen for random &lt;tokens&gt;: no cloze exact match at the end of pre-training at 16, seed 1"
    assert told in text
    assert "Incomplete: 17 of 18 runs are complete (1 PENDING)." in text.split("## ")[0]


def test_without_a_best_value_of_the_baseline_nothing_is_compared(tmp_path: Path, study: StudyRecord) -> None:
    tuned = add_grid(tmp_path / "runs", study, skip=(("realm", 0),))
    assert (tuned.results, tuned_verdict(tuned)) == ([], "")
    text = (write_study_report(tmp_path, "table") / "report.md").read_text(encoding="utf-8")
    assert "No comparison yet: the baseline has no best value." in text


@pytest.mark.parametrize("changed", ["", "no_null"])
def test_a_run_of_the_grid_differs_from_its_cell_in_the_tuned_parameter_alone(
    tmp_path: Path, study: StudyRecord, changed: str
) -> None:
    add_grid(tmp_path / "runs", study, changed=changed)
    told = "Confounded: no_null,candidates=16 also differs from no_null in pretrain.batch_size."
    assert confounds(load_study(tmp_path / "runs", "table")) == ([told] if changed else [])
