"""`realm-lab doctor`: what this machine can do, and the remedy for what it cannot."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text

from realm_lab.core.launched import cores
from realm_lab.params.parameters import Params

GIB = 2**30
LOW_DISK_GIB = 5.0  # a toy study needs well under one, a real one several
LOW_MEMORY_GIB = 4.0  # the toy world with two workers stays below
SLURM_TIMEOUT_SECONDS = 10.0  # scontrol retries for minutes when no controller is there
STYLES = {"OK": "green", "note": "yellow", "missing": "red"}


class Finding(NamedTuple):
    """One line of the answer. `missing` is what the parameters ask for and the machine lacks."""

    state: Literal["OK", "note", "missing"]
    subject: str
    found: str
    remedy: str = ""


def examine(params: Params | None, root: Path, runs: Path, params_problem: str = "") -> list[Finding]:
    """Look at this machine. `params` is None where they cannot be read, which `params_problem` then explains."""
    found = [_python(), _processor(), _memory(), *_torch(), _faiss(), _slurm()]
    found += [_mlflow(params, root), _dvc(root), _git(root), _disk(runs)]
    if params is None:
        return [*found, Finding("missing", "parameters", params_problem, "correct what the line above names")]
    return [
        *found,
        Finding("OK", "parameters", f"preset {params.preset}, seeds {params.seeds}"),
        *_inputs(params, root),
    ]


def show(findings: list[Finding], console: Console | None = None) -> None:
    """Print the findings as a table."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        text = Text(finding.found)
        if finding.remedy:
            text.append(f"\n-> {finding.remedy}", style="dim")
        table.add_row(Text(finding.state, style=STYLES[finding.state]), finding.subject, text)
    (console or Console()).print(table)


def _python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}"
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return Finding("OK", "Python", found)
    return Finding("note", "Python", found, "tested with 3.11 to 3.13: make setup PYTHON=python3.11")


def _processor() -> Finding:
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return Finding("OK", "processor", f"{cores()} cores; bfloat16 support unknown (no /proc/cpuinfo)")
    native = sorted(flags & {"amx_bf16", "avx512_bf16", "bf16"})
    if native:
        return Finding("OK", "processor", f"{cores()} cores; bfloat16 in hardware ({', '.join(native)})")
    remedy = "on the CPU, model.precision: float32 is the faster choice"
    return Finding("note", "processor", f"{cores()} cores; no bfloat16 in hardware", remedy)


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    found = f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f} GiB"
    if memory.available / GIB >= LOW_MEMORY_GIB:
        return Finding("OK", "memory", found)
    return Finding("note", "memory", found, "launch.processes: 1 keeps to one worker")


