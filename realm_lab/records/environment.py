"""env.json: the environment of a stage. Nothing here imports the packages whose versions it records."""

from __future__ import annotations

import functools
import getpass
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from realm_lab.records.files import read_json
from realm_lab.records.launched import cores, launched

# whose versions can change a result
PACKAGES = "realm_lab torch transformers tokenizers safetensors faiss-cpu numpy scipy bm25s PyStemmer regex".split()
LIMITS = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = "source.json"  # file with the result of `source` in a frozen copy of REPOSITORY
# files that can change a result; stages rewrite others, such as reports/ and dvc.lock
CODE = ("--", "realm_lab", "experiments", "params.yaml")
PLAIN = "--binary", "--no-ext-diff", "--no-color", "--src-prefix=a/", "--dst-prefix=b/"  # whatever the user's settings
OPENMP = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # how OpenMP's threads wait; changes no result
LONGEST_PATCH = 1 << 20  # bytes


def describe(device: str = "cpu") -> dict[str, Any]:
    """Return user, Python, machine, package versions, and the commit of the code with the patch of `source`; null if
    unknown."""
    code = source()
    return {
        "user": user(),
        "python": platform.python_version(),
        "cpu": processor()[0],
        "vectors": vectors(),
        "cores": cores(),
        "openmp": {name: os.environ[name] for name in OPENMP if name in os.environ},
        "device": device,
        "processes": launched().size,  # processes of the run, each with a separate device
        "packages": {name: found for name in PACKAGES if (found := version(name))},
        "git_commit": code["commit"],
        "git_dirty": None if code["commit"] is None else code["patch"] is not None,
        "patch": code["patch"],
    }


def user() -> str | None:
    """Return the user's name; None if neither the environment nor the system has one, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return None


def source() -> dict[str, str | None]:
    """Return the `commit` of the package's source tree, and the changes since then in the tracked files of CODE as a
    `patch`. Both are null if no Git repository tracks the package, and the patch if nothing has changed. A frozen copy
    of the package has them in a file. A patch above a mebibyte is replaced by one line with its size."""
    if (frozen := REPOSITORY / SOURCE).exists():
        return dict(read_json(frozen))
    if not _git("ls-files", "--", "realm_lab"):  # an installed package, perhaps inside the repository of a project
        return {"commit": None, "patch": None}
    commit, patch = _git("rev-parse", "HEAD"), _git("diff", *PLAIN, "HEAD", *CODE)
    if patch:
        size = len(patch.encode())
        patch = f"{patch}\n" if size <= LONGEST_PATCH else f"# {size:,} bytes of changes, more than are kept\n"
    return {"commit": commit, "patch": patch or None}


@functools.cache
def version(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> tuple[str, set[str]]:
    """Return the processor's name, and its flags such as avx512_bf16 (none if the system does not list them)."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text(errors="replace").splitlines() if listed.exists() else []
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return values.get("model name") or platform.processor() or platform.machine(), set(values.get("flags", "").split())


def vectors() -> str:
    """Return the vector instructions that torch uses, which decide how it rounds, and limits set in the environment;
    "" in a process without torch."""
    if (torch := sys.modules.get("torch")) is None:
        return ""
    limits = (f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ)
    return " ".join((torch.backends.cpu.get_cpu_capability(), *limits))


def bfloat16_units() -> list[str]:
    """Return the processor's instructions for products of bfloat16; without them, bfloat16 is slower than float32."""
    return sorted(processor()[1] & {"amx_bf16", "avx512_bf16", "bf16"})


def _git(*arguments: str) -> str | None:
    """Return output of git in the source tree; None without git, without a repository, or before the first commit."""
    try:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.removesuffix("\n") if done.returncode == 0 else None
