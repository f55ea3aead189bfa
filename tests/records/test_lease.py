"""Leases, also those of stages: one holder, taken over when dead or silent, and never written over by a late one."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from realm_lab.errors import UserError
from realm_lab.records import lease as lease_module
from realm_lab.records.files import read_json, write_json
from realm_lab.records.lease import Taken, exclusive, holders, take, this_process
from realm_lab.records.run_lease import LIMIT_SECONDS, LOST_CODE, writing
from tests.factories.errors import refused

LIMIT = 100.0  # seconds of silence


def change(path: Path, **values: Any) -> None:
    write_json(path, read_json(path) | values)


def silence(path: Path, seconds: float) -> None:
    """Change a lease as if its holder had been silent for so long."""
    change(path, heard=time.time() - seconds)


def in_child(body: str, *arguments: str) -> subprocess.Popen[str]:
    program = f"import sys\nfrom pathlib import Path\nfrom realm_lab.records.lease import *\n{body}"
    command = [sys.executable, "-c", program, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


HOLDS = "lease = take(Path(sys.argv[1]), 'a', limit_seconds=100.0); print('held', flush=True); sys.stdin.read()"


def test_a_lease_is_held_once_and_given_back(tmp_path: Path) -> None:
    with take(tmp_path / "leases", "a", limit_seconds=LIMIT):
        said = rf"process {os.getpid()} on {socket.gethostname()} is at work, last heard of 0 s ago; wait for it"
        with pytest.raises(Taken, match=said):
            take(tmp_path / "leases", "a", limit_seconds=LIMIT)
        take(tmp_path / "leases", "b", limit_seconds=LIMIT).release()  # another name is no rival
    assert holders(tmp_path / "leases") == []
    take(tmp_path / "leases", "a", limit_seconds=LIMIT).release()


def test_a_living_process_keeps_it_and_a_killed_one_loses_it_at_once(tmp_path: Path) -> None:
    with in_child(HOLDS, str(tmp_path)) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"process {child.pid} on {socket.gethostname()}"):
            take(tmp_path, "a", limit_seconds=LIMIT)
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie until `with` collects it
        taken = take(tmp_path, "a", limit_seconds=LIMIT)
    [holder] = holders(tmp_path)
    assert holder.owner == this_process()
    taken.release()


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let this time pass without any event."""
    clocks = {name: getattr(time, name) for name in ("time", "monotonic")}
    for name, clock in clocks.items():
        monkeypatch.setattr(time, name, lambda clock=clock: clock() + seconds)


def test_a_silent_one_is_taken_over_and_its_late_holder_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = take(tmp_path, "a", limit_seconds=LIMIT)
    silence(tmp_path / "a.json", LIMIT - 20)
    with pytest.raises(UserError, match="last heard of 80 s ago"):
        take(tmp_path, "a", limit_seconds=LIMIT)
    pass_time(monkeypatch, LIMIT + 20)
    taken = take(tmp_path, "a", limit_seconds=LIMIT)
    with pytest.raises(UserError, match="another process took over after"):
        late.beat()
    late.release()  # not its own any more: it stays
    silence(tmp_path / "a.json", 90)
    taken.beat()
    [holder] = holders(tmp_path)
    assert time.time() - holder.heard < 60


def test_clocks_of_two_machines_decide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine's clock is an hour behind: its lease is held while it changes, and free when it does not."""
    file = tmp_path / "a.json"
    owner = asdict(this_process()) | {"host": "elsewhere"}

    def beat() -> None:
        write_json(file, {"owner": owner, "token": "t", "heard": time.time() - 3600})

    def seems_held() -> bool:
        [holder] = holders(tmp_path)
        return lease_module.seems_held(tmp_path, holder, LIMIT)

    beat()
    seems_held()  # the first look can only compare clocks
    for _ in range(3):
        pass_time(monkeypatch, 0.8 * LIMIT)
        beat()
        assert seems_held()
        with pytest.raises(Taken):
            take(tmp_path, "a", limit_seconds=LIMIT)
    pass_time(monkeypatch, 1.2 * LIMIT)
    assert not seems_held()
    take(tmp_path, "a", limit_seconds=LIMIT).release()


