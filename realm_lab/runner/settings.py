"""The settings of launchers, parts of a study's `launcher` section."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from realm_lab.errors import UserError

LAUNCHERS = ("inline", "local", "slurm")
# sbatch options that are set from elsewhere; `additional` must not.
OURS = {
    "array": "array_parallelism",
    "cpus-per-task": "cpus_per_task",
    "error": "",
    "gpus-per-node": "gpus_per_node",
    "job-name": "",
    "mem": "mem_gb",
    "no-requeue": "requeue",
    "nodes": "nodes",
    "ntasks": "launch.ranks of the parameters",
    "ntasks-per-node": "launch.ranks of the parameters",
    "open-mode": "",
    "output": "",
    "requeue": "requeue",
    "signal": "signal_delay_s",
    "time": "timeout_min",
}


class InlineOptions(BaseModel):
    """Tasks that run in this process have no settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class LocalOptions(InlineOptions):
    """Tasks in processes of this machine."""

    processes: Annotated[int, Field(ge=1)] | None = None
    """How many tasks at a time; empty: `launch.processes`, else as many as there are cores or GPUs for them."""


class SlurmOptions(InlineOptions):
    """Resources of each job, and how jobs are queued. What is empty is left to the cluster."""

    partition: str | None = None
    """Partition, or several with commas."""
    account: str | None = None
    """Account that pays."""
    qos: str | None = None
    """Quality of service."""
    constraint: str | None = None
    """Features that a node must have, as sbatch spells them."""
    nodes: Annotated[int, Field(ge=1)] = 1
    """Machines of a job; launch.ranks processes are shared out between them."""
    gpus_per_node: Annotated[int, Field(ge=0)] = 0
    """GPUs of a job on each machine: one for each of its processes there."""
    cpus_per_task: Annotated[int, Field(ge=1)] = 1
    """Cores, and threads, of each process."""
    mem_gb: Annotated[float, Field(gt=0, strict=False)] | None = None
    """Memory of a job on each machine."""
    timeout_min: Annotated[int, Field(ge=1)] = 240
    """Time limit of a job. A run that needs more goes on in the same job, queued again."""
    signal_delay_s: Annotated[int, Field(ge=1)] = 120
    """How long before the time limit a job is told to stop; it must finish a step and write a checkpoint meanwhile."""
    requeue: bool = True
    """A job that is told to stop goes back to the queue. Where a cluster never does that: false, and `sweep` again."""
    array_parallelism: Annotated[int, Field(ge=1)] = 64
    """Jobs of the study that run at once."""
    setup: tuple[Annotated[str, Field(strict=True)], ...] = Field(default=(), strict=False)
    """Shell lines before a job starts, such as `module load cuda`."""
    python: str | None = None
    """Command that starts Python in a job, such as one inside a container; empty: the interpreter of `sweep`."""
    additional: dict[str, str | int | float | bool] = {}
    """Any other option of sbatch, without its dashes: `{reservation: mine, exclusive: true}`."""

    @model_validator(mode="after")
    def _consistent(self) -> SlurmOptions:
        if self.signal_delay_s >= 60 * self.timeout_min:
            raise ValueError(f"timeout_min: {self.timeout_min} is over before signal_delay_s ({self.signal_delay_s})")
        for name in self.additional:
            plain = name.lstrip("-").replace("_", "-")
            if plain in OURS:
                raise ValueError(f"additional.{name}: is set by {OURS[plain] or 'the launcher'}; leave it out here")
        return self


OPTIONS: dict[str, type[InlineOptions]] = {"inline": InlineOptions, "local": LocalOptions, "slurm": SlurmOptions}


def read_options(launcher: str, settings: Mapping[str, Any]) -> InlineOptions:
    """The settings of a launcher, from a study file. UserError: an unknown name, with the nearest one, or a value that
    makes no sense."""
    options = OPTIONS[launcher]
    try:
        return options.model_validate(dict(settings))
    except ValidationError as error:
        problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        near = nearest(name, options.model_fields)
        hint = f"the nearest is '{near}'" if near else "it has none"
        hint += "; options of sbatch go into 'additional'" if launcher == "slurm" else ""
        raise UserError(f"launcher.{launcher}.{name}: no such setting; {hint}")
    if problem["type"] == "value_error":
        raise UserError(f"launcher.{launcher}.{problem['ctx']['error']}")
    raise UserError(f"launcher.{launcher}.{name}: {problem['msg']}, not {problem['input']!r}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The name that `name` was probably meant to be, or "" when there are none."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)), "")
