"""The local pool: how it shares the machine out, in which order, and what a failure stops. No worker really runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from realm_lab.core.files import write_json
from realm_lab.errors import UserError
from realm_lab.params.parameters import Params
from realm_lab.runner import board, local
from realm_lab.runner.board import stage_run
from realm_lab.runner.jobs import JobState
from realm_lab.runner.launchers import make_launcher
from realm_lab.runner.local import LocalLauncher, Share, share_out
from realm_lab.runner.tasks import Task
from realm_lab.runner.workers import Outcome


@dataclass
class FakeWorkers:
    """Stands for processes: ends when a test says how."""

    name: str
    given: dict[str, Any]
    pids: tuple[int, ...] = (123,)
    outcome: Outcome | None = None
    asked_to_stop: bool = False
    settled: list[str] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        return self.outcome is not None

    def reap(self) -> Outcome:
        assert self.outcome is not None
        return self.outcome

    def terminate(self) -> None:
        self.asked_to_stop = True

    def wait(self) -> Outcome:
        assert self.asked_to_stop
        return self.outcome or Outcome(143, "stopped by a signal; run again to resume")

    def settle(self, run: Any, outcome: Outcome) -> None:
        self.settled.append(run.stage)


@dataclass
class Machine:
    """All that was started, in order."""

    root: Path
    started: list[FakeWorkers] = field(default_factory=list)

    def start(self, job: dict[str, Any], **given: Any) -> FakeWorkers:
        workers = FakeWorkers(job["system"], given)
        self.started.append(workers)
        return workers

    @property
    def running(self) -> list[str]:
        return [workers.name for workers in self.started if workers.outcome is None]

    def end(self, name: str, code: int = 0, text: str = "") -> None:
        """The newest process of that name ends."""
        next(item for item in reversed(self.started) if item.name == name).outcome = Outcome(code, text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr("realm_lab.runner.workers.Workers.start", made.start)
    monkeypatch.setattr(local, "cores", lambda: 4)
    monkeypatch.setattr(local, "visible_gpus", lambda device: [])
    monkeypatch.setattr(board, "FOREIGN_INTERVAL_SECONDS", 0.0)
    return made


@pytest.fixture(scope="module")
def params(tiny: ModuleType) -> Params:
    chosen: Params = tiny.params({"launch.threads": 0, "launch.processes": 0})
    return chosen


def task(name: str, params: Params, *after: str) -> Task:
    """One whose label is its name, so that a fake process knows whom it stands for."""
    key = (name.encode().hex() * 12)[:64]
    stages = ("pretrain", "finetune")
    return Task(name, stages, name, 0, params, dict.fromkeys(stages, key), tuple(after), (name,))


def complete(root: Path, one: Task) -> None:
    for stage in one.stages:
        run = stage_run(one, stage, root)
        write_json(run.path / "status.json", {"state": "COMPLETE"})
        write_json(run.path / "results.json", {})


def launcher(machine: Machine, **settings: Any) -> LocalLauncher:
    made = make_launcher("local", settings, machine.root, "study")
    assert isinstance(made, LocalLauncher)
    return made


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"tasks": 1, "ranks": 1, "cores": 8, "gpus": 0}, Share(1, 8)),
        ({"tasks": 3, "ranks": 1, "cores": 8, "gpus": 0}, Share(3, 2)),
        ({"tasks": 99, "ranks": 1, "cores": 8, "gpus": 0}, Share(8, 1)),
        ({"tasks": 99, "ranks": 2, "cores": 8, "gpus": 0}, Share(4, 1)),
        ({"tasks": 99, "ranks": 16, "cores": 8, "gpus": 0}, Share(1, 1)),
        ({"tasks": 99, "ranks": 1, "cores": 8, "gpus": 2}, Share(2, 4)),
        ({"tasks": 99, "ranks": 2, "cores": 8, "gpus": 4}, Share(2, 2)),
        ({"tasks": 99, "ranks": 1, "cores": 8, "gpus": 0, "processes": 3}, Share(3, 2)),
        ({"tasks": 2, "ranks": 1, "cores": 8, "gpus": 0, "processes": 3}, Share(2, 4)),
        ({"tasks": 99, "ranks": 1, "cores": 8, "gpus": 0, "threads": 2}, Share(8, 2)),
    ],
)
def test_the_machine_is_shared_out(given: dict[str, int], expected: Share) -> None:
    assert share_out(**given) == expected


def test_a_hundred_jobs_do_not_start_at_once(machine: Machine, params: Params) -> None:
    pool = launcher(machine)
    tasks = [task(f"t{number}", params) for number in range(100)]
    pool.submit(tasks)
    assert machine.started == []
    most = 0
    while len(machine.started) < 100 or machine.running:
        states = pool.poll()
        assert sorted(name for name, state in states.items() if state.state == "running") == sorted(machine.running)
        most = max(most, len(machine.running))
        machine.end(machine.running[0])
    assert most == 4
    assert [workers.name for workers in machine.started] == [one.name for one in tasks]
    assert all(workers.given["threads"] == 1 for workers in machine.started)
    assert {state.state for state in pool.poll().values()} == {"ended"}


def test_each_job_has_a_gpu_of_its_own(machine: Machine, params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "visible_gpus", lambda device: ["3", "5", "MIG-a"])
    pool = launcher(machine)
    pool.submit([task(f"t{number}", params) for number in range(5)])
    pool.poll()
    assert [workers.given["gpus"] for workers in machine.started] == [("3",), ("5",), ("MIG-a",)]
    machine.end("t1")
    pool.poll()
    assert machine.started[3].given["gpus"] == ("5",)


def test_ranks_share_a_job_and_its_gpus(machine: Machine, tiny: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "visible_gpus", lambda device: ["0", "1", "2", "3"])
    pool = launcher(machine)
    two = tiny.params({"launch.ranks": 2, "launch.threads": 0, "launch.processes": 0})
    alone = Task("alone", ("prepare",), "alone", 0, two, {"prepare": "ab" * 32}, (), ())
    pool.submit([alone, task("a", two), task("b", two)])
    pool.poll()
    machine.end("alone")
    pool.poll()
    given = [(item.name, item.given["ranks"], item.given["gpus"]) for item in machine.started]
    assert given == [("alone", 1, ("0",)), ("a", 2, ("1", "2")), ("b", 2, ("0", "3"))]


def test_the_study_may_say_how_many(machine: Machine, params: Params) -> None:
    pool = launcher(machine, processes=2)
    pool.submit([task(f"t{number}", params) for number in range(5)])
    pool.poll()
    assert machine.running == ["t0", "t1"]
    assert machine.started[0].given["threads"] == 2


def test_what_comes_before_is_waited_for(machine: Machine, params: Params) -> None:
    pool = launcher(machine)
    pool.submit([task("first", params), task("other", params), task("then", params, "first", "done long ago")])
    assert pool.poll()["then"] == JobState("waiting")
    assert machine.running == ["first", "other"]
    machine.end("other")
    pool.poll()
    assert machine.running == ["first"]
    machine.end("first")
    assert pool.poll()["then"].state == "running"


def test_a_failed_prefix_stops_what_needs_it_and_nothing_else(machine: Machine, params: Params) -> None:
    pool = launcher(machine, processes=1)
    names = ["bad", "needs", "needs-too", "good", "after-good"]
    before: dict[str, tuple[str, ...]] = {"needs": ("bad",), "needs-too": ("needs", "good"), "after-good": ("good",)}
    pool.submit([task(name, params, *before.get(name, ())) for name in names])
    pool.poll()
    machine.end("bad", 2, "note\nparameter 'x' is wrong")
    pool.poll()
    machine.end("good")
    pool.poll()
    machine.end("after-good")
    states = pool.poll()
    assert states["bad"] == JobState("failed", "123", "parameter 'x' is wrong")
    line = "not run: bad seed 0: pretrain, finetune failed: parameter 'x' is wrong"
    assert [states[name] for name in ("needs", "needs-too")] == [JobState("failed", error=line)] * 2
    assert [states[name].state for name in ("good", "after-good")] == ["ended", "ended"]
    assert [workers.name for workers in machine.started] == ["bad", "good", "after-good"]
    assert machine.started[0].settled == ["pretrain", "finetune"]


def test_an_unexpected_failure_says_where_its_traceback_is(machine: Machine, params: Params) -> None:
    pool = launcher(machine)
    pool.submit([task("t", params)])
    pool.poll()
    machine.end("t", 1, "Traceback ...\nRuntimeError: odd")
    log = machine.root / "runs" / "studies" / "study" / "logs" / "t.txt"
    assert pool.poll()["t"] == JobState("failed", "123", f"RuntimeError: odd (see {log})")
    assert machine.started[0].given["log"] == log


def test_a_task_that_was_stopped_from_outside_is_not_started_again(machine: Machine, params: Params) -> None:
    pool = launcher(machine)
    pool.submit([task("t", params), task("then", params, "t")])
    pool.poll()
    machine.end("t", 143, "stopped by a signal; run again to resume")
    states = pool.poll()
    assert states["t"].state == "preempted"
    assert states["then"] == JobState("cancelled", error="not run: t seed 0: pretrain, finetune was stopped")
    assert len(machine.started) == 1
    pool.submit([task("t", params)])  # asked for again, it is
    assert pool.poll()["t"].state == "running"


def test_what_others_have_done_is_not_done_again(machine: Machine, params: Params) -> None:
    pool = launcher(machine, processes=1)
    one, two, then = task("one", params), task("two", params), task("then", params, "two")
    pool.submit([one, two, then])
    pool.poll()
    complete(machine.root, two)
    machine.end("one")
    states = pool.poll()
    assert (states["two"].state, states["then"].state) == ("ended", "running")
    assert [workers.name for workers in machine.started] == ["one", "then"]


def test_what_others_do_is_waited_for(machine: Machine, params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs: set[str] = {"one"}
    monkeypatch.setattr(board, "worked_on_by", lambda task, root: "process 7 on far" if task.name in theirs else None)
    monkeypatch.setattr(local, "worked_on_by", board.worked_on_by)
    pool = launcher(machine)
    one, two = task("one", params), task("two", params)
    pool.submit([one, two])
    assert pool.poll()["one"] == JobState("waiting", error="runs in process 7 on far")
    assert machine.running == ["two"]
    theirs.add("two")  # the other was quicker: our process found the stage taken
    machine.end("two", 4, "process 7 on far works on this stage; wait for it")
    assert pool.poll()["two"] == JobState("waiting", error="runs in process 7 on far")
    theirs.clear()
    complete(machine.root, one)
    states = pool.poll()
    assert (states["one"].state, states["two"].state) == ("ended", "running")


def test_cancel_stops_only_what_it_names(machine: Machine, params: Params) -> None:
    pool = launcher(machine, processes=2)
    pool.submit([task(name, params) for name in ("a", "b", "c", "d")])
    pool.poll()
    pool.cancel(["a", "c"])
    states = pool.poll()
    assert {name: state.state for name, state in states.items()} == {
        "a": "preempted",
        "b": "running",
        "c": "cancelled",
        "d": "running",
    }
    pool.close()
    assert {state.state for state in pool.poll().values()} == {"preempted", "cancelled"}
    assert all(workers.asked_to_stop for workers in machine.started)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("cloud", {}, "launcher 'cloud': no such launcher; choose inline, local, slurm"),
        ("local", {"proceses": 2}, "launcher.local.proceses: no such setting; choose processes"),
        ("inline", {"processes": 2}, "launcher.inline.processes: no such setting; it has none"),
        ("local", {"processes": "two"}, "launcher.local.processes: 'two' is no number of tasks; give 1 or more"),
        ("local", {"processes": -1}, "launcher.local.processes: -1 is no number of tasks; give 1 or more"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make_launcher(name, settings, tmp_path, "study")
    assert str(caught.value) == message
