"""The scheduler with its local and inline launchers: order, shares of the machine, failures. No worker really runs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from realm_lab.contrib.remote import RemoteLauncher, end_of
from realm_lab.engine.params.parameters import Params
from realm_lab.errors import UserError
from realm_lab.lab import launchers
from realm_lab.lab.launchers import (
    InlineLauncher,
    LauncherSettings,
    LocalLauncher,
    LocalOptions,
    share_out,
)
from realm_lab.lab.tasks import Task
from realm_lab.lab.workers import Outcome
from realm_lab.records.files import write_json
from realm_lab.records.lease import Taken
from realm_lab.records.run import Run
from realm_lab.records.state import Cause, Reason, StageState
from tests import tiny
from tests.factories.finished import finished

PARAMS = tiny.params({"launch.threads": 0, "launch.processes": 0})

STAGES = ("pretrain", "finetune")


@dataclass
class FakeWorkers:
    """Replaces the processes of a task; ends when a test decides."""

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
        self.started.append(FakeWorkers(given["log"].stem, given))
        return self.started[-1]

    @property
    def running(self) -> list[str]:
        return [workers.name for workers in self.started if workers.outcome is None]

    def end(self, name: str, code: int = 0, text: str = "") -> None:
        """End the newest process of that name."""
        next(item for item in reversed(self.started) if item.name == name).outcome = Outcome(code, text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr("realm_lab.lab.launchers.Workers", made.start)
    monkeypatch.setattr(launchers, "cores", lambda: 4)
    monkeypatch.setattr(launchers, "visible_gpus", lambda device: [])
    monkeypatch.setattr(launchers, "LOOK_AGAIN_SECONDS", 0.0)
    return made


def run_of(seed: int, params: Params) -> Run:
    return Run("cell", seed, "", "", system="realm", params=params)


def task(name: str, *after: str, stages: tuple[str, ...] = STAGES, params: Params = PARAMS) -> Task:
    keys = dict.fromkeys(stages, (name.encode().hex() * 12)[:64])
    return Task(name, stages, run_of(0, params), keys, tuple(after), (name,))


def complete(root: Path, one: Task) -> None:
    for run in one.runs(root):
        write_json(run.path / "status.json", {"state": "COMPLETE"})
        finished(run.path, {})


def launcher(machine: Machine, **settings: Any) -> LocalLauncher:
    return LocalLauncher(LauncherSettings(local=LocalOptions(**settings)), machine.root, "study")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"tasks": 1, "ranks": 1, "cores": 8, "gpus": 0}, (1, 8)),
        ({"tasks": 99, "ranks": 2, "cores": 8, "gpus": 0}, (4, 1)),
        ({"tasks": 99, "ranks": 16, "cores": 8, "gpus": 0}, (1, 1)),
        ({"tasks": 99, "ranks": 2, "cores": 8, "gpus": 4}, (2, 2)),
        ({"tasks": 2, "ranks": 1, "cores": 8, "gpus": 0, "processes": 3}, (2, 4)),
        ({"tasks": 99, "ranks": 1, "cores": 8, "gpus": 0, "threads": 2}, (8, 2)),
    ],
)
def test_the_machine_is_shared_out(given: dict[str, int], expected: tuple[int, int]) -> None:
    assert share_out(**given) == expected


def test_jobs_and_their_ranks_have_gpus_of_their_own(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "visible_gpus", lambda device: ["0", "1", "2", "MIG-a"])
    pool = launcher(machine)
    two = tiny.params({"launch.ranks": 2, "launch.threads": 0, "launch.processes": 0})
    pool.submit([task("alone", params=two, stages=("prepare",)), task("a", params=two), task("b", params=two)])
    pool.poll()
    machine.end("alone")
    pool.poll()
    given = [(item.name, item.given["ranks"], item.given["gpus"]) for item in machine.started]
    assert given == [("alone", 1, ("0",)), ("a", 2, ("1", "2")), ("b", 2, ("0", "MIG-a"))]


def test_a_failed_prefix_stops_what_needs_it_and_nothing_else(machine: Machine) -> None:
    pool = launcher(machine, processes=1)
    names = ["bad", "needs", "needs-too", "good", "after-good"]
    before: dict[str, tuple[str, ...]] = {"needs": ("bad",), "needs-too": ("needs", "good"), "after-good": ("good",)}
    pool.submit([task(name, *before.get(name, ())) for name in names])
    pool.poll()
    machine.end("bad", 1, "Traceback\nRuntimeError: odd")
    pool.poll()
    machine.end("good")
    pool.poll()
    machine.end("after-good")
    states = pool.poll()
    log = machine.root / "runs" / "studies" / "study" / "logs" / "bad.txt"
    odd = Reason(Cause.ERROR, detail="RuntimeError: odd", log=str(log))
    assert states["bad"] == StageState("FAILED", "123", odd)
    assert machine.started[0].given["log"] == log
    why = Reason(Cause.NEEDED, "bad seed 0: pretrain, finetune", "FAILED", str(odd))
    assert [states[name] for name in ("needs", "needs-too")] == [StageState("FAILED", reason=why)] * 2
    assert [states[name].state for name in ("good", "after-good")] == ["COMPLETE", "COMPLETE"]
    assert [workers.name for workers in machine.started] == ["bad", "good", "after-good"]
    assert machine.started[0].settled == ["pretrain", "finetune"]


def test_a_task_that_was_stopped_from_outside_is_not_started_again(machine: Machine) -> None:
    pool = launcher(machine)
    pool.submit([task("t"), task("then", "t")])
    pool.poll()
    machine.end("t", 143, "stopped by a signal; run again to resume")
    states = pool.poll()
    assert states["t"].state == "PREEMPTED"
    assert states["then"] == StageState(
        "CANCELLED", reason=Reason(Cause.NEEDED, "t seed 0: pretrain, finetune", "PREEMPTED")
    )
    assert len(machine.started) == 1
    pool.submit([task("t")])  # asked for again, it is
    assert pool.poll()["t"].state == "RUNNING"


def test_what_others_have_done_is_not_done_again(machine: Machine) -> None:
    pool = launcher(machine, processes=1)
    one, two, then = task("one"), task("two"), task("then", "two")
    pool.submit([one, two, then])
    pool.poll()
    complete(machine.root, two)
    machine.end("one")
    states = pool.poll()
    assert (states["two"].state, states["then"].state) == ("COMPLETE", "RUNNING")
    assert [workers.name for workers in machine.started] == ["one", "then"]


def test_a_failure_of_others_is_not_repeated_unless_it_is_asked_for(machine: Machine) -> None:
    pool = launcher(machine, processes=1)
    one, failed = task("one"), task("failed")
    status = failed.runs(machine.root)[0].path / "status.json"
    write_json(status, {"state": "FAILED", "error": "odd", "attempt": 1})  # is tried again, as it is submitted
    pool.submit([failed, one, task("then", "one")])
    pool.poll()
    write_json(one.runs(machine.root)[0].path / "status.json", {"state": "FAILED", "error": "odd", "attempt": 1})
    machine.end("failed")
    states = pool.poll()
    assert (states["one"].state, states["one"].error, states["then"].state) == ("FAILED", "odd", "FAILED")
    assert [workers.name for workers in machine.started] == ["failed"]


def test_what_others_do_is_waited_for(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs: set[str] = {"one"}
    monkeypatch.setattr(
        launchers.Launcher, "other_writer", lambda self, task: "process 7 on far" if task.name in theirs else None
    )
    pool = launcher(machine)
    one, two = task("one"), task("two")
    pool.submit([one, two])
    assert pool.poll()["one"] == StageState("PENDING", reason=Reason(Cause.TAKEN, "process 7 on far"))
    assert machine.running == ["two"]
    theirs.add("two")  # the other was quicker: our process found the stage taken
    machine.end("two", 4, "process 7 on far works on this stage; wait for it")
    assert pool.poll()["two"] == StageState("PENDING", reason=Reason(Cause.TAKEN, "process 7 on far"))
    theirs.discard("two")
    assert pool.poll()["two"].state == "RUNNING"
    theirs.add("two")
    machine.end("two", 2, "whatever a process says that lost a race")
    assert pool.poll()["two"].state == "PENDING"
    theirs.clear()
    complete(machine.root, one)
    states = pool.poll()
    assert (states["one"].state, states["two"].state) == ("COMPLETE", "RUNNING")


def test_cancel_stops_only_what_it_names(machine: Machine) -> None:
    pool = launcher(machine, processes=2)
    pool.submit([task(name) for name in ("a", "b", "c", "d")])
    pool.poll()
    pool.cancel(["a", "c"])
    states = {name: state.state for name, state in pool.poll().items()}
    assert states == {"a": "PREEMPTED", "b": "RUNNING", "c": "CANCELLED", "d": "RUNNING"}
    pool.close()
    assert {state.state for state in pool.poll().values()} == {"PREEMPTED", "CANCELLED"}
    assert all(workers.asked_to_stop for workers in machine.started)


class Elsewhere(RemoteLauncher):
    """Starts nothing: a test writes the ends of tasks."""

    name = "elsewhere"

    def start(self, task: Task, file: Path) -> str:
        return file.name


def test_work_elsewhere_notes_its_end_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realm_lab.contrib.remote.QUEUE_SECONDS", 0.0)
    pool = Elsewhere(LauncherSettings(), tmp_path, "study")
    pool.submit([task(name) for name in ("a", "b", "gone")])
    folder = tmp_path / "runs" / "studies" / "study" / "tasks"
    files = {name: folder / state.job for name, state in pool.poll().items()}
    write_json(end_of(files["a"]), [0, ""])
    write_json(end_of(files["b"]), [2, "the file is gone"])
    write_json(end_of(files["gone"]), [143, "stopped by a signal; run again to resume"])
    states = pool.poll()
    assert [states[name].state for name in ("a", "b", "gone")] == ["COMPLETE", "FAILED", "RUNNING"]
    assert states["b"].error == "the file is gone"
    assert [path.name for path in folder.iterdir()] == [states["gone"].job] != [files["gone"].name]
    pool.close()  # no process has it: it waits in a queue, and finds no file when its turn comes
    assert pool.states["gone"].state == "CANCELLED"
    assert list(folder.iterdir()) == []


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces inline stages: errors to raise, by the seed of their task, and the calls."""
    found: dict[str, Any] = {"raises": {}, "done": []}

    def run_stage(stage: str, system: str, params: Params, seed: int, root: Path) -> None:
        found["done"].append((seed, stage))
        if seed in found["raises"]:
            raise found["raises"][seed]

    monkeypatch.setattr("realm_lab.lab.worker.run_stage", run_stage)
    monkeypatch.setattr(launchers, "LOOK_AGAIN_SECONDS", 0.0)
    return found