def _import(name: str) -> ModuleType | str:
    """The module, or in one line why it cannot be imported."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # OSError: a shared library that does not load
        return f"cannot be imported ({' '.join(str(error).split())})"


def _torch() -> Iterator[Finding]:
    torch = _import("torch")
    if isinstance(torch, str):
        yield Finding("missing", "PyTorch", torch, "make setup")
        return
    yield Finding("OK", "PyTorch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        bfloat16 = "bfloat16" if torch.cuda.is_bf16_supported() else "no bfloat16"
        yield Finding("OK", f"cuda:{number}", f"{device.name}, {device.total_memory / GIB:.0f} GiB, {bfloat16}")
    if torch.cuda.device_count() == 0:
        is_cpu_build = torch.version.cuda is None and shutil.which("nvidia-smi")
        remedy = "an NVIDIA driver is here, PyTorch is built for the CPU: install a CUDA build" if is_cpu_build else ""
        yield Finding("note", "CUDA", "no device; training runs on the CPU", remedy)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _faiss() -> Finding:
    faiss = _import("faiss")
    if isinstance(faiss, str):
        return Finding("missing", "FAISS", faiss, "make setup")
    build = f"GPU build, {faiss.get_num_gpus()} devices" if hasattr(faiss, "StandardGpuResources") else "CPU build"
    packages = [name for name in ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs") if _version(name)]
    if len(packages) > 1:
        found = f"{faiss.__version__}, {build}; {' and '.join(packages)} overwrite each other"
        one = f"pip uninstall -y {packages[0]}; then pip install --force-reinstall --no-deps {packages[-1]}"
        return Finding("note", "FAISS", found, f"keep one: {one}")
    return Finding("OK", "FAISS", f"{faiss.__version__}, {build}")


def _slurm() -> Finding:
    absent = [name for name in ("srun", "sbatch", "scontrol") if not shutil.which(name)]
    if len(absent) == 3:
        return Finding("note", "SLURM", "not installed; runs stay on this machine")
    if absent:
        return Finding("note", "SLURM", f"not on PATH: {', '.join(absent)}", "install SLURM's client commands")
    try:
        command = ["scontrol", "ping"]
        ping = subprocess.run(command, capture_output=True, text=True, timeout=SLURM_TIMEOUT_SECONDS, check=False)
        answer = " ".join((ping.stdout + ping.stderr).split())
        if ping.returncode == 0 and " UP" in answer:
            return Finding("OK", "SLURM", answer)
        found = f"no controller answers: {answer or f'exit code {ping.returncode}'}"
    except subprocess.TimeoutExpired:
        found = f"no controller answers within {SLURM_TIMEOUT_SECONDS:.0f} s"
    except OSError as error:
        found = f"scontrol does not run ({error.strerror})"
    remedy = "ask its administrator, or look at SLURM_CONF and the munge and slurmctld services"
    return Finding("note", "SLURM", found, remedy)


def _mlflow(params: Params | None, root: Path) -> Finding:
    version = _version("mlflow")
    if version is None:
        return Finding("missing", "MLflow", "not installed", "make setup")
    from realm_lab.tracking.tracking_store import default_uri, without_password

    uri, source = default_uri(root / "runs"), "default"
    if params and params.launch.tracking_uri:
        uri, source = params.launch.tracking_uri, "launch.tracking_uri"
    if os.environ.get("MLFLOW_TRACKING_URI"):
        uri, source = os.environ["MLFLOW_TRACKING_URI"], "MLFLOW_TRACKING_URI"
    return Finding("OK", "MLflow", f"{version}, tracking to {without_password(uri)} ({source})")


def _dvc(root: Path) -> Finding:
    version = _version("dvc")
    if version is None:
        return Finding("missing", "DVC", "not installed", "make setup")
    if not shutil.which("dvc"):
        remedy = "activate the environment: source .venv/bin/activate"
        return Finding("missing", "DVC", f"{version}, but `dvc` is not on PATH", remedy)
    if not (root / ".dvc").is_dir():
        return Finding(
            "note", "DVC", f"{version}, but {root.resolve()} is no DVC project", "go there, or give --root DIR"
        )
    return Finding("OK", "DVC", version)


def _git(root: Path) -> Finding:
    if not shutil.which("git"):
        return Finding("missing", "git", "not installed", "install git: DVC needs it, and runs record their commit")
    describe = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(describe, capture_output=True, text=True, check=False)
    if done.returncode:
        return Finding("note", "git", "no commit here; runs will record none", "work in a clone, or commit")
    commit, _, dirty = done.stdout.strip().partition("-")
    if dirty:
        return Finding("note", "git", f"commit {commit}, with changes not committed", "runs will be marked as dirty")
    return Finding("OK", "git", f"commit {commit}")


def _disk(runs: Path) -> Finding:
    place = runs.resolve()
    while not place.exists():
        place = place.parent
    free_gib = shutil.disk_usage(place).free / GIB
    if not os.access(place, os.W_OK):
        return Finding("missing", "disk", f"{place} cannot be written", "give another folder: --runs DIR")
    remedy = "checkpoints need space: free some, or give --runs DIR elsewhere" if free_gib < LOW_DISK_GIB else ""
    return Finding("note" if remedy else "OK", "disk", f"{free_gib:.1f} GiB free for {runs}", remedy)


def _inputs(params: Params, root: Path) -> Iterator[Finding]:
    """The files and folders that the parameters name."""
    named = {"model.checkpoint": params.model.checkpoint, "tokenizer.checkpoint": params.tokenizer.checkpoint}
    for key, name in named.items():
        if name is not None and (root / name).is_dir():
            yield Finding("OK", key, name)
        elif name is not None:
            remedy = f"put a Hugging Face folder there, or name another: --set {key}=FOLDER"
            yield Finding("missing", key, f"{name}: no such folder", remedy)
    if params.corpus.source == "toy":
        yield Finding("OK", "corpus", "the toy world; no file is needed")
        return
    files = params.corpus.files.model_dump()
    if not files["knowledge"]:
        yield Finding("missing", "corpus.files.knowledge", "no file is named", "name your passages in params.yaml")
    for key, names in files.items():
        for name in names if isinstance(names, list) else []:
            if key.startswith(("knowledge", "pretrain", "questions")) and not name.startswith("hf://"):
                is_there = (root / name).exists()
                remedy = "" if is_there else "put the file there, or name another in params.yaml"
                found = name if is_there else f"{name}: no such file"
                yield Finding("OK" if is_there else "missing", f"corpus.files.{key}", found, remedy)
