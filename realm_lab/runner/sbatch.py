"""Options of sbatch that realm_lab has settings for, or sets itself; nobody else may set them as well."""

from __future__ import annotations

from collections.abc import Iterable

from realm_lab.errors import nearest

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
# What finds the jobs of a study again, and the options with which sbatch submits nothing or does not answer.
OURS = {"dependency", "job-name", "output", "error", "open-mode", "wrap", "test-only", "parsable", "quiet", "wait"}
SHORT = {
    "p": "partition", "A": "account", "q": "qos", "C": "constraint", "N": "nodes", "c": "cpus-per-task", "t": "time",
    "a": "array", "n": "ntasks", "d": "dependency", "J": "job-name", "o": "output", "e": "error", "Q": "quiet",
    "W": "wait",
}  # fmt: skip


def instead_of(option: str) -> str:
    """What to do instead of giving this option to sbatch; "" if it may be given."""
    bare = option.lstrip("-").replace("_", "-")
    name = SHORT.get(bare, bare)
    if name in SETTINGS:
        return f"use the setting {SETTINGS[name]}"
    if name in RANKS:
        return "use launch.ranks in the study's set"
    return "leave it out: realm_lab sets it" if name in OURS else ""


def no_setting(key: str, settings: Iterable[str]) -> str:
    """What to write instead of a setting that there is not."""
    near = nearest(key, settings)
    guess = f"did you mean '{near}'?" if near else f"an option of sbatch goes under additional: {{{key}: ...}}"
    return instead_of(key) or guess
