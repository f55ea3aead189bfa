"""How far a run is, read from what its stages left on disk."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from realm_lab.core.files import write_json
from realm_lab.errors import UserError
from realm_lab.runner.plan import PlannedRun, StudyPlan
from realm_lab.runner.state import run_state
from realm_lab.systems.identity import kept_corpus_folder
from realm_lab.tracking.run_lease import LIMIT_SECONDS

STAGES = ("warm_start", "pretrain", "finetune", "evaluate")
DEAD = 2**22 + 5  # above the largest process number


def leave(root: Path, run: PlannedRun, stage: str, state: str, **more: Any) -> Path:
    """What a stage in this state leaves: status.json, and results.json where it has finished."""
    if stage == "prepare" and state == "COMPLETE":
        kept = kept_corpus_folder(root, run.plan)
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "manifest.json").write_text("{}")
    folder = root / "runs" / "stages" / f"{stage}-{run.plan.key(stage)[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status.json").write_text(json.dumps({"state": state, "attempt": 1, **more}))
    if state == "COMPLETE":
        (folder / "results.json").write_text("{}")
    return folder


@pytest.fixture
def run(planned: Callable[..., StudyPlan]) -> PlannedRun:
    return planned("baseline: a\ncells:\n  a:\n").runs[0]


def here(pid: int) -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": pid, "heartbeat_at": time.time()}


@pytest.mark.parametrize(
    ("pretrain", "more", "state", "error"),
    [
        (None, {}, "PENDING", None),
        ("PREEMPTED", {}, "PREEMPTED", None),
        ("FAILED", {"error": "loss is nan"}, "FAILED", "pretrain: loss is nan"),
        ("RUNNING", here(os.getpid()), "RUNNING", None),
        ("RUNNING", here(DEAD), "LOST", f"pretrain: lost (process {DEAD} on {socket.gethostname()} is gone or silent)"),
        ("RUNNING", {"host": "far", "pid": 1}, "LOST", "pretrain: lost (process 1 on far is gone or silent)"),
        ("COMPLETE", {}, "PENDING", None),
    ],
)
def test_a_run_is_what_its_stages_are(
    run: PlannedRun, tmp_path: Path, pretrain: str | None, more: dict[str, Any], state: str, error: str | None
) -> None:
    for stage in ("prepare", "warm_start"):
        leave(tmp_path, run, stage, "COMPLETE", wall_seconds=10.0)
    if pretrain:
        leave(tmp_path, run, "pretrain", pretrain, step=3, wall_seconds=5.0, **more)
    found = run_state(run, tmp_path)
    assert (found.state, found.error) == (state, error)
    assert found.stage == ("finetune" if pretrain == "COMPLETE" else "pretrain")
    assert list(found.stages) == ["prepare", *STAGES]
    assert found.stages["warm_start"].state == "COMPLETE"
    assert found.stages["pretrain"].status.step == (3 if pretrain else 0)
    assert found.wall_seconds == (25.0 if pretrain else 20.0)


def test_a_finished_run_needs_its_corpus_no_more(run: PlannedRun, tmp_path: Path) -> None:
    for stage in STAGES:
        leave(tmp_path, run, stage, "COMPLETE")
    assert run_state(run, tmp_path).state == "COMPLETE"
    assert run_state(run, tmp_path).stages["prepare"].state == "PENDING"
    folder = leave(tmp_path, run, "evaluate", "COMPLETE")
    (folder / "results.json").unlink()
    assert run_state(run, tmp_path).state == "PENDING"


def test_looking_makes_nothing(run: PlannedRun, tmp_path: Path) -> None:
    assert run_state(run, tmp_path).state == "PENDING"
    assert not (tmp_path / "runs").exists()


def test_a_broken_status_is_named(run: PlannedRun, tmp_path: Path) -> None:
    leave(tmp_path, run, "pretrain", "SLEEPING")
    with pytest.raises(UserError, match=r"pretrain-\w+/status\.json: state: .*repair or delete the file"):
        run_state(run, tmp_path)


@pytest.mark.parametrize(("silent_seconds", "state"), [(60.0, "RUNNING"), (LIMIT_SECONDS + 60.0, "LOST")])
def test_a_stage_on_another_machine_lives_as_long_as_its_lease(
    run: PlannedRun, tmp_path: Path, silent_seconds: float, state: str
) -> None:
    leave(tmp_path, run, "pretrain", "RUNNING", host="far", pid=1, heartbeat_at=time.time() - 3600)
    [folder] = (tmp_path / "runs" / "stages").glob("pretrain-*")
    heard = time.time() - silent_seconds
    holder = {"name": "writer", "owner": {"host": "far", "pid": 1, "born": 0.0}, "token": "t", "work": ""}
    write_json(
        folder / "lease" / "writer.json", holder | {"since": 0.0, "heard": heard, "limit_seconds": LIMIT_SECONDS}
    )
    assert run_state(run, tmp_path).stages["pretrain"].state == state
