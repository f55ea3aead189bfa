"""How this process was started, alone or as one of several that share a run, and how it is stopped. No torch here."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from realm_lab.errors import UserError

SLURM_FIRST_PORT, SLURM_PORTS = 20_000, 20_000
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)  # the last as a warning of SLURM


class Place(NamedTuple):
    """This process among those of its run, and where they meet."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    address: str = "127.0.0.1"
    port: int = 0


def launched() -> Place:
    """What our own launcher says, else what `srun` says, else one process.

    SLURM_NTASKS is not asked: it is also set in a batch script, which is one process whatever it says.
    UserError: a variable of the launcher is missing or no number.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        size = _number("WORLD_SIZE")
        return Place(rank := _number("RANK"), size, rank, port=_number("MASTER_PORT")) if size > 1 else Place()
    if "SLURM_PROCID" in os.environ and "SLURM_STEP_NUM_TASKS" in os.environ:
        size = _number("SLURM_STEP_NUM_TASKS")
        if size == 1:
            return Place()
        nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "127.0.0.1")
        address = os.environ.get("MASTER_ADDR") or first_host(nodes)
        # The steps of one job may run side by side, each with a port of its own.
        number = _number("SLURM_JOB_ID") * 31 + _number("SLURM_STEP_ID") if "SLURM_STEP_ID" in os.environ else 0
        port = _number("MASTER_PORT") if "MASTER_PORT" in os.environ else SLURM_FIRST_PORT + number % SLURM_PORTS
        return Place(_number("SLURM_PROCID"), size, _number("SLURM_LOCALID"), address, port)
    return Place()


def exit_on_signals() -> None:
    """Outside of the training loop, which notes signals itself, one to stop ends the process at once: there is nothing
    to save."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, frame: sys.exit(128 + number))


def first_host(nodes: str) -> str:
    """The first name of a SLURM node list: `gpu[07-09,12]` is gpu07."""
    found = re.match(r"([^\[,]*)(?:\[(\d+)[^\]]*\])?([^,\[]*)", nodes)
    assert found is not None
    return "".join(part or "" for part in found.groups())


def _number(name: str) -> int:
    value = os.environ.get(name)
    if value is None or not value.isdecimal():
        said = "missing" if value is None else f"'{value}'"
        raise UserError(f"environment variable {name} is {said}, not a number; start with realm-lab or srun")
    return int(value)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus(device: str) -> list[str]:
    """The GPUs that jobs may be given, as CUDA_VISIBLE_DEVICES names them; none where `device` is cpu."""
    if device == "cpu":
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    if not Path("/dev/nvidiactl").exists():  # torch takes seconds to say the same
        return []
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
