"""The lease of a stage: living processes keep it, dead ones release it, and a former holder writes nothing more."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from realm_lab.records.files import read_json, write_json
from realm_lab.records.lease import this_process
from realm_lab.records.run_lease import LIMIT_SECONDS, LOST_CODE, writing
from tests.factories.errors import refused

HOLDS = """
import sys
from pathlib import Path
from realm_lab.records import run_lease
run_lease.BEAT_SECONDS = float(sys.argv[2])
with run_lease.writing(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(run: Path, beat_seconds: float = 15.0) -> Iterator[subprocess.Popen[str]]:
    """Another process that works on the stage."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLDS, str(run), str(beat_seconds)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def change(run: Path, **values: Any) -> None:
    """Change fields of the lease."""
    path = run / "lease" / "writer.json"
    write_json(path, read_json(path) | values)


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.slept = 0.0
        self.after_sleep: Callable[[], None] = lambda: None
        for name, began in {"time": time.time(), "monotonic": time.monotonic()}.items():
            monkeypatch.setattr(time, name, lambda began=began: began + self.slept)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        """See time.sleep."""
        self.slept += seconds
        self.after_sleep()


def held_elsewhere(run: Path, silent_for: float) -> None:
    """Write what a process of another machine wrote so long ago."""
    owner = asdict(this_process()) | {"host": "node7", "pid": 1}
    write_json(run / "lease" / "writer.json", {"owner": owner, "token": "t", "heard": time.time() - silent_for})


@pytest.mark.parametrize("silent_for", [5.0, 3600.0, -3600.0])
def test_one_waits_until_a_machine_that_went_away_has_been_silent_for_long_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], silent_for: float
) -> None:
    """However long it seems to be by the clock of that machine."""
    clock = Clock(monkeypatch)
    held_elsewhere(tmp_path, silent_for=silent_for)
    with writing(tmp_path):
        assert LIMIT_SECONDS <= clock.slept <= LIMIT_SECONDS + 2
    said = capsys.readouterr().err
    assert "process 1 on node7 worked on this stage; waiting up to 120 s to hear from it" in said


@pytest.mark.parametrize("behind", [0.0, 600.0])
def test_one_does_not_wait_for_a_machine_that_is_heard_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: float
) -> None:
    """Also if the clock of that machine is ten minutes behind."""
    clock = Clock(monkeypatch)
    held_elsewhere(tmp_path, silent_for=5 + behind)
    clock.after_sleep = lambda: change(tmp_path, heard=time.time() - behind) if clock.slept >= 4 else None
    with refused("process 1 on node7", "wait for it"):
        writing(tmp_path).__enter__()
    assert clock.slept == 4


def test_a_process_whose_lease_was_taken_over_ends_at_once(tmp_path: Path) -> None:
    with holder(tmp_path, beat_seconds=0.05) as other:
        change(tmp_path, token="another")
        assert other.wait(60) == LOST_CODE
        assert other.stderr is not None
        assert "another process took over" in other.stderr.read()
