"""The inline launcher: order, failures, signals. The stages are stood for by functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from realm_lab.core.files import write_json
from realm_lab.errors import UserError
from realm_lab.params.parameters import Params
from realm_lab.runner import board, inline
from realm_lab.runner.board import stage_run
from realm_lab.runner.inline import InlineLauncher
from realm_lab.runner.tasks import Task
from realm_lab.tracking.run_lease import Taken

Fails = dict[str, BaseException]


@pytest.fixture(scope="module")
def params(tiny: ModuleType) -> Params:
    chosen: Params = tiny.params()
    return chosen


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Fails], list[tuple[str, str]]]:
    """Lets stages fail by system, and collects what was asked for."""

    def with_failures(fails: Fails) -> list[tuple[str, str]]:
        asked: list[tuple[str, str]] = []

        def run_stage(stage: str, system: str, params: Params, seed: int, root: Path, *, for_study: bool) -> None:
            assert for_study
            assert root == tmp_path
            asked.append((system, stage))
            if system in fails:
                raise fails[system]

        monkeypatch.setattr("realm_lab.runner.worker.run_stage", run_stage)
        return asked

    return with_failures


def task(name: str, params: Params, *after: str) -> Task:
    keys = dict.fromkeys(("pretrain", "finetune"), (name.encode().hex() * 12)[:64])
    return Task(name, ("pretrain", "finetune"), name, 0, params, keys, tuple(after), (name,))


def launcher(root: Path) -> InlineLauncher:
    return InlineLauncher({}, root, "study")


def test_one_task_at_a_time_in_order(tmp_path: Path, params: Params, done: Any) -> None:
    asked = done({})
    made = launcher(tmp_path)
    made.submit([task("a", params), task("b", params, "a")])
    assert asked == []
    assert {name: state.state for name, state in made.poll().items()} == {"a": "ended", "b": "waiting"}
    assert {name: state.state for name, state in made.poll().items()} == {"a": "ended", "b": "ended"}
    assert asked == [(name, stage) for name in "ab" for stage in ("pretrain", "finetune")]


def test_a_failure_is_one_line_and_the_rest_goes_on(tmp_path: Path, params: Params, done: Any) -> None:
    asked = done({"a": UserError("the file is\ngone"), "b": ZeroDivisionError("by zero")})
    made = launcher(tmp_path)
    made.submit([task("a", params), task("b", params), task("c", params, "b"), task("d", params)])
    states = [made.poll() for _ in range(4)][-1]
    log = tmp_path / "runs" / "studies" / "study" / "logs" / "b.txt"
    assert (states["a"].state, states["a"].error) == ("failed", "the file is gone")
    assert (states["b"].state, states["b"].error) == ("failed", f"ZeroDivisionError: by zero (see {log})")
    assert (states["c"].state, states["d"].state) == ("failed", "ended")
    assert str(states["c"].error).startswith("not run: b seed 0: pretrain, finetune failed: ZeroDivisionError")
    assert "Traceback" in log.read_text()
    assert [system for system, _ in asked] == ["a", "b", "d", "d"]


def test_a_signal_leaves_the_rest_for_later(tmp_path: Path, params: Params, done: Any) -> None:
    done({"a": SystemExit(143)})
    made = launcher(tmp_path)
    made.submit([task("a", params), task("b", params)])
    with pytest.raises(SystemExit):
        made.poll()
    made.close()
    assert {name: state.state for name, state in made.poll().items()} == {"a": "preempted", "b": "cancelled"}


def test_who_was_quicker_is_waited_for(
    tmp_path: Path, params: Params, done: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = done({"a": Taken("process 7 on far works on this stage; wait for it")})
    monkeypatch.setattr(board, "FOREIGN_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(inline, "worked_on_by", lambda task, root: None)  # between two stages
    made = launcher(tmp_path)
    one = task("a", params)
    made.submit([one])
    state = made.poll()["a"]
    assert (state.state, state.error) == ("waiting", "runs in another process")
    for stage in one.stages:
        folder = stage_run(one, stage, tmp_path).path
        write_json(folder / "status.json", {"state": "COMPLETE"})
        write_json(folder / "results.json", {})
    assert made.poll()["a"].state == "ended"
    assert asked == [("a", "pretrain")]
