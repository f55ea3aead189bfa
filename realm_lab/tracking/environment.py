"""env.json: on what a stage ran. Nothing here imports the packages whose versions it records."""

from __future__ import annotations

import getpass
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
CODE = (
    "--",
    "realm_lab",
    "experiments",
    "params.yaml",
)  # what decides about numbers; stages rewrite reports/, dvc.lock
LONGEST_PATCH = 1 << 20  # bytes


def describe(device: str = "cpu") -> dict[str, Any]:
    """Who runs it, Python, machine, package versions and the state of the source tree; what is unknown is null."""
    status = _git("status", "--porcelain", "--untracked-files=no", *CODE)
    return {
        "user": user(),
        "python": platform.python_version(),
        "cpu": processor()[0],
        "cores": cores(),
        "device": device,
        "processes": launched().size,  # that share the run, each with a device of its own
        "packages": {name: found for name in PACKAGES if (found := version(name))},
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": None if status is None else bool(status),
    }


def user() -> str | None:
    """The name of the user; None where neither the environment nor the system has one, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the second from Python 3.13 on
        return None


def changes() -> str | None:
    """What `git apply` adds to the commit to restore the code that runs; None where nothing has changed, and a line
    that says so where that is more than a mebibyte."""
    patch = _git("diff", "--binary", "HEAD", *CODE)
    if not patch:
        return None
    size = len(patch.encode())
    return f"{patch}\n" if size <= LONGEST_PATCH else f"# {size:,} bytes of changes, more than are kept\n"


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
        command = ["git", "-C", str(REPOSITORY), *arguments]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.removesuffix("\n") if done.returncode == 0 else None
