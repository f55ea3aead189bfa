"""env.json: on what a stage ran."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from realm_lab.core.launched import launched

# Those that can move a number or a format; read from metadata, never imported.
PACKAGES = (
    "realm_lab torch transformers tokenizers safetensors faiss-cpu numpy scipy pandas pyarrow pydantic ruamel.yaml "
    "submitit optuna mlflow dvc matplotlib bm25s pysbd"
).split()
REPOSITORY = Path(__file__).resolve().parents[2]


def describe(device: str = "cpu") -> dict[str, Any]:
    """Python, machine, package versions and the state of the source tree; what is unknown is null."""
    status = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": device,
        "processes": launched().size,  # that share the run, each with a device of its own
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": None if status is None else bool(status),
        "slurm_job_id": _slurm_job(),
    }


def _slurm_job() -> str | None:
    """As squeue names it: 123, or 123_4 for an element of an array."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # Not Linux: the next line knows less, but something.
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    """Output of git in the source tree; None without git, without a repository, or before the first commit."""
    try:
        done = subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
