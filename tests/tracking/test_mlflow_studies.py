"""An experiment for each study: its design and tables above, its runs below, and what a study no longer has is gone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from realm_lab.tracking.mlflow_mirror import Mirror, mirror
from realm_lab.tracking.run_dir import stage_of
from realm_lab.tracking.study_record import read_study_record, write_study_record
from tests.tracking import made_runs, shown

STUDY = ("studies", "default", "study.json")


def table_of(runs: Path, name: str) -> list[dict[str, object]]:
    """An artifact in the format of log_table, as rows."""
    client = shown.client_of(runs)
    run = client.get_run(shown.run_ids(runs)["default"])
    assert {"path": name, "type": "table"} in json.loads(run.data.tags["mlflow.loggedArtifacts"])
    table = json.loads(Path(client.download_artifacts(run.info.run_id, name)).read_text())
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def test_a_study_is_an_experiment_with_its_design_above_its_runs(runs: Path) -> None:
    made_runs.make_runs(runs)
    reports = runs.parent / "reports"
    (reports / "figures").mkdir(parents=True)
    (reports / "figures" / "utility.png").write_bytes(b"png")
    (reports / "report.md").write_text("# Report")
    summary = mirror(runs)
    assert (summary.studies, summary.runs, summary.created, summary.problems) == (1, 6, 6, ())
    (study,) = shown.content(runs, kind="study").values()
    assert (study["status"], study["points"]) == ("FINISHED", {})
    assert study["params"]["question"] == "Which spans should be masked?"
    assert (study["params"]["baseline"], study["params"]["seeds"]) == ("realm", "0, 1")
    assert "random_mask: pretrain.masking = random_token" in study["tags"]["realm.design"]
    assert "warm_start: system = warm_start" in study["tags"]["realm.design"]
    assert set(study["files"]) == {
        "study.json",
        "table_of_cells.json",
        "table_of_runs.json",
        "report.md",
        "figures/utility.png",
    }
    for name, run in shown.content(runs).items():
        assert run["tags"]["mlflow.parentRunId"] == "default"
        assert name == f"{run['tags']['realm.cell']}-s{run['tags']['realm.seed']}"
        assert run["tags"]["realm.baseline"] == str(run["tags"]["realm.cell"] == "realm").lower()
        assert not any("figures" in path for path in run["files"])
    tags = shown.content(runs)["random_mask-s1"]["tags"]
    assert tags["realm.changes"] == "pretrain.masking = random_token"
    assert "differs from the baseline `realm` by `pretrain.masking = random_token`" in tags["mlflow.note.content"]


def test_the_tables_are_those_of_the_results(runs: Path) -> None:
    records = made_runs.make_runs(runs, labels=("realm", "random_mask"), seeds=(0, 1, 2))
    stages = {(record.system, record.seed): stage_of(runs, record, "evaluate") for record in records}
    scores = {place: stage.results()["exact_match"] for place, stage in stages.items() if stage}
    mirror(runs)
    by_run = table_of(runs, "table_of_runs.json")
    assert {(row["cell"], row["seed"]): row["exact_match"] for row in by_run} == pytest.approx(scores, abs=1e-5)
    mine = [score for (label, _), score in scores.items() if label == "random_mask"]
    mean = sum(mine) / 3
    (row,) = [row for row in table_of(runs, "table_of_cells.json") if row["cell"] == "random_mask"]
    assert (row["title"], row["changes"]) == ("random token masks", "pretrain.masking = random_token")
    assert (row["runs"], row["exact_match"]) == ("3/3", pytest.approx(mean, abs=1e-5))
    assert row["exact_match_sd"] == pytest.approx((sum((x - mean) ** 2 for x in mine) / 2) ** 0.5, abs=1e-5)
    note = shown.content(runs, kind="study")["default"]["tags"]["mlflow.note.content"]
    assert f"| random_mask | pretrain.masking = random_token | 3/3 | {mean:.3f} |" in note


def test_a_run_of_two_studies_is_below_both_and_counts_once(runs: Path) -> None:
    made_runs.make_runs(runs, seeds=(0,))
    record = made_runs.make_run(runs, "realm", 0, study=None)
    made_runs.add_to_study(runs, record, cell="fresh", study="staleness")
    summary = mirror(runs)
    assert (summary.studies, summary.runs, summary.created) == (2, 3, 4)
    (run,) = shown.content(runs, "staleness").values()
    twin = shown.content(runs)["realm-s0"]
    assert (run["tags"]["realm.cell"], twin["tags"]["realm.cell"]) == ("fresh", "realm")
    assert (run["tags"]["realm.run_key"], run["points"]) == (record.run_key, twin["points"])
    assert set(shown.content(runs, "staleness")) == {"fresh-s0"}


def test_a_cell_renamed_or_added_keeps_the_runs_that_are_shown(runs: Path) -> None:
    made_runs.make_runs(runs, labels=("realm", "random_mask"), seeds=(0,))
    view = Mirror(runs)  # one that follows: it has shown the children and has to give them their new parent
    view.update()
    before = shown.run_ids(runs)
    design = read_study_record(runs.joinpath(*STUDY))
    cells = tuple(replace(cell, name="bert") if cell.name == "random_mask" else cell for cell in design.cells)
    members = tuple(replace(run, cell="bert") if run.cell == "random_mask" else run for run in design.runs)
    write_study_record(runs, replace(design, cells=cells, runs=members))
    made_runs.make_run(runs, "realm", 1)
    summary = view.update()
    assert (summary.created, summary.rebuilt, summary.removed) == (3, 0, 0)
    after = shown.run_ids(runs)
    assert (after["realm-s0"], after["bert-s0"]) == (before["realm-s0"], before["random_mask-s0"])
    (study,) = shown.content(runs, kind="study").values()
    assert study["params"]["seeds"] == "0, 1"
    assert {run["tags"]["mlflow.parentRunId"] for run in shown.content(runs).values()} == {"default"}


def test_what_a_study_no_longer_has_is_shown_as_unplanned(runs: Path) -> None:
    first, second = made_runs.make_runs(runs, labels=("realm",))
    mirror(runs)
    design = read_study_record(runs.joinpath(*STUDY))
    write_study_record(runs, replace(design, seeds=(0,), runs=design.runs[:1]))
    summary = mirror(runs)
    assert (summary.created, summary.removed) == (1, 1)
    assert set(shown.content(runs)) == {"realm-s0"}
    assert set(shown.content(runs, "unplanned")) == {second.name}
    assert shown.content(runs, "unplanned", kind="study") == {}
    # The whole study goes, and with it what is shown of it.
    shutil.rmtree(runs / "studies")
    mirror(runs)
    assert (shown.content(runs), shown.content(runs, kind="study")) == ({}, {})
    assert set(shown.content(runs, "unplanned")) == {first.name, second.name}
    # It comes back: nothing is unplanned any more.
    write_study_record(runs, design)
    mirror(runs)
    assert set(shown.content(runs)) == {"realm-s0", "realm-s1"}
    assert shown.content(runs, "unplanned") == {}


def test_a_broken_study_is_named_and_nothing_of_it_is_taken_away(runs: Path) -> None:
    made_runs.make_runs(runs, labels=("realm",))
    mirror(runs)
    before = shown.run_ids(runs)
    path = runs.joinpath(*STUDY)
    whole = path.read_text()
    path.write_text('{"name": 3}')
    summary = mirror(runs)
    assert len(summary.problems) == 1
    assert "study.json: " in summary.problems[0]
    assert summary.removed == 0
    path.write_text(whole)
    summary = mirror(runs)
    assert (summary.created, summary.rebuilt, summary.problems) == (0, 0, ())
    assert {name: shown.run_ids(runs)[name] for name in before} == before
    assert shown.content(runs, "unplanned") == {}


def test_a_run_that_a_study_plans_and_nobody_recorded_is_named(runs: Path) -> None:
    made_runs.make_run(runs, "realm", 0)
    gone = made_runs.make_run(runs, "realm", 1)
    shutil.rmtree(runs / gone.name)
    summary = mirror(runs)
    assert [problem.split(": ")[1] for problem in summary.problems] == [f"no run {gone.name}; plan the study again"]
    assert set(shown.content(runs)) == {"realm-s0"}
    assert shown.content(runs, kind="study")["default"]["status"] == "SCHEDULED"


def test_two_folders_of_runs_share_a_store_without_touching_each_other(runs: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "runs"
    made_runs.make_runs(runs, labels=("realm",), seeds=(0,))
    made_runs.make_runs(other, labels=("realm",), seeds=(1,))
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    mirror(runs, uri)
    for folder in (other, runs, other):
        summary = mirror(folder, uri)
        assert (summary.rebuilt, summary.removed) == (0, 0)
    assert set(shown.content(runs)) == {"realm-s0", "realm-s1"}


def test_a_study_ends_with_its_last_run(runs: Path) -> None:
    _, stage = made_runs.begin_pretrain(runs, 100)
    made_runs.make_run(runs, "realm", 0)
    mirror(runs)
    (study,) = shown.content(runs, kind="study").values()
    assert (study["status"], study["times"][1]) == ("RUNNING", None)
    assert study["tags"]["realm.progress"] == "1 of 2 runs complete"
    made_runs.complete(stage, 100, {}, made_runs.BEGAN_AT, 900.0)
    mirror(runs)
    (study,) = shown.content(runs, kind="study").values()
    assert (study["status"], study["times"][1]) == ("FINISHED", (made_runs.BEGAN_AT + 900) * 1000)
