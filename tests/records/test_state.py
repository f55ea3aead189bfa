"""The one state of a run, read from the files of its stages."""

import json
import socket
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from realm_lab.records.files import write_json
from realm_lab.records.lease import this_process
from realm_lab.records.run import Flag, Run, State, stage_folder
from realm_lab.records.run_lease import LIMIT_SECONDS
from realm_lab.records.state import Cause, Reason, StageState, StageStates, stage_state
from tests.factories.finished import finished
from tests.records.test_run_dir import record_of

STAGES = ("warm_start", "pretrain", "finetune")
KEY = "ab" * 32
RECORD = record_of(corpus_key=KEY, stages=dict.fromkeys(STAGES, KEY))


def leave(runs: Path, stage: str, state: str, **more: Any) -> Path:
    """Write the files of a stage in this state: status.json, and results.json if it has finished."""
    folder = stage_folder(runs, stage, KEY)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status.json").write_text(json.dumps({"state": state, "attempt": 1, **more}))
    if state == "COMPLETE":
        finished(folder, {})
        if stage == "prepare":
            write_json(runs / "corpora" / KEY[:12] / "manifest.json", {})
    return folder


def found(runs: Path, job: StageState | None = None) -> Run:
    return StageStates(runs, {f"pretrain-{KEY[:12]}": job} if job else None).look(RECORD)


@pytest.mark.parametrize(
    ("pretrain", "more", "state", "error"),
    [
        (None, {}, "PENDING", None),
        ("PREEMPTED", {}, "PREEMPTED", None),
        ("FAILED", {"error": "loss is nan"}, "FAILED", "pretrain: loss is nan"),
        ("RUNNING", {"host": "far", "pid": 1}, "LOST", "pretrain: process 1 on far is gone or silent"),
        ("COMPLETE", {}, "PENDING", None),
    ],
)
def test_a_run_is_what_its_first_unfinished_stage_is(
    tmp_path: Path, pretrain: str | None, more: dict[str, Any], state: State, error: str | None
) -> None:
    for stage in ("prepare", "warm_start"):
        leave(tmp_path, stage, "COMPLETE")
    if pretrain:
        leave(tmp_path, "pretrain", pretrain, flags=[{"name": "collapsed", "text": "collapsed: no"}], **more)
    run = found(tmp_path)
    assert (run.state, run.error) == (state, error)
    assert run.stage == ("finetune" if pretrain == "COMPLETE" else "pretrain")
    assert list(run.states) == list(STAGES)
    assert run.has_collapsed == bool(pretrain)
    assert run.flags == ([("pretrain", Flag("collapsed", "collapsed: no"))] if pretrain else [])


@pytest.mark.parametrize(
    ("left", "job", "state"),
    [
        (None, StageState("QUEUED", "7", Reason(Cause.QUEUE, queue="Priority")), "QUEUED"),
        (None, StageState("CANCELLED", "7"), "CANCELLED"),
        (None, StageState("FAILED", "7", Reason(Cause.QUEUE, queue="OUT_OF_MEMORY")), "LOST"),
        ("PREEMPTED", StageState("RUNNING", "7"), "QUEUED"),
        ("PREEMPTED", StageState("COMPLETE", "7"), "PREEMPTED"),
        ("FAILED", StageState("FAILED", "7"), "FAILED"),
    ],
)
def test_a_job_says_what_folders_cannot(tmp_path: Path, left: str | None, job: StageState, state: State) -> None:
    for stage in ("prepare", "warm_start"):
        leave(tmp_path, stage, "COMPLETE")
    if left:
        leave(tmp_path, "pretrain", left, error="why")
    run = found(tmp_path, job)
    assert run.state == state
    assert run.states["pretrain"].job == "7"


def test_of_a_job_its_scheduler_knows_more_than_the_age_of_its_lease(tmp_path: Path) -> None:
    """A job's end is seen before the lease is silent, and its running whatever the clock of its machine shows."""
    folder = leave(tmp_path, "pretrain", "RUNNING", host="far", pid=1)
    owner = asdict(this_process()) | {"host": "far", "job": "17_3"}

    def said(state: State, job: str, silent_seconds: float) -> StageState:
        write_json(
            folder / "lease" / "writer.json",
            {"owner": owner, "token": str(silent_seconds), "heard": time.time() - silent_seconds},
        )
        return stage_state(
            folder, StageState(state, job, Reason(Cause.QUEUE, queue="FAILED") if state == "FAILED" else None)
        )

    lost = "process 1 on far is gone or silent (SLURM: FAILED)"
    ended = said("FAILED", "17_3", 1.0)
    assert (ended.state, ended.error) == ("LOST", lost)
    assert said("CANCELLED", "17_3", 1.0).state == "CANCELLED"
    assert said("FAILED", "17_4", 1.0).state == "RUNNING"  # another job works on it
    assert said("RUNNING", "17_3", 600.0).state == "RUNNING"
    assert said("QUEUED", "17_3", 600.0).state == "QUEUED"


def test_a_run_that_waits_for_its_corpus_says_so_and_a_finished_one_needs_it_no_more(tmp_path: Path) -> None:
    assert (found(tmp_path).state, found(tmp_path).stage) == ("PENDING", "prepare")
    assert not (tmp_path / "stages").exists()  # looking makes nothing
    leave(tmp_path, "prepare", "FAILED", error="no such file")
    assert found(tmp_path).error == "prepare: no such file"
    leave(tmp_path, "prepare", "PREEMPTED")
    for stage in STAGES:
        leave(tmp_path, stage, "COMPLETE")
    assert (found(tmp_path).state, list(found(tmp_path).states)) == ("COMPLETE", list(STAGES))
    (leave(tmp_path, "finetune", "COMPLETE") / "results.json").unlink()
    assert (found(tmp_path).state, found(tmp_path).stage) == ("PREEMPTED", "prepare")


@pytest.mark.parametrize(("silent_seconds", "state"), [(60.0, "RUNNING"), (LIMIT_SECONDS + 60.0, "LOST")])
@pytest.mark.parametrize("host", ["far", socket.gethostname()])
def test_a_stage_lives_as_long_as_its_lease(tmp_path: Path, host: str, silent_seconds: float, state: State) -> None:
    folder = leave(tmp_path, "pretrain", "RUNNING", host=host, pid=1)
    owner = asdict(this_process()) | {"host": host}
    times = {"since": 0.0, "heard": time.time() - silent_seconds}
    write_json(folder / "lease" / "writer.json", {"owner": owner, "token": "t", **times})
    assert found(tmp_path).states["pretrain"].state == state
    write_json(folder / "lease" / "writer.json", {"owner": owner | {"born": 1.0}, "token": "t", **times})
    if host != "far":  # a later process with the same number
        assert found(tmp_path).states["pretrain"].state == "LOST"
