"""Early ends of a run and the files that they leave: a signal, a collapse, a loss that is not finite."""

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from realm_lab.engine.core.process import Ranks
from realm_lab.engine.params.parameters import Launch
from realm_lab.engine.training import loop
from realm_lab.engine.training.checkpoint import load_newest
from realm_lab.engine.training.loop import train
from realm_lab.records.run import Flag, StageRun
from tests.factories.errors import refused
from tests.tiny import by_name


class Count:
    """A task that counts, to test the loop around it."""

    seed, total_steps, evaluation_interval_steps = 0, 6, 3

    def __init__(self) -> None:
        self.state = torch.zeros(2)  # finished steps, and a sum of random draws
        self.at: dict[int, Any] = {}  # calls after a step
        self.done: list[int] = []

    def train_step(self, step: int) -> dict[str, float]:
        self.done.append(step)
        self.state += torch.stack([torch.tensor(1.0), torch.rand(())])
        values = {"loss": float(self.state[1])}
        return values | (self.at[step]() or {} if step in self.at else {})

    def evaluate(self, step: int) -> dict[str, float]:
        return {"evaluated": step}

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"state": self.state}

    def load(self, tensors: dict[str, torch.Tensor], step: int) -> None:
        self.state = tensors["state"].clone()
        assert self.state[0] == step


@pytest.fixture
def stage(tmp_path: Path) -> StageRun:
    return StageRun.open(tmp_path, "pretrain", "a" * 64, {})


LAUNCH = Launch(device="cpu", checkpoint_interval_seconds=1000, log_interval_steps=1)
CPU = torch.device("cpu")


def logged(run: StageRun) -> dict[str, dict[int, float]]:
    return by_name([{name: value for name, value in row.items() if name != "time"} for row in run.metrics.rows()])


class Watched(Count):
    """A task with everything that a task may have."""

    watch_interval_steps = 2

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[Flag] = []

    def watch(self, step: int) -> dict[str, float]:
        return {"watched": 10.0 * step}

    def flags(self) -> list[Flag]:
        return self.warnings


def test_what_is_measured_is_logged_at_the_start_in_its_interval_and_at_the_end(stage: StageRun) -> None:
    task = Watched()
    task.total_steps = 7
    train(task, stage, LAUNCH, CPU)
    found = logged(stage)
    assert found["evaluated"] == {0: 0, 3: 3, 6: 6, 7: 7}
    assert found["watched"] == {0: 0, 2: 20, 4: 40, 6: 60, 7: 70}


def test_flags_are_set_as_they_appear_and_stop_nothing(stage: StageRun) -> None:
    task = Watched()
    seen, flat = [], Flag("flat_prior", "a flat prior")
    task.at = {1: lambda: task.warnings.append(flat), 2: lambda: seen.append(stage.status().flags)}
    train(task, stage, LAUNCH, CPU)
    assert seen == [(flat,)]
    assert stage.status().flags == (flat,)
    assert task.done == list(range(6))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_stops_at_the_end_of_the_step_and_costs_nothing(stage: StageRun, tmp_path: Path, number: int) -> None:
    whole = Count()
    train(whole, StageRun.open(tmp_path / "whole", "pretrain", "a" * 64, {}), LAUNCH, CPU)

    def interrupt() -> None:
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    task = Count()
    task.at = {2: interrupt}
    with pytest.raises(SystemExit) as caught:
        train(task, stage, LAUNCH, CPU)
    assert caught.value.code == 128 + number
    assert task.done == [0, 1, 2]
    assert signal.getsignal(number) is before
    saved = load_newest(stage.path / "checkpoints")
    assert saved is not None
    assert saved.step == 3

    resumed = Count()
    train(resumed, stage, LAUNCH, CPU)
    assert resumed.done == [3, 4, 5]
    assert torch.equal(resumed.state, whole.state)
    assert list(logged(stage)["loss"]) == [1, 2, 3, 4, 5, 6]


def test_ranks_leave_together_after_the_first_has_written_its_checkpoint(
    stage: StageRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def agree(flag: bool) -> bool:
        calls.append("exchange")
        return True

    monkeypatch.setattr(loop, "ranks", lambda: Ranks(0, 2))
    monkeypatch.setattr(loop, "any_rank", agree)
    monkeypatch.setattr(loop, "save_checkpoint", lambda folder, checkpoint: calls.append("save"))
    with pytest.raises(SystemExit):
        train(Count(), stage, LAUNCH, CPU)
    assert calls == ["exchange", "save", "exchange"]


USR1, USR2, TERM = signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM


@pytest.mark.parametrize(
    ("job", "numbers", "code", "is_saved"),
    [("", [USR1, TERM], TERM, False), ("17", [USR2, USR2, TERM, TERM], USR2, True)],
)
def test_a_second_signal_does_not_wait_but_slurm_may_repeat_itself(
    stage: StageRun, monkeypatch: pytest.MonkeyPatch, job: str, numbers: list[int], code: int, is_saved: bool
) -> None:
    def interrupt() -> None:
        for number in numbers:
            os.kill(os.getpid(), number)

    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    task = Count()
    task.at = {2: interrupt}
    with pytest.raises(SystemExit) as caught:
        train(task, stage, LAUNCH, CPU)
    assert caught.value.code == 128 + code
    saved = load_newest(stage.path / "checkpoints")
    assert (saved is not None and saved.step == 3) == is_saved


def test_a_signal_in_the_last_step_is_for_whoever_goes_on(stage: StageRun) -> None:
    noted: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: noted.append(number))
    try:
        task = Count()
        task.at = {5: lambda: os.kill(os.getpid(), signal.SIGUSR2)}
        train(task, stage, LAUNCH, CPU)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert noted == [signal.SIGUSR2]
    assert load_newest(stage.path / "checkpoints") is not None


@pytest.mark.parametrize("name", ["loss", "gradient_norm_reader"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_ends_the_run(stage: StageRun, name: str, value: float) -> None:
    task = Watched()
    task.at = {3: lambda: {name: value}}
    with refused(
        f"the {name.replace('_', ' ')} is {value} at step 4", path=stage.path, remedy="lower the learning rates"
    ):
        train(task, stage, LAUNCH, CPU)
    assert list(logged(stage)["loss"]) == [1, 2, 3]
