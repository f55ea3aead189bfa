"""env.json: on what a stage ran. Nothing here imports the packages whose versions it records."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

from realm_lab.core.launched import cores, launched

PACKAGES = "realm_lab torch transformers tokenizers safetensors faiss-cpu numpy scipy".split()  # can move a number
# Settings of `launch` that change results by rounding only; recorded with each stage, and a confound where they differ.
ROUNDING = ("device", "ranks", "threads", "token_budget", "micro_batch", "compile")
REPOSITORY = Path(__file__).resolve().parents[2]


def describe(device: str = "cpu") -> dict[str, Any]:
    """Python, machine, package versions and the state of the source tree; what is unknown is null."""
    # Of what decides about numbers alone: stages rewrite reports/ and dvc.lock as they run.
    status = _git("status", "--porcelain", "--untracked-files=no", "--", "realm_lab", "experiments", "params.yaml")
    return {
        "python": platform.python_version(),
        "cpu": processor()[0],
        "cores": cores(),
        "device": device,
        "processes": launched().size,  # that share the run, each with a device of its own
        "packages": {name: found for name in PACKAGES if (found := version(name))},
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": None if status is None else bool(status),
    }


def version(package: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> tuple[str, set[str]]:
    """The processor's name, and its flags such as avx512_bf16 (none where the system does not list them)."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text(errors="replace").splitlines() if listed.exists() else []
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return values.get("model name") or platform.processor() or platform.machine(), set(values.get("flags", "").split())


def _git(*arguments: str) -> str | None:
    """Output of git in the source tree; None without git, without a repository, or before the first commit."""
    try:
        done = subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
