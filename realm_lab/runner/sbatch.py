"""Options of sbatch that realm_lab has settings for, or sets itself. They may not be set a second time."""

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
# Options used to find the jobs of a study again, and options that make sbatch submit nothing or not answer.
OURS = {"dependency", "job-name", "output", "error", "open-mode", "wrap", "test-only", "parsable", "quiet", "wait"}
SHORT = {
    "p": "partition", "A": "account", "q": "qos", "C": "constraint", "N": "nodes", "c": "cpus-per-task", "t": "time",
    "a": "array", "n": "ntasks", "d": "dependency", "J": "job-name", "o": "output", "e": "error", "Q": "quiet",
    "W": "wait",
}  # fmt: skip


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
