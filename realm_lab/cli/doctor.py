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
    """Look at this machine. `params` is None where params.yaml cannot be read, which `params_problem` then explains."""
    findings = [_python(), _processor(), _memory()]
    findings.extend(_torch())
    findings.append(_faiss())
    findings.append(_slurm())
    findings.append(_mlflow(params, root))
    findings.append(_dvc(root))
    findings.append(_git(root))
    findings.append(_disk(runs))
    if params is None:
        findings.append(Finding("missing", "parameters", params_problem, "mend params.yaml, or write it: make params"))
    else:
        findings.append(Finding("OK", "parameters", f"preset {params.preset}, seeds {params.seeds}"))
        findings.extend(_inputs(params, root))
    return findings


def show(findings: list[Finding], console: Console | None = None) -> None:
    """Print the findings as a table."""
    console = console or Console()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        said = Text(finding.found)
        if finding.remedy:
            said.append(f"\n-> {finding.remedy}", style="dim")
        table.add_row(Text(finding.state, style=STYLES[finding.state]), finding.subject, said)
    console.print(table)


def _python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}"
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return Finding("OK", "Python", found)
    return Finding("note", "Python", found, "3.11 to 3.13 is tested: make setup PYTHON=python3.11")


def _processor() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return Finding("OK", "processor", f"{cores} cores; bfloat16 support unknown (no /proc/cpuinfo)")
    native = sorted(flags & {"amx_bf16", "avx512_bf16", "bf16"})
    bfloat16 = f"bfloat16 in hardware ({', '.join(native)})" if native else "no bfloat16 in hardware"
    remedy = "" if native else "on the CPU, model.precision: float32 is the faster choice"
    return Finding("OK" if native else "note", "processor", f"{cores} cores; {bfloat16}", remedy)


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
    if torch.cuda.device_count():
        return
    if torch.version.cuda is None and shutil.which("nvidia-smi"):
        yield Finding(
            "note", "CUDA", "an NVIDIA driver, but PyTorch is built for the CPU", "install a CUDA build of torch"
        )
    else:
        yield Finding("note", "CUDA", "no device; training runs on the CPU")


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
    found = f"{faiss.__version__}, {build}"
    packages = [name for name in ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs") if _version(name)]
    if len(packages) > 1:
        remedy = (
            f"keep one: pip uninstall -y {packages[0]}; then pip install --force-reinstall --no-deps {packages[-1]}"
        )
        return Finding("note", "FAISS", f"{found}; {' and '.join(packages)} overwrite each other", remedy)
    return Finding("OK", "FAISS", found)


def _slurm() -> Finding:
    absent = [name for name in ("srun", "sbatch", "scontrol") if not shutil.which(name)]
    if len(absent) == 3:
        return Finding("note", "SLURM", "not installed; runs stay on this machine")
    if absent:
        return Finding("missing", "SLURM", f"not on PATH: {', '.join(absent)}", "install SLURM's client commands")
    remedy = "ask its administrator, or look at SLURM_CONF and the munge and slurmctld services"
    try:
        ping = subprocess.run(
            ["scontrol", "ping"], capture_output=True, text=True, timeout=SLURM_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("missing", "SLURM", f"no controller answers within {SLURM_TIMEOUT_SECONDS:.0f} s", remedy)
    except OSError as error:
        return Finding("missing", "SLURM", f"scontrol does not run ({error.strerror})", remedy)
    answer = " ".join((ping.stdout + ping.stderr).split())
    if ping.returncode == 0 and " UP" in answer:
        return Finding("OK", "SLURM", answer)
    return Finding("missing", "SLURM", f"no controller answers: {answer or f'exit code {ping.returncode}'}", remedy)


def _mlflow(params: Params | None, root: Path) -> Finding:
    version = _version("mlflow")
    if version is None:
        return Finding("missing", "MLflow", "not installed", "make setup")
    given = params.launch.tracking_uri if params else None
    if os.environ.get("MLFLOW_TRACKING_URI"):
        uri, source = os.environ["MLFLOW_TRACKING_URI"], "MLFLOW_TRACKING_URI"
    elif given:
        uri, source = given, "launch.tracking_uri"
    else:
        uri, source = f"sqlite:///{root.resolve() / 'mlflow.db'}", "default"
    from realm_lab.tracking.tracking_store import without_password

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
            "missing", "DVC", f"{version}, but {root.resolve()} is no DVC project", "go there, or give --root DIR"
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
    found = f"{free_gib:.1f} GiB free for {runs}"
    if not os.access(place, os.W_OK):
        return Finding("missing", "disk", f"{place} cannot be written", "give another folder: --runs DIR")
    if free_gib < LOW_DISK_GIB:
        return Finding("note", "disk", found, "checkpoints need room: free some, or give --runs DIR elsewhere")
    return Finding("OK", "disk", found)


def _inputs(params: Params, root: Path) -> Iterator[Finding]:
    """The files and folders that the parameters name."""
    for key, name in (
        ("model.checkpoint", params.model.checkpoint),
        ("tokenizer.checkpoint", params.tokenizer.checkpoint),
    ):
        if name is None:
            continue
        if (root / name).is_dir():
            yield Finding("OK", key, name)
        else:
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
            if (root / name).exists():
                yield Finding("OK", f"corpus.files.{key}", name)
            else:
                remedy = "put the file there, or name another in params.yaml"
                yield Finding("missing", f"corpus.files.{key}", f"{name}: no such file", remedy)
