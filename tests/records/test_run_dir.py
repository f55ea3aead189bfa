import json
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from realm_lab.records import environment
from realm_lab.records import run as run_dir
from realm_lab.records.files import DiskFull
from realm_lab.records.run import Flag, Run, StageRun, read_runs, write_run
from tests.factories.errors import refused

KEY = "ab" * 32
CONFIG = {"seed": 0, "engine_version": 1, "params": {"learning_rate": 1e-5, "names": ["a"], "empty": None}}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder runs/ that need not exist."""
    return tmp_path / "runs"


@pytest.fixture
def stage(runs: Path) -> StageRun:
    return StageRun.open(runs, "pretrain", KEY, CONFIG)


def record_of(*stages: StageRun, **changes: Any) -> Run:
    record = Run(
        cell="",
        seed=0,
        run_key="cd" * 32,
        name=f"{changes.get('system', 'realm')}-s0-{'cd' * 6}",
        system="realm",
        cell_key="ef" * 32,
        preset="toy",
        engine_version=1,
        params={"pretrain": {"steps": 10}},
        corpus_key="12" * 32,
        stages={stage.stage: stage.key[:12] for stage in stages},
    )
    return replace(record, **changes)


def test_a_new_stage_has_its_config_and_is_pending(runs: Path, stage: StageRun) -> None:
    assert stage.path == runs / "stages" / "pretrain-abababababab"
    StageRun.open(runs, "pretrain", KEY, {})  # again: nothing changes
    assert YAML(typ="safe").load(stage.path / "config.yaml") == {"stage": "pretrain", "key": KEY, **CONFIG}
    assert stage.status().state == "PENDING"
    with refused("PENDING", path=stage.path / "results.json"):
        stage.results()
    with pytest.raises(ValueError, match="not JSON compliant"):
        StageRun.open(runs, "finetune", KEY, {"rate": float("nan")})


def test_the_life_of_a_stage(stage: StageRun) -> None:
    stage.start(total_steps=100)
    running = stage.status()
    assert (running.state, running.attempt, running.total_steps) == ("RUNNING", 1, 100)
    assert (running.host, running.pid) == (socket.gethostname(), os.getpid())
    stage.heartbeat(40, force=True)
    assert stage.status().step == 40
    stage.flag(Flag("collapsed", "collapsed: it is flat"))
    stage.flag(Flag("collapsed", "collapsed: it is flat"))
    stage.heartbeat(100)  # too soon to be written, but not forgotten
    stage.fail("Traceback (most recent call last):\n  ...\nValueError: bad\n\n")
    failed = stage.status()
    assert (failed.state, failed.error, failed.step) == ("FAILED", "ValueError: bad", 100)
    stage.start(total_steps=100)
    stage.finish({"loss": np.float64(1.5), "bm25": {"recall_at_5": float("nan")}})
    done = stage.status()
    assert (done.state, done.step, done.error) == ("COMPLETE", 100, None)
    assert [flag.name for flag in done.flags] == ["collapsed", "non_finite_results"]
    assert done.started_at
    assert done.finished_at
    assert done.started_at <= done.finished_at
    assert stage.is_complete()
    assert stage.results() == {"loss": 1.5, "bm25": {"recall_at_5": None}}
    for too_late in (stage.preempt, lambda: stage.fail("a signal"), lambda: stage.lose("another rank")):
        too_late()
        assert stage.status() == done


def test_wall_time_and_attempts_add_up_over_attempts(
    runs: Path, stage: StageRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [50.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    stage.start(total_steps=10)
    clock[0] += 30
    stage.preempt()
    assert stage.status().state == "PREEMPTED"
    first_start = stage.status().started_at
    clock[0] += 1000  # waiting in the queue is not work
    again = StageRun.open(runs, "pretrain", KEY, CONFIG)
    again.start(total_steps=10)
    clock[0] += 12
    again.heartbeat(3, force=True)
    status = again.status()
    assert (status.attempt, status.state, status.started_at) == (2, "RUNNING", first_start)
    assert status.finished_at is None
    assert status.wall_seconds == pytest.approx(42.0)


def test_on_a_full_disk_the_end_is_still_said(stage: StageRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end is written into the blocks that status.json has, since there is no room for a new file."""
    stage.start(10)

    def full(path: Path, value: Any) -> None:
        raise DiskFull(path)

    monkeypatch.setattr(run_dir, "write_json", full)
    with pytest.raises(DiskFull):
        stage.heartbeat(3, force=True)
    stage.fail("no space")
    assert (stage.status().state, stage.status().error, stage.status().step) == ("FAILED", "no space", 3)
    stage.fail("")
    assert stage.status().error == "unknown error"
    with pytest.raises(DiskFull):
        stage.fail("long" * 2**12)
    assert stage.status().error == "unknown error"
    (stage.path / "status.json").unlink()
    with pytest.raises(DiskFull):
        stage.fail("no space for the first status either")


