from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from realm_lab.errors import UserError
from realm_lab.tracking.mlflow_mirror import MirrorSummary, mirror
from realm_lab.tracking.run_dir import StageRun, stage_of, write_run_record
from tests.tracking import made_runs, shown

BEGAN_AT = 1_790_000_000.0  # as in made_runs.py


def dump(runs: Path) -> list[str]:
    """Everything in the database."""
    with sqlite3.connect(runs.parent / "mlflow.db") as database:
        return list(database.iterdump())


def expected_points(stage: StageRun) -> dict[str, list[tuple[int, int, float]]]:
    points: dict[str, list[tuple[int, int, float]]] = {}
    for row in stage.metrics.rows():
        for name, value in row.items():
            if name not in ("step", "time"):
                points.setdefault(f"pretrain/{name}", []).append((row["step"], round(row["time"] * 1000), value))
    return {name: sorted(values) for name, values in points.items()}


def mirror_dying(runs: Path, monkeypatch: pytest.MonkeyPatch, method: str, dying: Callable[..., None]) -> None:
    """A mirror whose client dies of OSError("killed") in `method`."""
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, method, dying)
        with pytest.raises(OSError, match="killed"):
            mirror(runs)


def test_a_finished_run_is_shown_as_its_folder_says(runs: Path) -> None:
    record = made_runs.make_run(runs, "realm", 0)
    summary = mirror(runs)
    assert (summary.runs, summary.created, summary.problems) == (1, 1, ())
    (run,) = shown.content(runs).values()
    assert run["status"] == "FINISHED"
    assert run["times"] == (BEGAN_AT * 1000, (BEGAN_AT + 420) * 1000)
    assert run["params"]["pretrain.reader.learning_rate"] == "3e-05"
    assert run["params"]["pretrain.masking"] == "salient_span"
    assert run["params"]["corpus.toy.world_seed"] == "none"
    assert run["tags"]["realm.run_key"] == record.run_key
    assert run["tags"]["realm.cell_key"] == record.cell_key
    assert (run["tags"]["realm.baseline"], run["tags"]["realm.seed"]) == ("true", "0")
    assert (run["tags"]["realm.cell"], run["tags"]["realm.system"], run["tags"]["realm.attempt"]) == (
        "realm",
        "realm",
        "1",
    )
    assert run["tags"]["mlflow.parentRunId"] == "default"
    assert run["tags"]["realm.state"] == "COMPLETE"
    assert run["tags"]["realm.git_commit"] == "0123456789abcdef0123456789abcdef01234567"
    assert run["tags"]["realm.git_dirty"] == "false"
    assert run["tags"]["slurm.job_id"] == "71_3, 72"
    assert "exact_match" in run["tags"]["mlflow.note.content"]
    pretrain = stage_of(runs, record, "pretrain")
    assert pretrain is not None
    assert {name: run["points"][name] for name in expected_points(pretrain)} == expected_points(pretrain)
    assert run["points"]["evaluate/bm25/recall_at_5"] == [(0, (BEGAN_AT + 420) * 1000, 0.71)]
    assert "evaluate/bm25/gold_recall_at_5" not in run["points"]  # null
    assert [value for _, _, value in run["points"]["pretrain/final_retrieval_utility"]] == [0.8]  # not on the curve
    assert run["inputs"] == [("corpus", record.inputs["corpus"][:36])]
    assert {"run.json", "config/pretrain.yaml", "eval/predictions.jsonl"} <= set(run["files"])


def test_ten_mirrors_leave_the_same_database(runs: Path) -> None:
    made_runs.make_runs(runs, seeds=(0,))
    assert mirror(runs).created == 3
    once = dump(runs)
    for _ in range(9):
        again = mirror(runs)
        assert (again.created, again.updated, again.rebuilt, again.points) == (0, 0, 0, 0)
    assert dump(runs) == once


