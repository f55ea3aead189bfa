"""Output of `realm-lab status` for runs in every state; the run folders are made by hand."""

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from realm_lab.cli import main
from realm_lab.errors import UserError
from realm_lab.evidence.ledger import note_plan, read_ledger
from realm_lab.lab.plan import plan_study
from realm_lab.lab.results import Results
from realm_lab.lab.slurm_queue import SubmittedJob, jobs_of_stages, record_jobs
from realm_lab.lab.status import study_status
from realm_lab.lab.wanted import record_study, study_record
from realm_lab.records.run import Run
from realm_lab.records.run_lease import writing
from tests.lab.conftest import leave

REPOSITORY = Path(__file__).resolve().parents[2]
STUDY = """
question: How far is it?
seeds: [0]
baseline: a
metrics: [recall_at_5, wall_seconds]
cells:
  a: {}
  b: {set: {pretrain.candidates: 4}}
  c: {set: {pretrain.candidates: 5}}
  d: {set: {pretrain.candidates: 7}}
  e: {set: {pretrain.candidates: 8}}
  f: {set: {pretrain.candidates: 9}}
"""
GONE = {"host": socket.gethostname(), "pid": 2**22 + 1, "heartbeat_at": 1.0}
Put = Callable[..., Path]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "far.yaml").write_text(STUDY)
    shutil.copy(REPOSITORY / "tests" / "tiny.yaml", tmp_path / "params.yaml")
    return tmp_path


@pytest.fixture
def runs(root: Path) -> dict[str, Run]:
    plan = plan_study(root / "experiments" / "far.yaml", root)
    record_study(plan, root)
    return {run.cell: run for run in plan.runs}


@pytest.fixture
def put(root: Path, runs: dict[str, Run]) -> Put:
    """Writes the status of a stage of a cell's run."""

    def write(cell: str, stage: str, state: str, **status: Any) -> Path:
        return leave(root, runs[cell], stage, state, {"recall_at_5": 0.25, "exact_match": 0.5}, **status)

    return write


