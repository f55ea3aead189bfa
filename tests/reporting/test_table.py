"""Run folders become rows: what is there, what is missing, and simple statistics."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from realm_lab.reporting import document, table
from tests.reporting import synthetic


def test_a_summary_is_the_textbook_one() -> None:
    summary = table.summarise([0.2, 0.4, 0.9])
    assert summary is not None
    assert summary.n == 3
    assert summary.mean == pytest.approx(0.5)
    assert summary.sd == pytest.approx(math.sqrt((0.09 + 0.01 + 0.16) / 2))
    assert (summary.low, summary.high) == (0.2, 0.9)


def test_one_value_has_no_spread_and_none_has_no_summary() -> None:
    one = table.summarise([0.5, None, float("nan"), "0.7", True])
    assert one == table.Summary(1, 0.5, None, 0.5, 0.5)
    assert table.summarise([]) is None
    assert document.mean_sd([0.5]) == "0.500"
    assert document.mean_sd([]) == document.NOTHING


def test_rows_hold_every_number_of_the_results(tmp_path: Path) -> None:
    names = synthetic.make_runs(tmp_path)
    rows = table.results_table(table.collect(tmp_path, "default"))
    assert sorted(rows["run"]) == sorted(names)
    assert table.column(rows, "realm", "exact_match") == {0: 0.972, 1: 0.948}
    assert set(table.column(rows, "realm", "edition_swap.follows")) == {0, 1}
    assert table.column(rows, "warm_start", "edition_swap.follows") == {}
    assert table.column(rows, "warm_start", "no_such_metric") == {}


def test_the_baseline_comes_first(tmp_path: Path) -> None:
    synthetic.make_runs(tmp_path)
    collection = table.collect(tmp_path, "default")
    assert collection.labels == ["warm_start", "realm"]
    assert (collection.baseline, collection.treatment) == ("warm_start", "realm")


def test_a_shared_warm_start_is_drawn_once_per_seed(tmp_path: Path) -> None:
    synthetic.make_runs(tmp_path)
    points = table.curves_table(table.collect(tmp_path, "default"))
    warm = points[points["stage"] == "warm_start"]
    assert set(warm["label"]) == {"shared"}
    assert not warm.duplicated(["seed", "metric", "step"]).any()
    assert set(points[points["metric"] == "retrieval_utility"]["step"]) == set(range(0, 561, 70))


def test_a_torn_line_and_nulls_do_not_stop_a_curve(tmp_path: Path) -> None:
    names = synthetic.make_runs(tmp_path, (0,))
    log = synthetic.stage_folder(tmp_path, names[1], "pretrain") / "metrics.jsonl"
    text = '{"step": 0, "time": 1.0, "loss": 2.0}\n{"step": 10, "time": 2.0, "loss": null}\n'
    log.write_text(text + '{"step": 0, "time": 3.0, "loss": 1.5}\n{"step": 20, "ti')
    points = table.curves_table(table.collect(tmp_path, "default"))
    loss = points[(points["metric"] == "loss") & (points["stage"] == "pretrain")]
    assert loss[["step", "value"]].to_numpy().tolist() == [[0, 1.5]]


def test_coverage_names_what_is_missing_and_why(tmp_path: Path) -> None:
    names = synthetic.make_runs(tmp_path)
    folder = synthetic.stage_folder(tmp_path, names[3], "pretrain")
    synthetic.set_status(folder, state="FAILED", step=120, error="loss is not finite")
    collection = table.collect(tmp_path, "default", [*names, "realm-s2-0123456789ab"], [0, 1, 2])
    coverage = table.coverage_table(collection).set_index(["label", "seed"])
    assert coverage.loc[("realm", 1), "pretrain"] == "FAILED"
    assert coverage.loc[("realm", 2), "pretrain"] == "no run"
    assert coverage.loc[("warm_start", 0), "pretrain"] == "–"
    gaps = "\n".join(table.gaps(collection))
    assert "realm, seed 1: stage pretrain is FAILED at step 120 of 560 (loss is not finite)." in gaps
    assert "realm, seed 2: there is no run." in gaps
    assert "Run realm-s2-0123456789ab is listed" in gaps


def test_a_complete_study_has_no_gaps(tmp_path: Path) -> None:
    synthetic.make_runs(tmp_path)
    collection = table.collect(tmp_path, "default")
    assert table.gaps(collection) == []
    assert collection.problems == []


def test_a_broken_record_is_a_problem_and_not_a_crash(tmp_path: Path) -> None:
    names = synthetic.make_runs(tmp_path)
    (tmp_path / names[0] / "run.json").write_text("{")
    collection = table.collect(tmp_path, "default")
    assert len(collection.runs) == 3
    assert [problem.split(",")[0] for problem in collection.problems] == [f"runs/{names[0]}/run.json"]


def test_only_the_named_runs_are_taken(tmp_path: Path) -> None:
    names = synthetic.make_runs(tmp_path)
    collection = table.collect(tmp_path, "default", names[:2])
    assert sorted(run.record.name for run in collection.runs) == sorted(names[:2])
    assert collection.seeds == [0]


def test_another_study_is_not_shown(tmp_path: Path) -> None:
    synthetic.make_runs(tmp_path)
    assert table.collect(tmp_path, "staleness").runs == []


def test_the_labels_are_the_cells_of_the_study(tmp_path: Path) -> None:
    names = synthetic.make_runs(tmp_path)
    path = tmp_path / "studies" / "default" / "study.json"
    design = json.loads(path.read_text())
    design["cells"][1]["name"] = "fresh"
    design["runs"] = [run | {"cell": "fresh"} for run in design["runs"] if run["run"].startswith("realm")]
    design["baseline"] = "fresh"
    path.write_text(json.dumps(design))
    collection = table.collect(tmp_path, "default")
    assert (collection.labels, collection.baseline) == (["fresh"], "fresh")
    assert {run.record.name for run in collection.of("fresh")} == {name for name in names if name.startswith("realm")}
    design["seeds"] = "none"
    path.write_text(json.dumps(design))
    collection = table.collect(tmp_path, "default", names[:1])
    assert (collection.labels, collection.baseline) == (["warm_start"], None)
    assert "runs/studies/default/study.json: seeds" in collection.problems[0]