def test_a_deleted_database_is_built_again_with_the_same_content(runs: Path, empty_database: Path) -> None:
    made_runs.make_runs(runs, labels=("realm", "random_mask"))
    mirror(runs)
    before = shown.content(runs)
    # In a process of its own, as a user would: this one keeps connections to the deleted file.
    (runs.parent / "mlflow.db").unlink()
    shutil.rmtree(runs.parent / "mlartifacts")
    shutil.copy(empty_database, runs.parent / "mlflow.db")
    code = f"from realm_lab.tracking.mlflow_mirror import mirror; print(mirror({str(runs)!r}).created)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "4"
    moved = runs.parent / "moved"
    moved.mkdir()
    shutil.copy(runs.parent / "mlflow.db", moved / "mlflow.db")
    assert shown.content(moved / "runs") == before


@pytest.mark.slow
def test_the_database_is_made_when_there_is_none_even_in_one_process(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    made_runs.make_run(runs, "realm", 0)
    mirror(runs)
    before = shown.content(runs)
    (tmp_path / "mlflow.db").unlink()
    mirror(runs)
    assert shown.content(runs) == before


@pytest.mark.parametrize("failing_call", range(1, 7))
def test_a_mirror_that_dies_is_finished_by_the_next(
    runs: Path, monkeypatch: pytest.MonkeyPatch, failing_call: int
) -> None:
    made_runs.make_run(runs, "realm", 0)
    monkeypatch.setattr("realm_lab.tracking.mlflow_store.MAX_METRICS", 30)
    calls = 0

    def dying(*arguments: Any, **named: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise OSError("killed")
        real(*arguments, **named)

    real = MlflowClient.log_batch
    mirror_dying(runs, monkeypatch, "log_batch", dying)
    mirror(runs)
    interrupted = shown.content(runs)
    mirror(runs)
    assert shown.content(runs) == interrupted
    (run,) = interrupted.values()
    for name, points in run["points"].items():
        assert len({step for step, _, _ in points}) == len(points), name
    assert len(run["points"]["pretrain/loss"]) == 20
    assert run["status"] == "FINISHED"


def test_a_batch_that_arrived_without_its_mark_shows_no_point_twice(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, stage = made_runs.begin_pretrain(runs, 100)
    real = MlflowClient.log_batch

    def dying(client: MlflowClient, run_id: str, *arguments: Any, **named: Any) -> None:
        real(client, run_id, *arguments, **named)
        if named.get("metrics"):
            raise OSError("killed")

    mirror_dying(runs, monkeypatch, "log_batch", dying)
    made_runs.write_points(stage.metrics, made_runs.pretrain_rows("realm", 0, 110, 150, BEGAN_AT))
    made_runs.checkpoint(stage, 150)
    mirror(runs)
    (run,) = shown.content(runs).values()
    assert run["points"] == expected_points(stage)


def test_a_running_run_grows_by_checkpoints_and_ends(runs: Path) -> None:
    _, stage = made_runs.begin_pretrain(runs, 100)
    mirror(runs)
    (run,) = shown.content(runs).values()
    assert (run["status"], run["times"]) == ("RUNNING", (BEGAN_AT * 1000, None))
    first = expected_points(stage)
    assert run["points"] == first
    made_runs.write_points(stage.metrics, made_runs.pretrain_rows("realm", 0, 110, 200, BEGAN_AT))
    made_runs.set_status(stage, step=200)
    summary = mirror(runs)
    assert (summary.created, summary.updated, summary.rebuilt, summary.points) == (0, 1, 0, 0)
    (run,) = shown.content(runs).values()
    assert run["points"] == first  # a resume would begin at step 100
    assert run["tags"]["realm.progress"] == "pretrain 200/200 steps, 2.5 steps/s, 0 min left"
    assert "At step 200: pretrain/" in run["tags"]["mlflow.note.content"]
    made_runs.checkpoint(stage, 200)
    mirror(runs)
    (run,) = shown.content(runs).values()
    assert run["points"] == expected_points(stage) != first
    made_runs.complete(stage, 200, {"steps": 200}, BEGAN_AT, 90.0)
    mirror(runs)
    (run,) = shown.content(runs).values()
    assert (run["status"], run["times"]) == ("FINISHED", (BEGAN_AT * 1000, (BEGAN_AT + 90) * 1000))
    assert expected_points(stage).items() <= run["points"].items()


def test_without_a_checkpoint_nothing_is_settled(runs: Path) -> None:
    _, stage = made_runs.begin_pretrain(runs, 100)
    shutil.rmtree(stage.path / "checkpoints")
    mirror(runs)
    (run,) = shown.content(runs).values()
    assert (run["status"], run["points"]) == ("RUNNING", {})


@pytest.mark.parametrize("dies_after", [None, "batch"])
def test_a_resumed_run_is_the_same_one_and_shows_each_point_once(
    runs: Path, monkeypatch: pytest.MonkeyPatch, dies_after: str | None
) -> None:
    _, stage = made_runs.begin_pretrain(runs, 150, checkpoint_step=100)
    if dies_after:
        monkeypatch.setattr("realm_lab.tracking.mlflow_store.MAX_METRICS", 40)
        real, calls = MlflowClient.set_tag, []

        def dying(client: MlflowClient, run_id: str, key: str, value: str) -> None:
            calls.append(key)
            if calls.count("mlflow.realm_lab.mirrored") == 2:  # the mark after the batches
                raise OSError("killed")
            real(client, run_id, key, value)

        mirror_dying(runs, monkeypatch, "set_tag", dying)
    else:
        mirror(runs)
    first = shown.run_ids(runs)
    # The job is killed, goes back to its checkpoint at step 100 and passes 150 with other values at other times.
    stage.metrics.truncate_after(100)
    made_runs.write_points(stage.metrics, made_runs.pretrain_rows("random_mask", 3, 110, 200, BEGAN_AT + 500))
    made_runs.set_status(stage, step=200, attempt=2)
    made_runs.checkpoint(stage, 200)
    summary = mirror(runs)
    assert (summary.created, summary.updated, summary.rebuilt) == (0, 1, 0)
    assert shown.run_ids(runs) == first
    (run,) = shown.content(runs).values()
    assert run["points"] == expected_points(stage)
    assert run["tags"]["realm.attempt"] == "2"
    once = dump(runs)
    mirror(runs)
    assert dump(runs) == once


def test_a_stage_that_lost_its_newest_checkpoint_is_shown_anew(runs: Path) -> None:
    _, stage = made_runs.begin_pretrain(runs, 150)
    mirror(runs)
    first = shown.run_ids(runs)
    stage.metrics.truncate_after(100)  # the checkpoint of step 150 turned out to be broken
    made_runs.write_points(stage.metrics, made_runs.pretrain_rows("random_mask", 3, 110, 200, BEGAN_AT + 500))
    made_runs.checkpoint(stage, 200)
    summary = mirror(runs)
    assert (summary.created, summary.rebuilt) == (0, 1)
    assert not set(shown.run_ids(runs).values()) & {first["live-s0"]}
    (run,) = shown.content(runs).values()
    assert run["points"] == expected_points(stage)


@pytest.mark.parametrize(
    ("status", "mlflow_status", "ended", "last"),
    [
        # Stopped or lost: it goes on when it is submitted again, so its end is not known.
        ({"state": "PREEMPTED", "finished_at": BEGAN_AT + 70}, "KILLED", None, 100),
        ({"state": "RUNNING", "host": "here", "pid": 2**22 + 1}, "FAILED", None, 100),
        # By an error of its own: all of it is shown.
        ({"state": "FAILED", "finished_at": BEGAN_AT + 80, "error": "out of memory"}, "FAILED", BEGAN_AT + 80, 150),
    ],
)
def test_how_a_run_ended_is_exact_and_may_be_resumed(
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: dict[str, Any],
    mlflow_status: str,
    ended: float | None,
    last: int,
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    _, stage = made_runs.begin_pretrain(runs, 150, checkpoint_step=100)
    made_runs.set_status(stage, **status)
    mirror(runs)
    (run,) = shown.content(runs).values()
    assert (run["status"], run["times"][1]) == (mlflow_status, ended and ended * 1000)
    assert max(step for step, _, _ in run["points"]["pretrain/loss"]) == last
    if mlflow_status == "FAILED":
        assert (status.get("error") or "lost") in run["tags"]["mlflow.note.content"]
    (study,) = shown.content(runs, kind="study").values()
    assert (study["status"], study["times"][1]) == (mlflow_status, None)
    before = shown.run_ids(runs)
    stage.metrics.truncate_after(100)
    made_runs.set_status(stage, attempt=2)
    mirror(runs)
    (run,) = shown.content(runs).values()
    assert run["status"] == "RUNNING"
    assert (shown.run_ids(runs) == before) == (last == 100)  # what was shown of the failed attempt cannot be taken back
    (study,) = shown.content(runs, kind="study").values()
    assert study["status"] == "RUNNING"


def test_a_run_of_a_machine_that_went_away_is_lost(runs: Path) -> None:
    _, stage = made_runs.begin_pretrain(runs, 100)
    owner = {"host": "node7", "pid": 4711, "born": BEGAN_AT}
    lease = {"owner": owner, "token": "t", "since": BEGAN_AT, "limit_seconds": 120.0, "work": ""}
    path = stage.path / "lease" / "writer.json"
    path.parent.mkdir()
    for heard, expected in ((time.time(), "RUNNING"), (time.time() - 200, "FAILED"), (time.time(), "RUNNING")):
        path.write_text(json.dumps(lease | {"heard": heard}))
        mirror(runs)
        (run,) = shown.content(runs).values()
        assert (run["status"], run["times"][1]) == (expected, None)
        assert ("lost (process 4711 on node7 is silent)" in run["tags"]["mlflow.note.content"]) == (
            expected == "FAILED"
        )


def test_a_run_that_collapses_under_way_says_so_in_its_name(runs: Path) -> None:
    flag = "collapsed: p(null|x) above 0.99 since step 1200 `<b>*now*</b>"
    _, stage = made_runs.begin_pretrain(runs, 100)
    made_runs.make_run(runs, "warm_start", 0)
    mirror(runs)
    made_runs.set_status(stage, flags=[flag])
    summary = mirror(runs)
    assert (summary.created, summary.updated, summary.rebuilt) == (0, 1, 0)
    found = shown.content(runs)
    assert set(found) == {"COLLAPSED live-s0", "warm_start-s0"}
    tags = found["COLLAPSED live-s0"]["tags"]
    assert tags["realm.flags"] == f"pretrain: {flag}"
    first = "**Flagged, pretrain:** `collapsed: p(null|x) above 0.99 since step 1200 '<b>*now*</b>`"
    assert tags["mlflow.note.content"].split("\n\n")[0] == first
    other = found["warm_start-s0"]["tags"]
    assert "realm.flags" not in other
    assert "lagged" not in other["mlflow.note.content"]
    once = dump(runs)
    assert mirror(runs).updated == 0
    assert dump(runs) == once
    # The stage is run again from the start and is well.
    made_runs.set_status(stage)
    assert mirror(runs).rebuilt == 0
    assert "realm.flags" not in shown.content(runs)["live-s0"]["tags"]
    assert set(shown.content(runs)) == {"live-s0", "warm_start-s0"}
    made_runs.set_status(stage, flags=["non_finite_results"])
    mirror(runs)
    assert set(shown.content(runs)) == {"FLAGGED live-s0", "warm_start-s0"}


def test_a_run_that_has_not_begun_waits(runs: Path) -> None:
    record, stage = made_runs.begin_pretrain(runs, 0)
    (stage.path / "status.json").unlink()
    summary = mirror(runs)
    assert (summary.waiting, summary.created, summary.states) == (1, 0, {"PENDING": 1})
    assert shown.content(runs) == {}
    assert record.name in {path.name for path in runs.iterdir()}


def test_a_broken_record_is_named_and_the_others_are_shown(runs: Path) -> None:
    made_runs.make_run(runs, "realm", 0)
    broken = write_run_record(runs, replace(made_runs.make_run(runs, "warm_start", 1), system="broken"))
    broken.write_text("{")
    _, stage = made_runs.begin_pretrain(runs, 50)
    stage.metrics.path.write_text('{"step": 1, "time": 1.0}\nnonsense\n{"step": 2, "time": 2.0}\n')
    summary = mirror(runs)
    assert len(summary.problems) == 2
    assert "broken-s1" in summary.problems[0]
    assert "metrics.jsonl, line 2" in summary.problems[1]
    assert set(shown.content(runs)) == {"realm-s0", "warm_start-s1"}
    assert "2 not shown" in str(summary)


def test_names_and_values_that_mlflow_refuses(runs: Path) -> None:
    record, stage = made_runs.begin_pretrain(runs, 0, checkpoint_step=10)
    row = '{"step": 10, "time": 1790000001.0, "recall@5": 0.5, "what?": 1.0, "lost": null, "nan": NaN, "inf": Infinity}'
    stage.metrics.path.write_text(row + "\n")
    params = {"list": list(range(5000)), "odd name!": "x", "empty": ""}
    (runs / record.name / "run.json").unlink()
    write_run_record(runs, replace(record, params=params))
    assert mirror(runs).problems == ()
    (run,) = shown.content(runs).values()
    assert set(run["points"]) == {"pretrain/recall_at_5", "pretrain/what_"}
    assert len(run["params"]["list"]) == 6000
    assert run["params"]["odd name_"] == "x"
    assert mirror(runs).updated == 0


def test_follow_ends_when_all_runs_are_final(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, stage = made_runs.begin_pretrain(runs, 100)
    slept: list[float] = []

    def work_instead(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            made_runs.write_points(stage.metrics, made_runs.pretrain_rows("realm", 0, 110, 200, BEGAN_AT))
            made_runs.complete(stage, 200, {}, BEGAN_AT, 90.0)

    monkeypatch.setattr("time.sleep", work_instead)
    summary = mirror(runs, follow=True, interval_seconds=7.0)
    assert slept == [7.0, 7.0]
    assert summary.states == {"COMPLETE": 1}
    (run,) = shown.content(runs).values()
    assert run["points"] == expected_points(stage)


def test_follow_ends_with_control_c(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_runs.begin_pretrain(runs, 100)

    def control_c(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", control_c)
    assert mirror(runs, follow=True).states == {"RUNNING": 1}


def test_the_environment_names_the_store(runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (runs.parent / "other.db").write_bytes((runs.parent / "mlflow.db").read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    assert mirror(runs).uri.endswith("other.db")
    assert mirror(runs, f"sqlite:///{tmp_path / 'mlflow.db'}").uri.endswith("mlflow.db")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("mlflow.db", "write sqlite:////"),
        ("sqlite://", "in memory"),
        ("file:///tmp/mlruns", "tracking store file:"),
        ("http://127.0.0.1:9", "tracking store http://127.0.0.1:9"),
    ],
)
def test_a_store_that_cannot_be_used_is_a_user_error(
    runs: Path, monkeypatch: pytest.MonkeyPatch, uri: str, message: str
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UserError, match=message):
        mirror(runs, uri)


def test_a_file_that_is_no_database_is_a_user_error(runs: Path) -> None:
    (runs.parent / "mlflow.db").write_text("not a database, certainly")
    with pytest.raises(UserError, match=r"mlflow\.db: not a database of MLflow"):
        mirror(runs)


def test_no_runs_folder_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        mirror(tmp_path / "runs")


def test_the_summary_is_one_line() -> None:
    summary = MirrorSummary("sqlite:///x", {"RUNNING": 1, "COMPLETE": 3}, created=2, points=70)
    assert str(summary) == "4 runs (3 complete, 1 running) in sqlite:///x: 2 new, 0 updated, 70 points sent"
    assert json.dumps(summary.runs) == "4"
