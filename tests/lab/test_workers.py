"""Worker processes: their input, the report of their end, and that none is left behind."""

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from realm_lab.lab import workers
from realm_lab.lab.workers import Outcome, Workers
from realm_lab.records.files import write_json
from realm_lab.records.launched import visible_gpus
from realm_lab.records.run import StageRun

JOB: dict[str, Any] = {"stages": ["warm_start"], "params": {"launch": {"threads": 0, "device": "cpu"}, "seeds": [0]}}


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the folder of the log


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the interpreter of the worker by another program."""

    def put(code: str) -> None:
        script = tmp_path / "worker.py"
        begin = f"#!{sys.executable}\nimport json, os, signal, sys, time\njob = sys.stdin.readline()\n"
        script.write_text(f"{begin}{code}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr("realm_lab.lab.workers.sys.executable", str(script))

    return put


TELL = """
names = ["RANK", "WORLD_SIZE", "MASTER_PORT", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"]
told = {"job": json.loads(job), "group": os.getpgrp(), **{name: os.environ.get(name) for name in names}}
print(json.dumps(told), file=sys.stderr)
"""


def test_a_job_comes_with_its_share_of_the_machine(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    program(TELL)
    started = Workers(JOB, threads=3, gpus=["6"], log=Path("log.txt"))
    outcome = started.wait()
    told = json.loads(outcome.text)
    assert outcome.code == 0
    assert told["job"] == {**JOB, "params": {**JOB["params"], "launch": {"threads": 3, "device": "cpu"}}}
    assert (told["OMP_NUM_THREADS"], told["CUDA_VISIBLE_DEVICES"]) == ("3", "6")
    assert told["group"] == started.pids[0] != os.getpgrp()  # Ctrl-C in our terminal does not reach it
    assert JOB["params"]["launch"]["threads"] == 0
    everything = json.loads(Workers(JOB, threads=1, log=Path("log.txt")).wait().text)
    assert everything["CUDA_VISIBLE_DEVICES"] == "4,5,6"


@pytest.mark.slow
def test_a_worker_runs_this_package_wherever_it_starts(tmp_path: Path) -> None:
    other = tmp_path / "realm_lab" / "lab"
    other.mkdir(parents=True)
    for path in (other.parent / "__init__.py", other / "__init__.py"):
        path.touch()
    (other / "worker.py").write_text("raise SystemExit('another package')")
    outcome = Workers(JOB | {"stages": None}, threads=1, log=Path("log.txt")).wait()
    assert "another package" not in outcome.text
    assert "realm_lab" in outcome.text  # this package fails at such a job


def test_ranks_meet_at_one_port(program: Any, tmp_path: Path) -> None:
    program(TELL)
    log = tmp_path / "logs" / "task.txt"
    assert Workers(JOB, ranks=3, threads=1, log=log).wait().code == 0
    told = [json.loads(path.read_text()) for path in (log, log.with_stem("task-1"), log.with_stem("task-2"))]
    assert [item["RANK"] for item in told] == ["0", "1", "2"]
    assert {item["WORLD_SIZE"] for item in told} == {"3"}
    assert len({item["MASTER_PORT"] for item in told}) == 1
    assert int(told[0]["MASTER_PORT"]) > 0


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('early'); print('the reason', file=sys.stderr); sys.exit(2)", (2, "the reason", False)),
        ("sys.exit(1)", (1, "failed without a message", False)),
        ("os.kill(os.getpid(), signal.SIGKILL)", (-9, "killed by signal 9", False)),
        ("os.kill(os.getpid(), signal.SIGTERM)", (-15, "killed by signal 15", True)),
        ("sys.exit(128 + signal.SIGUSR1)", (138, "failed without a message", True)),
    ],
)
def test_how_it_ended(program: Any, code: str, expected: tuple[int, str, bool]) -> None:
    program(code)
    outcome = Workers(JOB, threads=1, log=Path("log.txt")).wait()
    assert (outcome.code, outcome.line, outcome.was_stopped) == expected


def test_one_failed_rank_ends_the_others_and_is_the_one_to_blame(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "GRACE_SECONDS", 0.2)
    program(
        "if os.environ['RANK'] == '1':\n    sys.exit('the second is broken')\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)"  # it waits for the rank that is gone
    )
    started = Workers(JOB, ranks=2, threads=1, log=Path("log.txt"))
    while not started.has_ended:
        pass
    assert started.reap() == Outcome(1, "the second is broken")
    assert all(not Path(f"/proc/{pid}").exists() for pid in started.pids)


@pytest.mark.parametrize(
    ("code", "is_mine", "expected"),
    [
        (2, True, ("FAILED", "rank 1: out of memory")),  # its first rank was stopped because another had failed
        (-9, True, ("RUNNING", None)),
        (143, True, ("RUNNING", None)),
        (0, True, ("RUNNING", None)),
        (2, False, ("RUNNING", None)),
    ],
)
def test_a_failure_is_written_for_a_stopped_rank_and_what_was_killed_may_go_on(
    program: Any, tmp_path: Path, code: int, is_mine: bool, expected: tuple[str, str | None]
) -> None:
    program("sys.exit(0)")
    started = Workers(JOB, threads=1, log=Path("log.txt"))
    started.wait()
    run = StageRun(tmp_path / "warm_start-0", "warm_start")
    status = {"state": "RUNNING", "host": os.uname().nodename, "pid": started.pids[0] if is_mine else os.getpid()}
    write_json(run.path / "status.json", status)
    started.settle(run, Outcome(code, "rank 1: out of memory"))
    assert (run.status().state, run.status().error) == expected


def test_gpus_that_jobs_may_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, MIG-7")
    assert visible_gpus("auto") == ["2", "MIG-7"]
    assert visible_gpus("cpu") == []
    for named, expected in (("", []), ("-1", []), ("NoDevFiles", []), ("0,-1,1", ["0"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert visible_gpus("auto") == expected
