"""The settings of launchers, parts of a study's `launcher` section, and what becomes of SLURM's in sbatch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from shlex import quote
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
    """The settings of a launcher, from a study file.

    Raises:
        UserError: an unknown name, with the nearest one, or a value that makes no sense.
    """
    options = OPTIONS[launcher]
    try:
        return options.model_validate(dict(settings))
    except ValidationError as error:
        problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, options.model_fields, n=1, cutoff=0.0)
        hint = f"the nearest is '{near[0]}'" if near else "it has none"
        hint += "; options of sbatch go into 'additional'" if launcher == "slurm" else ""
        raise UserError(f"launcher.{launcher}.{name}: no such setting; {hint}")
    if problem["type"] == "value_error":
        raise UserError(f"launcher.{launcher}.{problem['ctx']['error']}")
    raise UserError(f"launcher.{launcher}.{name}: {problem['msg']}, not {problem['input']!r}")


def tasks_per_node(options: SlurmOptions, ranks: int) -> tuple[int, int]:
    """(nodes, processes on each) of a job of `ranks` processes; a single process is on one node."""
    if ranks == 1:
        return 1, 1
    if ranks % options.nodes:
        raise UserError(
            f"launcher.slurm.nodes: {ranks} processes (parameter 'launch.ranks') are not the same number on each of "
            f"{options.nodes} machines; choose nodes that divide them"
        )
    return options.nodes, ranks // options.nodes


def submitit_parameters(
    options: SlurmOptions, *, ranks: int, job_name: str, code: str, dependency: str | None
) -> dict[str, Any]:
    """The parameters of submitit's executor for jobs of `ranks` processes that use the frozen code in folder `code`."""
    nodes, tasks = tasks_per_node(options, ranks)
    return {
        "job_name": job_name,
        "nodes": nodes,
        "ntasks_per_node": tasks,
        "cpus_per_task": options.cpus_per_task,
        "time": options.timeout_min,
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint,
        "signal_delay_s": options.signal_delay_s,
        "array_parallelism": options.array_parallelism,
        "dependency": dependency,
        "wckey": None,  # submitit would send one of its own, which some clusters refuse
        "setup": [*environment_lines(options, code), *options.setup],
        # srun does not take --cpus-per-task from sbatch since SLURM 22.05.
        "srun_args": [f"--cpus-per-task={options.cpus_per_task}"],
        "additional_parameters": {
            "requeue" if options.requeue else "no-requeue": True,
            **{name.lstrip("-"): value for name, value in options.additional.items() if value is not False},
        },
        **({"gpus_per_node": options.gpus_per_node} if options.gpus_per_node else {}),
        **({"mem": f"{round(options.mem_gb * 1024)}MB"} if options.mem_gb else {}),
    }


def environment_lines(options: SlurmOptions, code: str) -> list[str]:
    """Shell lines: the frozen code comes first, threads fit the cores, and no launcher's variables are inherited.

    PYTHONSAFEPATH keeps `python -m` from looking into the folder of submission, where the code may have moved on.
    """
    return [
        f'export PYTHONPATH={quote(code)}"${{PYTHONPATH:+:$PYTHONPATH}}"',
        "export PYTHONSAFEPATH=1 TOKENIZERS_PARALLELISM=false",
        f"export OMP_NUM_THREADS={options.cpus_per_task}",
        "unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT",
    ]