def test_the_environment_is_recorded(stage: StageRun) -> None:
    stage.start(1, device="xpu")
    found = json.loads((stage.path / "env.json").read_text())
    assert (found["device"], found["packages"]["torch"] >= "2", found["cores"] >= 1) == ("xpu", True, True)
    assert found["python"].startswith("3.")
    assert found["cpu"]


def test_a_run_restores_the_code_that_it_ran(stage: StageRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, other = tmp_path / "code", tmp_path / "other"
    (code / "realm_lab").mkdir(parents=True)
    monkeypatch.setattr(environment, "REPOSITORY", code)
    (tmp_path / "gitconfig").write_text("[diff]\nexternal = echo\nnoprefix = true\n[color]\nui = always\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))

    def git(folder: Path, *arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder, check=True)

    def write(text: str) -> None:
        (code / "params.yaml").write_text(text, encoding="utf-8")

    write("preset: toy\n")
    (code / "realm_lab" / "a.py").write_text("one\n")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"], ["clone", "-q", ".", str(other)]):
        git(code, *command)
    stage.start(1)
    assert not (stage.path / "code.patch").exists()
    write("preset: smoke # é\n")
    (code / "realm_lab" / "a.py").write_text("two \n")
    stage.start(1)
    git(other, "apply", str(stage.path / "code.patch"))
    for name in ("params.yaml", "realm_lab/a.py"):
        assert (other / name).read_bytes() == (code / name).read_bytes()
    write("x" * environment.LONGEST_PATCH)
    stage.start(1)
    assert (stage.path / "code.patch").read_text().startswith("# 1,0")
    git(code, "checkout", "-q", ".")
    stage.start(1)
    assert not (stage.path / "code.patch").exists(), "the last attempt ran the commit itself"
    (site := code / "site" / "realm_lab").mkdir(parents=True)  # a package installed inside another's repository
    (site / "a.py").write_text("one\n")
    monkeypatch.setattr(environment, "REPOSITORY", site.parent)
    assert environment.source() == {"commit": None, "patch": None}


def test_git_and_a_name_of_the_user_may_be_missing(
    stage: StageRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "ada")
    stage.start(total_steps=1)
    found = json.loads((stage.path / "env.json").read_text())
    assert (found["git_commit"], found["git_dirty"], found["user"]) == (None, None, "ada")
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 987_654)  # of a container
    stage.start(total_steps=1)
    assert json.loads((stage.path / "env.json").read_text())["user"] is None


def test_a_broken_status_names_file_and_field(stage: StageRun) -> None:
    (stage.path / "status.json").write_text('{"state": "DONE"}')
    with refused("state", "repair or delete", path=stage.path / "status.json"):
        stage.status()


def test_a_record_is_written_once_and_read_back(runs: Path, stage: StageRun) -> None:
    record = record_of(stage)
    path = write_run(runs, record)
    assert path == runs / "realm-s0-cdcdcdcdcdcd" / "run.json"
    before = path.stat().st_mtime_ns
    assert write_run(runs, record) == path
    assert path.stat().st_mtime_ns == before
    assert read_runs(runs) == [record]


@pytest.mark.parametrize("system", ["", "../up", ".hidden", "two words"])
def test_a_label_that_names_no_folder_is_refused(runs: Path, system: str) -> None:
    with refused("system"):
        write_run(runs, record_of(system=system))


@pytest.mark.parametrize("text", ["{", '{"system": "realm"}'])
def test_a_broken_or_copied_record_is_named(runs: Path, text: str) -> None:
    path = write_run(runs, record_of())
    whole = path.read_text()
    path.write_text(text)
    with refused(path=path):
        read_runs(runs)
    path.write_text(whole)
    path.parent.rename(runs / "copy")
    with refused("realm-s0-cdcdcdcdcdcd", path=runs / "copy" / "run.json"):
        read_runs(runs)