def shown(root: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Return the output, without the blanks of the table."""
    assert main(["status", *arguments, "--root", str(root)]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


FLAGGED = [{"name": "collapsed", "text": "collapsed: p(null) is 1"}]


def test_every_state_has_its_line(root: Path, put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    put("a", "prepare", "COMPLETE")
    put("a", "warm_start", "COMPLETE")
    for stage in ("pretrain", "finetune", "evaluate"):
        put("a", stage, "COMPLETE", flags=FLAGGED if stage == "pretrain" else [])
    here = {"host": socket.gethostname(), "pid": os.getpid()}
    now = time.time()
    running = put("b", "pretrain", "RUNNING", step=40, total_steps=400, steps_per_second=2.0, heartbeat_at=now, **here)
    put("c", "finetune", "PREEMPTED", step=7, total_steps=12)
    put("c", "pretrain", "COMPLETE")
    put("d", "pretrain", "RUNNING", step=3, total_steps=12, **GONE)
    put("e", "pretrain", "FAILED", step=5, total_steps=12, error="the loss is nan at step 5")
    with writing(running):
        lines = shown(root, capsys, "far")
    assert lines[0] == "far: 6 runs, 1 running, 1 preempted, 1 lost, 1 failed, 1 pending, 1 complete"
    again = "`realm-lab sweep far`"
    expected = {
        "a 0 complete": ["recall_at_5 0.25"],
        "b 0 running": ["pretrain 40/400, 2.0 steps/s, 3.0 min left", f"process {os.getpid()} on {GONE['host']}"],
        "c 0 preempted": ["finetune 7/12", again],
        "d 0 lost": ["pretrain 3/12", f"process {GONE['pid']} on {GONE['host']}", again],
        "e 0 failed": ["pretrain 5/12: the loss is nan", "--retry-failed"],
        "f 0 pending": ["pretrain", again],
        "a, seed 0: FLAGGED": ["pretrain: collapsed: p(null) is 1"],
    }
    for line, (start, parts) in zip(lines[2:], expected.items(), strict=True):
        assert line.startswith(start)
        assert all(part in line for part in parts), line


def test_jobs_that_wait_in_a_queue_are_told_from_those_that_do_not(
    root: Path, runs: dict[str, Run], put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"17_0": ("PENDING", "Priority"), "17_1": ("CANCELLED", ""), "17_2": ("PENDING", "None")}
    monkeypatch.setattr("realm_lab.lab.slurm_queue.look_up", lambda jobs: known)
    put("a", "prepare", "COMPLETE")
    put("a", "warm_start", "COMPLETE")
    for number, cell in enumerate("bce"):
        keys = {stage: runs[cell].stages[stage] for stage in ("pretrain", "finetune", "evaluate")}
        record_jobs(root, "far", [SubmittedJob(f"t{number}", keys, f"17_{number}")])
    put("e", "pretrain", "PREEMPTED", step=3, total_steps=12)
    found = {run["cell"]: run for run in study_status("far", root)["runs"]}
    for cell, state, words in (
        ("a", "PENDING", "`realm-lab sweep far`"),
        ("b", "QUEUED", "job 17_0, SLURM: Priority"),
        ("c", "CANCELLED", "`realm-lab sweep far`"),
        ("e", "QUEUED", "job 17_2"),  # it was stopped, and waits to go on
    ):
        assert found[cell]["state"] == state
        assert words in found[cell]["reason"]


def test_a_queue_is_asked_about_what_is_left_and_stops_who_submits_when_it_does_not_answer(
    root: Path,
    runs: dict[str, Run],
    put: Put,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def silent(jobs: set[str]) -> dict[str, tuple[str, str]]:
        if jobs:
            raise UserError("squeue: no answer; try again later")
        return {}

    monkeypatch.setattr("realm_lab.lab.slurm_queue.look_up", silent)
    record_jobs(root, "far", [SubmittedJob("t", {"pretrain": runs["b"].stages["pretrain"]}, "17")])
    assert jobs_of_stages(root) == {}
    assert "squeue: no answer" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"study far: squeue: no answer; .*delete "):
        jobs_of_stages(root, must_answer=True)
    put("b", "pretrain", "COMPLETE")
    assert jobs_of_stages(root, must_answer=True) == {}


def test_all_studies(root: Path, put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "experiments" / "new.yaml").write_text(STUDY)
    assert shown(root, capsys) == [
        "study runs question",
        "far 6 pending How far is it?",
        "new never swept How far is it?",
    ]
    (root / "reports" / "reference" / "new").mkdir(parents=True)
    for text in ("question: [", "[1]"):  # which `sweep` explains
        (root / "experiments" / "new.yaml").write_text(text)
        assert shown(root, capsys)[-1] == "new none here; see reports/reference"
    assert main(["status", "--root", str(root), "--json"]) == 0
    assert [study["study"] for study in json.loads(capsys.readouterr().out)] == ["far", "new"]


def test_a_list_of_studies_looks_at_the_queue_once(root: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shutil.copy(root / "experiments" / "far.yaml", root / "experiments" / "near.yaml")
    record_study(plan_study(Path(path), root), root)
    queue = Mock(return_value={})
    monkeypatch.setattr("realm_lab.lab.status.jobs_of_stages", queue)
    assert main(["status", "--root", str(root)]) == 0
    queue.assert_called_once()


def test_a_broken_record_hides_no_other_study(root: Path, put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / "runs" / "studies" / "broken" / "study.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"name": "broken"}')
    lines = shown(root, capsys)
    assert lines[1].startswith("broken ")
    assert "delete the file and plan the study again" in " ".join(lines)
    assert lines[-1] == "far 6 pending How far is it?"


def test_fewer_seeds_are_a_part_of_the_study(root: Path) -> None:
    """To drop seeds, a user edits the file."""
    path = root / "experiments" / "far.yaml"
    path.write_text(path.read_text().replace("seeds: [0]", "seeds: [0, 1]"))
    plan, sweep = plan_study(path, root), ["sweep", "far", "--root", str(root), "--launcher", "inline", "--seeds", "1"]
    record_study(plan, root)
    for run in plan.runs:
        for stage in ("prepare", *run.stages) if run.seed == 0 else ():
            leave(root, run, stage, "COMPLETE", {"recall_at_5": 0.25})
    assert main(sweep) == 0
    assert len(study_status("far", root)["runs"]) == 12
    assert "6 of 12 runs complete" in (root / "reports" / "far" / "report.md").read_text()
    shutil.rmtree(root / "runs" / "studies" / "far")
    shutil.rmtree(root / "reports" / "far")
    (root / "runs" / "ledger.jsonl").unlink()
    assert main(sweep) == 0, "as the first command"
    assert len(study_status("far", root)["runs"]) == 12
    note_plan(root / "runs", study_record(plan, Results(root)), path, complete=6)  # as a sweep of all seeds does
    lines = read_ledger(root / "runs" / "ledger.jsonl")
    assert [line.fields["kind"] for line in lines].count("plan") == 1, "both seeds were planned from the start"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_followed_study_is_shown_until_nothing_of_it_runs(
    root: Path, put: Put, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setenv("FORCE_COLOR" if is_terminal else "NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    for stage in ("prepare", "warm_start", "pretrain", "finetune", "evaluate"):
        put("a", stage, "COMPLETE")
    here = {"host": socket.gethostname(), "pid": os.getpid(), "heartbeat_at": time.time()}
    running = put("b", "pretrain", "RUNNING", step=4, total_steps=40, **here)
    held = writing(running)
    held.__enter__()

    def end(_: float) -> None:
        held.__exit__(None, None, None)
        put("b", "pretrain", "FAILED", error="stop")

    monkeypatch.setattr("time.sleep", end)
    assert main(["status", "far", "--follow", "--root", str(root)]) == 0
    printed = capsys.readouterr().out
    assert printed.index("1 running") < printed.index("1 failed")