def test_a_process_outlives_a_clock_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of a process is counted from that of its machine, which moves with the clock."""
    with take(tmp_path, "a", limit_seconds=LIMIT):
        start, boot = psutil.Process.create_time, psutil.boot_time
        with monkeypatch.context() as patches:
            patches.setattr(psutil.Process, "create_time", lambda process: start(process) + 300.0)
            patches.setattr(psutil, "boot_time", lambda: boot() + 300.0)
            with pytest.raises(Taken):
                take(tmp_path, "a", limit_seconds=LIMIT)


def test_one_that_is_given_back_while_others_look_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is listed, and gone when it is read."""
    lease = take(tmp_path, "a", limit_seconds=LIMIT)
    read = lease_module._read

    def read_too_late(path: Path) -> Any:
        path.unlink()
        return read(path)

    monkeypatch.setattr(lease_module, "_read", read_too_late)
    assert holders(tmp_path) == []
    lease.release()


@pytest.mark.parametrize("text", ["{", '{"owner": {"host": "h", "pid": "x", "born": 0}}'])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=r"a\.json.*delete"):
        take(tmp_path, "a", limit_seconds=LIMIT)


@pytest.mark.slow
def test_of_many_processes_one_gets_it(tmp_path: Path) -> None:
    """All processes start from a dead holder's lease, at the same time."""
    take(tmp_path, "a", limit_seconds=LIMIT)
    change(tmp_path / "a.json", owner={"host": socket.gethostname(), "pid": os.getpid(), "born": 1.0})
    body = """
sys.stdin.readline()
try:
    lease = take(Path(sys.argv[1]), 'a', limit_seconds=100.0)
    print('held', flush=True)
except UserError:
    print('refused', flush=True)
sys.stdin.read()
"""
    children = [in_child(body, str(tmp_path)) for _ in range(6)]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    said = []
    for child in children:
        assert child.stdout is not None
        said.append(child.stdout.readline().strip())
    for child in children:
        child.communicate()
    assert sorted(said) == ["held"] + ["refused"] * 5


def test_an_exclusive_lock_lets_one_in(tmp_path: Path) -> None:
    body = "\nwith exclusive(Path(sys.argv[1])):\n    print('in', flush=True)\n    sys.stdin.read()"
    with in_child(body, str(tmp_path / "lock")) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "in\n"
        with exclusive(tmp_path / "lock", wait=False) as file:
            assert file is None
        child.kill()  # the kernel frees it
        with exclusive(tmp_path / "lock") as file:
            assert file is not None


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
    clock.after_sleep = lambda: (
        change(tmp_path / "lease" / "writer.json", heard=time.time() - behind) if clock.slept >= 4 else None
    )
    with refused("process 1 on node7", "wait for it"):
        writing(tmp_path).__enter__()
    assert clock.slept == 4


def test_a_process_whose_lease_was_taken_over_ends_at_once(tmp_path: Path) -> None:
    """A lock service that does not answer for a moment is no takeover."""
    body = "\nimport errno, fcntl\nfrom realm_lab.records import run_lease\nrun_lease.BEAT_SECONDS = 0.05\n"
    body += "lock = fcntl.flock\ndef no_lock(*given):\n    fcntl.flock = lock\n    raise OSError(errno.ENOLCK, 'no')\n"
    body += "with run_lease.writing(Path(sys.argv[1])):\n    fcntl.flock = no_lock"
    body += "\n    print('held', flush=True)\n    sys.stdin.read()"
    with in_child(body, str(tmp_path)) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        change(tmp_path / "lease" / "writer.json", token="another")
        assert child.wait(60) == LOST_CODE
        assert child.stderr is not None
        assert "another process took over" in child.stderr.read()
