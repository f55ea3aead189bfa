"""env.json: on what a stage ran."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

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
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": None if status is None else bool(status),
    }


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
