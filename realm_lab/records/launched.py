"""This process: the launcher's settings, cores, GPUs, and signals that stop it. Only `visible_gpus` imports torch."""

from __future__ import annotations

import os
import re
import signal
import sys
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from realm_lab.errors import UserError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)  # SIGUSR2: SLURM's warning


class Launched(NamedTuple):
    """Rank of this process among the `size` processes of its run, and the address of the first process."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    address: str = "127.0.0.1"
    port: int = 0


def launched() -> Launched:
    """Read the settings of realm_lab's launcher or of `srun`; default: one process. SLURM_NTASKS is ignored, since it
    is also set in a batch script, which is always one process."""
    ours = "RANK" in os.environ
    rank, size = ("RANK", "WORLD_SIZE") if ours else ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    if int(os.environ.get(size, "1")) == 1:
        return Launched()
    if "MASTER_PORT" not in os.environ:
        problem = f"{size} is {os.environ[size]}, and MASTER_PORT is not set"
        raise UserError(problem, "start one task (srun --ntasks=1); the launcher slurm starts the ranks of a run")
    local_rank = int(os.environ[rank if ours else "SLURM_LOCALID"])
    where = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ["MASTER_PORT"])
    return Launched(int(os.environ[rank]), int(os.environ[size]), local_rank, *where)


def own_package() -> dict[str, str]:
    """Return environment variables that make `python -m realm_lab...` run the package of this process, even if the
    working folder holds another realm_lab."""
    root, given = Path(__file__).resolve().parents[2], os.environ.get("PYTHONPATH")
    roots = [] if root.name in ("site-packages", "dist-packages") else [str(root)]  # Python looks there anyway
    paths = [*roots, *([given] if given else [])]
    return {"PYTHONSAFEPATH": "1"} | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})


def slurm_job() -> str:
    """Return the SLURM job of this process in SLURM's notation: 17, or 17_3 in an array; "" outside of a job. (In an
    array, SLURM_JOB_ID may be the number of the whole array.)"""
    array, element = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{element}" if array and element else os.environ.get("SLURM_JOB_ID", "")


def exit_on_signals() -> None:
    """Make signals to stop end the process. The training loop handles signals itself; elsewhere there is nothing to
    save."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, frame: sys.exit(128 + number))


def cores() -> int:
    """Return the number of cores that this process may use: the least of its affinity, the quota of its control group
    and its allocation in SLURM."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = (_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")), _allocated())
    return max(1, min([affinity, *(int(limit) for limit in limits if limit is not None)]))


def _quota(listed: Path, mounted: Path) -> float | None:
    """Return the smallest number of cores that a control group of this process allows (versions 1 and 2); None: no
    limit. In a container, a group may be listed by its name on the host, but mounted as the root."""
    found = []
    for line in listed.read_text().splitlines() if listed.is_file() else ():
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for parent in (Path(name), *Path(name).parents):
            for root in (mounted / "unified", mounted) if not controllers else (mounted / controllers, mounted / "cpu"):
                folder = root / str(parent).lstrip("/")
                files = ["cpu.cfs_quota_us", "cpu.cfs_period_us"] if controllers else ["cpu.max"]
                if all((folder / file).is_file() for file in files):
                    quota, period = " ".join((folder / file).read_text() for file in files).split()
                    if quota not in ("max", "-1"):
                        found.append(int(quota) / int(period))
    return min(found, default=None)


def _allocated() -> int | None:
    """Return the number of cores that SLURM gave this process; None outside of a job. In a
    step of several tasks, each has the cores requested per task, by default one. Otherwise all cores of the job on this
    node count."""
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return int(os.environ.get("SLURM_CPUS_PER_TASK", "1"))
    found = os.environ.get("SLURM_CPUS_ON_NODE")
    return int(found) if found else None


def visible_gpus(device: str) -> list[str]:
    """Return the GPUs that jobs may be given, as in CUDA_VISIBLE_DEVICES; none if `device` is cpu."""
    if device == "cpu":
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        names = (name.strip() for name in named.split(","))
        return [*takewhile(re.compile(r"\d|GPU-|MIG-").match, names)]  # CUDA stops at others, such as -1 or NoDevFiles
    if not Path("/dev/nvidiactl").exists():  # importing torch to find this out takes seconds
        return []
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
