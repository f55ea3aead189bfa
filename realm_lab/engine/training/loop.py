"""The loop of all training stages: step, log, evaluate, checkpoint, resume, and stop on a signal.

A step is a pure function of its number and the task's tensors (every random draw is derived from the number), so a
run that is killed and resumed from a checkpoint ends with the same bits. Several ranks do the same steps together
(core/process.py); only the first one writes.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from realm_lab.engine.core.flop import FlopCount
from realm_lab.engine.core.process import any_rank, on_first_rank, ranks, stop_signals_noted
from realm_lab.engine.core.seeding import derive_seed
from realm_lab.engine.params.parameters import Launch
from realm_lab.engine.training.checkpoint import Checkpoint, load_newest, save_checkpoint
from realm_lab.errors import UserError
from realm_lab.records.run import StageRun

COUNT_STEPS = 10  # counting may double a step's time: every tenth is counted, and the nine before it are taken as equal


class TrainingTask(Protocol):
    """The interface between a stage and the loop. A task may also have these methods:

    - `evaluate(step) -> dict` and `watch(step) -> dict`: metrics of the state after `step` finished steps, called at
      the start, at the end and every `evaluation_interval_steps` or `watch_interval_steps`; rank 0 logs its values;
    - `flags() -> Iterable[Flag]`: warnings for the run's status, called after every step;
    - `uncounted_flop() -> float`: operations of its steps so far in blocks of `core.flop.uncounted`.
    """

    seed: int
    total_steps: int

    def train_step(self, step: int) -> dict[str, float]:
        """Run optimiser step `step` and return metrics to log, with `loss` if the step had one."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the whole training state."""

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Restore the result of `tensors` after `step` steps."""


def train(
    task: TrainingTask,
    run: StageRun,
    launch: Launch,
    device: torch.device,
    later: Mapping[int, Callable[[], TrainingTask]] = MappingProxyType({}),
) -> None:
    """Run a task to its end, from its newest checkpoint if there is one. `later`: step -> a function that makes the
    task from this step on, in ascending order; each task takes over the state of the one before. UserError: the loss
    or a gradient is not finite. SystemExit (code 128 + signal): a signal to stop came; a checkpoint was written."""
    folder = run.path / "checkpoints"
    first, size = ranks().rank == 0, ranks().size
    mine = () if first else (ranks().rank,)  # dropout differs by rank; rank 0 has that of a single process
    found = _newest(folder)
    if found:
        for at in [at for at in later if at < found.step][-1:]:
            task = later[at]()
        task.load(found.tensors, found.step)
    step, flop = (found.step, found.flop) if found else (0, 0.0)
    if first:
        run.metrics.truncate_after(step if found else -1)
        run.start(task.total_steps)
        run.count_flop(_operations(task, flop))  # up to the checkpoint: later steps run again
    if not found:
        _measure(task, run, 0)

    def save() -> None:
        if first:
            save_checkpoint(folder, Checkpoint(step, task.tensors(), flop))

    saved_at = time.monotonic()
    asked = False
    with stop_signals_noted() as request:
        while step < task.total_steps:
            if step in later:
                before, task = task, later[step]()
                task.load(before.tensors(), step)
                del before
            torch.manual_seed(derive_seed(task.seed, "dropout", step, *mine))
            finished = step + 1 == task.total_steps
            logged = first and (finished or (step + 1) % launch.log_interval_steps == 0)
            # Operations of compiled code cannot be counted.
            is_counted = first and (finished or (step + 1) % COUNT_STEPS == 0) and not launch.compile
            counted = FlopCount() if is_counted else None  # type: ignore[no-untyped-call]
            with counted or nullcontext():
                values = task.train_step(step)
            if counted:
                flop += counted.flop * size * (step % COUNT_STEPS + 1)
                run.count_flop(_operations(task, flop))
            step += 1
            _check_finite(values, run.path, step)
            if logged:
                run.metrics.log(step, values)
            _measure(task, run, step)
            if first:
                run.heartbeat(step, force=finished)
            if first and hasattr(task, "flags"):
                for flag in task.flags():
                    run.flag(flag)
            asked = request.signal_number != 0
            if size > 1:  # all ranks stop at the same step, or none
                asked = any_rank(asked)
            if asked or finished or time.monotonic() - saved_at > launch.checkpoint_interval_seconds:
                save()
                saved_at = time.monotonic()
            if asked and not finished:
                any_rank(True)  # wait for all ranks: the first may still read their shares of the index (spread.py)
                raise SystemExit(128 + (request.signal_number or 15))
    if asked or request.signal_number:  # a signal came in the last step: pass it on, the process may run another stage
        handler = signal.getsignal(request.signal_number or signal.SIGTERM)
        if callable(handler):
            handler(request.signal_number or signal.SIGTERM, None)


def _operations(task: TrainingTask, counted: float) -> float:
    """Return all floating-point operations of a task; 0 if none are counted, because its code is compiled."""
    return counted + task.uncounted_flop() if counted and hasattr(task, "uncounted_flop") else counted


def _newest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint, the same on every rank; None if there is none."""
    found = load_newest(folder)
    step = found.step if found else None
    agreed = on_first_rank(lambda: step)
    if agreed != step:
        raise UserError(
            f"rank {ranks().rank} finds the checkpoint of step {step}, rank 0 that of step {agreed}",
            "all ranks need the same disk",
            path=folder,
        )
    return found


def _measure(task: TrainingTask, run: StageRun, step: int) -> None:
    """Evaluate and watch when it is time: at the start, at the end, and at their intervals."""
    for name, interval in (("evaluate", "evaluation_interval_steps"), ("watch", "watch_interval_steps")):
        if hasattr(task, name) and (step == task.total_steps or step % getattr(task, interval) == 0):
            values = getattr(task, name)(step)
            if ranks().rank == 0:
                run.metrics.log(step, values)


def _check_finite(values: Mapping[str, float], path: Path, step: int) -> None:
    """Raise a UserError if the loss or the norm of a gradient is not finite."""
    for name, value in values.items():
        if (name == "loss" or name.startswith("gradient_norm")) and not math.isfinite(value):
            what = f"the {name.replace('_', ' ')} is {value} at step {step}"
            raise UserError(what, "lower the learning rates", path=path)
