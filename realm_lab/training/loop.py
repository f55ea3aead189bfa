"""The one training loop: step, log, evaluate, checkpoint, resume.

A task is a pure function of its step number and its tensors (every random draw is derived from the step), so a
run that is killed and resumed from a checkpoint ends in the same bits.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from realm_lab.config import Launch
from realm_lab.core.seeding import derive_seed
from realm_lab.errors import UserError
from realm_lab.tracking.run_dir import StageRun
from realm_lab.training.checkpoint import Checkpoint, load_newest, save_checkpoint


class Task(Protocol):
    """What a stage gives to the loop."""

    seed: int
    total_steps: int
    evaluation_interval_steps: int

    def train_step(self, step: int) -> dict[str, float]:
        """Run optimiser step `step` and return what is worth logging; `loss` is among it where there was one."""

    def evaluate(self, step: int) -> dict[str, float]:
        """Metrics of the state after `step` finished steps."""

    def tensors(self) -> dict[str, Tensor]:
        """The whole training state."""

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Restore what `tensors` returned after `step` steps."""


def train(task: Task, run: StageRun, launch: Launch, device: torch.device) -> None:
    """Run a task to its end, from its newest checkpoint if there is one.

    Raises:
        UserError: the loss is not finite.
    """
    folder = run.path / "checkpoints"
    found = load_newest(folder)
    step = found.step if found else 0
    if found:
        task.load({name: value.to(device) for name, value in found.tensors.items()}, step)
    run.metrics.truncate_after(step if found else -1)
    run.start(task.total_steps)
    if not found:
        run.metrics.log(0, task.evaluate(0))
    saved_at = time.monotonic()
    while step < task.total_steps:
        torch.manual_seed(derive_seed(task.seed, "dropout", step))
        values = task.train_step(step)
        step += 1
        _check_finite(values, step, run.path)
        finished = step == task.total_steps
        if finished or step % launch.log_interval_steps == 0:
            run.metrics.log(step, values)
        if finished or step % task.evaluation_interval_steps == 0:
            run.metrics.log(step, task.evaluate(step))
        run.heartbeat(step, force=finished)
        if finished or time.monotonic() - saved_at > launch.checkpoint_interval_seconds:
            save_checkpoint(folder, Checkpoint(step, task.tensors()))
            saved_at = time.monotonic()


def _check_finite(values: dict[str, float], step: int, path: Path) -> None:
    if not math.isfinite(values.get("loss", 0.0)):
        raise UserError(f"{path}: the loss is {values['loss']} at step {step}; lower the learning rates")
