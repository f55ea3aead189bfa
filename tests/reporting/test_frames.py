"""The loader: run folders become frames; what is missing or broken is listed, in the words of tracking/state.py."""

from __future__ import annotations

import json
import math
import os
import socket
from pathlib import Path

import pytest

from realm_lab.errors import UserError
from realm_lab.reporting import tables
from realm_lab.reporting.frames import Summary, load_committed, load_study, summarise
from realm_lab.reporting.rendering import NOTHING, mean_sd, number, probability, signed
from realm_lab.reporting.values import result_values, value_of
from realm_lab.tracking.study_record import StudyRecord
from tests.reporting.synthetic import edit, exact_match, run_json, stage_folder

GONE = 2**22 + 1  # no process has this number


def test_a_summary_is_the_textbook_one_and_one_value_has_no_spread() -> None:
    found = summarise([0.2, 0.4, 0.9, None, float("nan"), "0.7", True])
    assert found is not None
    assert found[:2] == (3, pytest.approx(0.5))
    assert found.sd == pytest.approx(math.sqrt((0.09 + 0.01 + 0.16) / 2))
    assert summarise([0.5]) == Summary(1, 0.5, None, 0.5, 0.5)
    assert summarise([]) is None
    assert (mean_sd(summarise([0.5])), mean_sd(None)) == ("0.500", NOTHING)


def test_numbers_are_written_with_a_true_minus() -> None:
    assert [number(-0.5, 1), number(-0.0001), number(None), signed(0.25), signed(0.0)] == [
        *("−0.5", "0.000", NOTHING, "+0.250", "0.000"),
    ]
    assert [probability(0.25), probability(0.00012), probability(None)] == ["0.250", "1.2e−4", NOTHING]


def test_older_names_of_results_become_the_present_ones() -> None:
    values = result_values({"edition_swap": {"follows": 0.9, "stays": None}, "retrieval_utility_end": 7.0, "text": "x"})
    assert values == {"corpus_update.follows": 0.9, "retrieval_utility_end": 7.0, "retrieval_utility": 7.0}


def test_a_run_is_a_row_with_every_number_of_it(tmp_path: Path, study: StudyRecord) -> None:
    frames = load_study(tmp_path / "runs", "table")
    assert len(frames.results) == 12
    assert frames.problems == []
    assert frames.values("no_null", "exact_match") == {seed: exact_match("no_null", seed, 3) for seed in (0, 1, 2)}
    assert frames.values("no_null", "index_staleness_steps") == dict.fromkeys((0, 1, 2), 31.0)
    assert frames.values("no_null", "wall_seconds") == dict.fromkeys((0, 1, 2), 4 * 240.0)
    assert frames.values("warm_start", "device_hours")[0] == pytest.approx(3 * 120 / 3600)
    assert frames.values("realm", "corpus_update.follows")[0] == 0.95
    assert frames.values("realm", "no_such_metric") == {}
    assert value_of(frames.of("realm")[0].stages, "recall_at_5") == 0.475


def test_a_step_logged_twice_counts_once_and_a_torn_line_does_not_stop_a_curve(
    tmp_path: Path, study: StudyRecord
) -> None:
    log = stage_folder(tmp_path / "runs", study, "realm", 0, "pretrain") / "metrics.jsonl"
    text = '{"step": 0, "time": 1.0, "loss": 2.0}\n{"step": 10, "time": 2.0, "loss": null}\n'
    log.write_text(text + '{"step": 0, "time": 3.0, "loss": 1.5}\n{"step": 20, "ti')
    curves = load_study(tmp_path / "runs", "table").curves
    assert curves[curves["metric"] == "loss"][["cell", "step", "value"]].to_numpy().tolist() == [["realm", 0, 1.5]]


def test_cells_that_share_a_stage_both_have_its_curves_and_it_is_drawn_once(tmp_path: Path, study: StudyRecord) -> None:
    for seed in (0, 1, 2):
        shared = json.loads(run_json(tmp_path / "runs", study, "realm", seed).read_text())["stages"]["pretrain"]
        edit(run_json(tmp_path / "runs", study, "no_null", seed), lambda found: found["stages"].update(pretrain=shared))  # noqa: B023
    frames = load_study(tmp_path / "runs", "table")
    assert {*frames.curves["cell"]} == {"realm", "random_token", "no_null"}
    assert [name for name, _ in frames.pretrained] == ["realm", "random_token"]


@pytest.mark.parametrize(
    ("status", "state", "why"),
    [
        ({"state": "FAILED", "error": "UserError: out of memory"}, "FAILED", "pretrain: out of memory"),
        ({"state": "PREEMPTED"}, "PREEMPTED", NOTHING),
        ({"state": "RUNNING", "host": socket.gethostname(), "pid": GONE}, "LOST", "is gone or silent"),
        ({"state": "RUNNING", "host": socket.gethostname(), "pid": os.getpid()}, "RUNNING", NOTHING),
    ],
)
def test_an_unfinished_run_has_one_state_everywhere(
    tmp_path: Path, study: StudyRecord, status: dict[str, object], state: str, why: str
) -> None:
    folder = stage_folder(tmp_path / "runs", study, "realm", 1, "pretrain")
    edit(folder / "status.json", lambda found: found.update(status, heartbeat_at=4e9, step=7))
    frames = load_study(tmp_path / "runs", "table")
    row = frames.results[(frames.results["cell"] == "realm") & (frames.results["seed"] == 1)].iloc[0]
    assert row["status"] == state
    assert math.isnan(row["exact_match"])
    assert tables.coverage(frames)["states"] == {"COMPLETE": 11, state: 1}
    [shown] = [row for row in tables.run_rows(frames) if "why" in row]
    assert (shown["state"], shown["stage"], shown["step"]) == (state, "pretrain", "7 of 20")
    assert shown["why"].endswith(why)


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
        assert tables.coverage(frames) == {"runs": 12, "complete": 11, "states": {"COMPLETE": 11, "PENDING": 1}}


def test_a_study_that_is_not_there_is_named(tmp_path: Path, study: StudyRecord) -> None:
    with pytest.raises(UserError, match=r"no runs of study 'maskin' here; run `realm-lab sweep maskin`.*here: table"):
        load_study(tmp_path / "runs", "maskin")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("summary.json", "{}", "not the summary of a study"),
        ("results.csv", "a,b\n1,2\n", "results.csv: no column cell, seed, status; write the report again"),
    ],
)
def test_a_broken_report_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / "summary.json").write_text('{"study": "s", "cells": {}, "baseline": "a", "coverage": {}}')
    (tmp_path / "results.csv").write_text("cell,seed,status\n")
    load_committed(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        load_committed(tmp_path)
