"""Settings of launchers: in a study file, in a profile of your cluster, and on the command line.

Options of sbatch that realm_lab has settings for, or sets itself, may not be set a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from realm_lab.errors import UserError, nearest
from realm_lab.records.plugins import Choice, ChoiceField
from realm_lab.records.validation import validation_line
from realm_lab.records.yaml_file import parse_yaml

# option -> setting of launcher.slurm
SETTINGS = {
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "nodes": "nodes",
    "gpus-per-node": "gpus_per_node",
    "cpus-per-task": "cpus_per_task",
    "mem": "mem_gb",
    "time": "timeout_min",
    "signal": "signal_delay_s",
    "requeue": "requeue",
    "no-requeue": "requeue",
    "array": "array_parallelism",
}
RANKS = {"ntasks", "ntasks-per-node", "tasks-per-node"}  # as many as launch.ranks
# Options used to find the jobs of a study again, and options that make sbatch submit nothing or not answer.
OURS = {"dependency", "job-name", "output", "error", "open-mode", "wrap", "test-only", "parsable", "quiet", "wait"}
SHORT = {
    "p": "partition", "A": "account", "q": "qos", "C": "constraint", "N": "nodes", "c": "cpus-per-task", "t": "time",
    "a": "array", "n": "ntasks", "d": "dependency", "J": "job-name", "o": "output", "e": "error", "Q": "quiet",
    "W": "wait",
}  # fmt: skip


class Part(BaseModel):
    """A group of keys of a file: frozen; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class LocalOptions(Part):
    """Tasks in processes of this machine."""

    processes: Annotated[int, Field(ge=1)] | None = None
    """Number of tasks at a time; empty: `launch.processes`, else as many as there are cores or GPUs for them."""


class SlurmOptions(Part):
    """Resources of each job, and queue settings. Empty keys are left to the cluster."""

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
    """GPUs per node, one per process there."""
    cpus_per_task: Annotated[int, Field(ge=1)] = 1
    """Cores, and threads, of each process."""
    mem_gb: Annotated[float, Field(ge=0.001)] | None = None
    """Memory of a job on each machine."""
    timeout_min: Annotated[int, Field(ge=1)] = 240
    """Time limit of a job. A run that needs more goes on in the same job, queued again."""
    signal_delay_s: Annotated[int, Field(ge=1)] = 120
    """Time before the limit at which a job is asked to stop; it then finishes a step and writes a checkpoint."""
    requeue: bool = True
    """Requeue a job that is asked to stop. If a cluster never requeues: false, and run `sweep` again, which
    `--follow` does."""
    array_parallelism: Annotated[int, Field(ge=1)] = 64
    """Jobs of the study that run at once."""
    setup: list[str] = []
    """Shell lines before a job starts, such as `module load cuda`."""
    python: str | None = None
    """Command that starts Python in a job, such as one inside a container; empty: the interpreter of `sweep`."""
    additional: dict[str, str | int | float | bool] = {}
    """Any other option of sbatch, without its dashes: `{reservation: mine, exclusive: true}`."""

    @model_validator(mode="after")
    def _consistent(self) -> SlurmOptions:
        if self.signal_delay_s >= 60 * self.timeout_min:
            raise ValueError(f"timeout_min: {self.timeout_min} is over before signal_delay_s ({self.signal_delay_s})")
        for option in self.additional:
            if instead := instead_of(option):
                raise ValueError(f"additional: '{option}': {instead}")
        return self


class LauncherSettings(Part):
    default: ChoiceField = Choice("local")
    """The launcher that is used unless the command line names another: `inline`, `local`, `slurm`, one of a plug-in or
    `package.module:Class`, with options as `{name: NAME, OPTION: VALUE}`."""
    local: LocalOptions = LocalOptions()
    """Settings for processes of this machine."""
    slurm: SlurmOptions = SlurmOptions()
    """Settings for SLURM jobs."""


def on_cluster(
    settings: LauncherSettings, root: Path, profile: str | None, given: Mapping[str, Any]
) -> LauncherSettings:
    """Override a study's settings by a profile, and both by the `given` ones. A profile is a file, or a name in
    ROOT/profiles or ~/.config/realm_lab. UserError: no such file, or no such setting."""
    values, where = settings.slurm.model_dump(exclude_unset=True), "--slurm"
    if profile is not None:
        folders = (Path(root) / "profiles", Path.home() / ".config" / "realm_lab")
        places = [Path(profile), *(folder / f"{profile}.yaml" for folder in folders)]
        path = next((place for place in places if place.suffix == ".yaml" and place.is_file()), None)
        if path is None:
            remedy = f"write {places[1]} with lines such as `partition: gpu`"
            raise UserError("no such file", remedy, path=f"--profile {profile}")
        where = f"{path} or --slurm" if given else str(path)
        found = parse_yaml(path.read_text(encoding="utf-8"), path) or {}
        if not isinstance(found, dict):
            raise UserError("no settings", "write lines such as `partition: gpu`", path=path)
        values |= found
    try:
        slurm = SlurmOptions(**(values | dict(given)))
    except ValidationError as error:
        problem = error.errors()[0]
        keys = ", ".join(SlurmOptions.model_fields)
        if problem["type"] == "extra_forbidden":
            key = str(problem["loc"][0])
            remedy = f"{no_setting(key, SlurmOptions.model_fields)}; the settings are {keys}"
            raise UserError(f"{key}: no such setting", remedy, path=where) from None
        raise UserError(validation_line(error), path=where) from None
    return settings.model_copy(update={"slurm": slurm})


def instead_of(option: str) -> str:
    """Return the setting to use instead of this option of sbatch; "" if the option may be used."""
    bare = option.lstrip("-").replace("_", "-")
    name = SHORT.get(bare, bare)
    if name in SETTINGS:
        return f"use the setting {SETTINGS[name]}"
    if name in RANKS:
        return "use launch.ranks in the study's set"
    return "leave it out: realm_lab sets it" if name in OURS else ""


def no_setting(key: str, settings: Iterable[str]) -> str:
    """Return the setting to write instead of an unknown one."""
    near = nearest(key, settings)
    guess = f"did you mean '{near}'?" if near else f"an option of sbatch goes under additional: {{{key}: ...}}"
    return instead_of(key) or guess