def inline(root: Path, after: dict[int, int], count: int, params: Params = PARAMS) -> InlineLauncher:
    """Tasks 0, 1, ...; `after`: task -> the one that it needs."""
    made = InlineLauncher(LauncherSettings(), root, "study")
    for number in range(count):
        keys = dict.fromkeys(STAGES, str(number) * 64)
        needs = (str(after[number]),) if number in after else ()
        made.submit([Task(str(number), STAGES, run_of(number, params), keys, needs, ("cell",))])
    return made


def test_inline_does_one_task_at_a_time_and_a_failure_is_one_line(tmp_path: Path, asked: dict[str, Any]) -> None:
    asked["raises"] = {0: UserError("the file is\ngone"), 1: ZeroDivisionError("by zero")}
    made = inline(tmp_path, {2: 1}, 4)
    assert asked["done"] == []
    assert made.poll()["1"].state == "PENDING"
    states = [made.poll() for _ in range(3)][-1]
    log = tmp_path / "runs" / "studies" / "study" / "logs" / "1.txt"
    assert (states["0"].state, states["0"].error) == ("FAILED", "the file is gone")
    assert (states["1"].state, states["1"].error) == ("FAILED", f"ZeroDivisionError: by zero (see {log})")
    assert states["2"].reason is not None
    assert (states["2"].reason.cause, states["2"].reason.about) == (Cause.NEEDED, "cell seed 1: pretrain, finetune")
    assert states["3"].state == "COMPLETE"
    assert "Traceback" in log.read_text()
    assert asked["done"] == [(0, "pretrain"), (1, "pretrain"), (3, "pretrain"), (3, "finetune")]


def test_inline_waits_for_who_was_quicker(tmp_path: Path, asked: dict[str, Any]) -> None:
    asked["raises"] = {0: Taken("process 7 on far works on this stage; wait for it")}
    made = inline(tmp_path, {}, 1)
    assert made.poll()["0"] == StageState("PENDING", reason=Reason(Cause.TAKEN, "another process"))
    complete(tmp_path, Task("0", STAGES, run_of(0, PARAMS), dict.fromkeys(STAGES, "0" * 64), (), ()))
    assert made.poll()["0"].state == "COMPLETE"
    assert asked["done"] == [(0, "pretrain")]


@pytest.mark.parametrize(
    ("units", "precision", "warns"), [([], "bfloat16", True), (["amx_bf16"], "bfloat16", False), ([], "float32", False)]
)
def test_bfloat16_without_instructions_for_it_is_named_before_hours_are_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    units: list[str],
    precision: str,
    warns: bool,
) -> None:
    monkeypatch.setattr(launchers, "bfloat16_units", lambda: units)
    monkeypatch.setattr(launchers, "visible_gpus", lambda device: [])
    inline(tmp_path, {}, 2, tiny.params({"model.precision": precision}))
    assert capsys.readouterr().err.count("model.precision=float32") == warns
