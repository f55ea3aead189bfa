"""`realm-lab doctor`: check this machine, and print a remedy for everything that is missing."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import psutil
from rich.console import Console
from rich.markup import escape

import realm_lab
from realm_lab.engine.core.hub import is_dataset
from realm_lab.engine.params.parameters import Params
from realm_lab.errors import UserError, install_line
from realm_lab.lab.slurm_queue import ASK_FOR_IT
from realm_lab.records.digests import CHANGING, DIGESTS, differences, made_as_one, read_digests
from realm_lab.records.environment import bfloat16_units
from realm_lab.records.launched import cores
from realm_lab.records.tracking_store import default_uri, without_password

if TYPE_CHECKING:
    from realm_lab.engine.evaluation.gate import Gate

GIB = 2**30
BUSY_SECONDS, BUSY_CORES = 0.5, 0.3
LOW_DISK_GIB = 5.0  # a toy study needs well under one, a real one several
LOW_MEMORY_GIB = 4.0  # the toy world with two workers stays below
SLURM_TIMEOUT_SECONDS = 10.0  # scontrol retries for minutes when no controller is there
# name -> module, its distributions, the only feature that needs it, and the extra that brings it
PACKAGES = {
    "PyTorch": ("torch", ["torch"], "training and evaluation", "engine"),
    "FAISS": ("faiss", ["faiss-cpu", "faiss-gpu"], "approximate search", "faiss"),
    "MLflow": ("mlflow", ["mlflow"], "`realm-lab mirror`", "platform"),
    "DVC": ("dvc", ["dvc"], "`dvc repro` and `realm-lab init`", "platform"),
    "Optuna": ("optuna", ["optuna"], "searches", "platform"),
    "submitit": ("submitit", ["submitit"], "the launcher slurm", "platform"),
}
FILES = {"knowledge", "knowledge_updated", "pretrain", "questions_train", "questions_dev", "questions_test"}
State = Literal["OK", "note", "missing", "wrong"]
STYLES = {"OK": "green", "note": "yellow", "missing": "red", "wrong": "red"}


class Diagnosis(NamedTuple):
    """One line of the result. State `missing`: something required is absent or unusable; `wrong`: it has a fault."""

    state: State
    subject: str
    found: str
    remedy: str = ""


def examine(params: Params | None, root: Path, fault: UserError | None = None) -> Iterator[Diagnosis]:
    """Check this machine and the parameters, a diagnosis at a time. `params`: None if they cannot be
    read; `fault` is then the error."""
    yield _python()
    yield from _packages()
    yield from _devices()
    yield from (_others(), _memory(), _disk(root), _slurm(), _store(params, root))
    if params is None:
        for one in (fault, *fault.others) if fault else ():
            state: State = "missing" if isinstance(one.path, Path) and not one.path.exists() else "wrong"
            yield Diagnosis(state, "parameters", " ".join(str(one).split()), "correct what the line above names")
        return
    yield Diagnosis("OK", "parameters", f"preset {params.preset}, seeds {params.seeds}")
    yield from _inputs(params, root)


def examine_study(
    path: Path, root: Path, params_path: Path | None, overrides: Mapping[str, Any]
) -> Iterator[Diagnosis]:
    """Check that a study can be planned, and the files and folders that its cells name."""
    from realm_lab.lab.plan import plan_study

    try:
        plan = plan_study(path, root, params_path=params_path, overrides=overrides)
    except UserError as error:
        for one in (error, *error.others):
            yield Diagnosis("wrong", f"study {path.stem}", one.fault, one.remedy)
        return
    what = "its trials" if plan.search else f"{len(plan.runs)} runs of {len(plan.cells)} variants"
    yield Diagnosis("OK", f"study {plan.name}", f"{what} can be planned")
    yield from dict.fromkeys(found for run in plan.runs for found in _inputs(run.params, root))


def with_gate(gate: Gate) -> list[Diagnosis]:
    """Return the measurements of the gate (`doctor --corpus`), and each reason why pre-training will not learn."""
    from realm_lab.engine.evaluation.gate import LEAST_NATS, LEAST_SHARE

    about = f"{gate.with_answer} of {gate.spans} spans have one among the first passages"
    nats = {
        "answer, over no passage": gate.over_none,
        "answer, over the best without": gate.over_best,
    }
    found = [
        Diagnosis(
            "OK" if one.mean >= LEAST_NATS else "wrong", name, f"{one.mean:+.1f} ± {one.error:.1f} nats ({about})"
        )
        for name, one in nats.items()
    ]
    share = gate.among_candidates
    text = f"{share.mean:.2f} ± {share.error:.2f} of the spans, with {gate.candidates} passages"
    found.append(Diagnosis("OK" if share.mean >= LEAST_SHARE else "wrong", "answer among the candidates", text))
    if gate.only_by_reading:
        found = [one._replace(state="note") for one in found]  # no passage has the words of an answer
    if gate.support:
        spans, with_words, best, pairs, share = gate.support
        text = (
            f"{best.mean:+.1f} ± {best.error:.1f} nats, preferred in {pairs.mean:.2f} ± {pairs.error:.2f} of the pairs"
        )
        remedy = (
            "pre-training can learn which passages hold the words, no more; compare with pretrain.reward: containment"
        )
        is_preferred = gate.support.prefers_support
        about = f"{text} ({spans} spans, {with_words} of them with passages that hold the words)"
        found.append(
            Diagnosis(
                "OK" if is_preferred else "note", "support, over the best other", about, "" if is_preferred else remedy
            )
        )
        text = f"{share.mean:.2f} ± {share.error:.2f} of the spans, with {gate.candidates} passages"
        found.append(Diagnosis("OK" if share.mean >= LEAST_SHARE else "note", "support among the candidates", text))
    return found + [Diagnosis("wrong", "pre-training will not learn", *one.split("; ", 1)) for one in gate.problems]


def verify(root: Path) -> list[Diagnosis]:
    """Compare every finished file with its digest. Returns a diagnosis for each file that differs, one with the counts,
    and one that names the files without a digest."""
    found, folders = list[Diagnosis](), 0
    known, damaged = set[Path](), 0
    for path in _files(root, DIGESTS):
        folder, folders = path.parent, folders + 1
        known.add(path)
        try:
            differing = dict(differences(folder, whole=True))
            known |= {*(folder / name for name in read_digests(folder)[1])}
        except UserError as error:
            damaged += 1
            found.append(Diagnosis("wrong", "finished file", error.fault, error.remedy))
            continue
        damaged += len(differing)
        for file, differs in differing.items():
            remedy = f"delete {made_as_one(folder)} and run again"
            found.append(Diagnosis("wrong", "finished file", f"{file}: {differs}", remedy))
    whole = f"{len(known) - damaged:,} of {len(known):,} files in {folders:,} folders are as they were written"
    found.append(Diagnosis("wrong" if found else "OK", "finished files", whole))
    others = Counter(_kind(path) for path in _files(root, "*") if path not in known)
    if others:
        listed = ", ".join(f"{kind} ({count})" if count > 1 else kind for kind, count in sorted(others.items()))
        found.append(Diagnosis("note", "files without a digest", f"{sum(others.values()):,}: {listed}"))
    return found


def _files(root: Path, pattern: str) -> Iterator[Path]:
    """Yield the files of the folders that realm_lab writes, at any depth."""
    for folder in ("runs", "models", "data/prepared"):
        yield from (path for path in sorted((root / folder).rglob(pattern)) if path.is_file())


def _kind(path: Path) -> str:
    """Return the name of a file, with the name of its folder for files in checkpoints, indexes and leases."""
    return f"{path.parent.name}/{path.name}" if path.parent.name in CHANGING else path.name


def show(diagnosis: Diagnosis) -> None:
    """Print a diagnosis on a line, its remedy below."""
    console = Console(soft_wrap=True)
    state = f"[{STYLES[diagnosis.state]}]{diagnosis.state:<8}[/]"
    console.print(f"{state}{diagnosis.subject:<31}{escape(diagnosis.found)}", highlight=False)
    if diagnosis.remedy:
        console.print(f"{'':<8}-> {diagnosis.remedy}", style="dim", markup=False)


def _python() -> Diagnosis:
    found = f"{platform.python_version()} at {sys.executable}"
    if (3, 11) <= sys.version_info[:2] < (3, 15):
        return Diagnosis("OK", "Python", found)
    return Diagnosis("note", "Python", found, "made for 3.11 to 3.14: make setup PYTHON=python3.11")


def _packages() -> Iterator[Diagnosis]:
    for name, (module, distributions, only_for, extra) in PACKAGES.items():
        versions = [version for package in distributions for version in _versions(package)]
        if not versions:
            yield Diagnosis("note", name, f"not installed; only needed by {only_for}", install_line(extra))
            continue
        try:
            if module in ("torch", "faiss"):  # they load shared libraries, which may be missing
                importlib.import_module(module)
            yield Diagnosis("OK", name, versions[0])
        except (ImportError, OSError) as error:
            yield Diagnosis("missing", name, " ".join(str(error).split()), "make setup")
    if lacking := _plugins_not_installed(Path(__file__).parents[2] / "pyproject.toml"):
        yield Diagnosis("missing", "plug-ins", f"{', '.join(lacking)}: newer than the installation", "make setup")
    if _versions("dvc") and not shutil.which("dvc"):
        yield Diagnosis("missing", "dvc", "not on PATH", "source .venv/bin/activate")
    if not shutil.which("git"):
        yield Diagnosis("missing", "git", "not on PATH", "install git: runs record their commit")


def _plugins_not_installed(pyproject: Path) -> list[str]:
    """Return the plug-ins of a checkout's pyproject.toml that are not installed, since the checkout is newer."""
    written = tomllib.loads(pyproject.read_text())["project"] if pyproject.exists() else {}
    if written.get("name") != realm_lab.__name__:
        return []
    lacking = []
    for group, entries in written["entry-points"].items():
        installed = {(one.name, one.value) for one in importlib.metadata.entry_points(group=group)}
        lacking += [name for name, code in entries.items() if (name, code) not in installed]
    return lacking


def _versions(package: str) -> list[str]:
    """Return the version of an installed distribution; [] if it is not installed."""
    try:
        return [importlib.metadata.version(package)]
    except importlib.metadata.PackageNotFoundError:
        return []


def _devices() -> Iterator[Diagnosis]:
    native = bfloat16_units()
    remedy = "" if native else "on the CPU, model.precision: float32 is the faster choice"
    bfloat16 = f"bfloat16 in hardware ({', '.join(native)})" if native else "no bfloat16 in hardware"
    yield Diagnosis("OK" if native else "note", "processor", f"{cores()} cores; {bfloat16}", remedy)
    try:
        import torch
    except (ImportError, OSError):
        return
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        yield Diagnosis("OK", f"cuda:{number}", f"{device.name}, {device.total_memory / GIB:.0f} GiB")
    if not torch.cuda.device_count():
        wrong_build = torch.version.cuda is None and shutil.which("nvidia-smi")
        remedy = "an NVIDIA driver is here, PyTorch is built for the CPU: install a CUDA build" if wrong_build else ""
        yield Diagnosis("note", "CUDA", "no device; training runs on the CPU", remedy)


def _others() -> Diagnosis:
    """Measure how many cores other programs, and other virtual machines of the host, use while this process sleeps."""
    times, count = psutil.cpu_times_percent(BUSY_SECONDS), psutil.cpu_count() or 1
    stolen = getattr(times, "steal", 0.0) * count / 100
    taken = (100 - times.idle - getattr(times, "iowait", 0.0)) * count / 100 - stolen
    found = f"other programs use {taken:.1f} of {count} cores" + f", the host takes {stolen:.1f}" * (stolen >= 0.05)
    if taken + stolen < BUSY_CORES:
        return Diagnosis("OK", "load", found)
    return Diagnosis("note", "load", found, "runs take longer; stop other programs, or set launch.threads lower")


def _memory() -> Diagnosis:
    memory = psutil.virtual_memory()
    found = f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f} GiB"
    is_low = memory.available / GIB < LOW_MEMORY_GIB
    remedy = "launch.processes: 1 runs one worker at a time" if is_low else ""
    return Diagnosis("note" if is_low else "OK", "memory", found, remedy)


def _disk(root: Path) -> Diagnosis:
    free_gib = shutil.disk_usage(root).free / GIB
    if not os.access(root, os.W_OK):
        return Diagnosis("missing", "disk", f"{root.resolve()} cannot be written", "give another folder: --root DIR")
    remedy = "checkpoints need space: free some, or work in another folder" if free_gib < LOW_DISK_GIB else ""
    return Diagnosis("note" if remedy else "OK", "disk", f"{free_gib:.1f} GiB free for {root.resolve()}", remedy)


def _slurm() -> Diagnosis:
    if not shutil.which("scontrol"):
        return Diagnosis("note", "SLURM", "not installed; runs stay on this machine")
    try:
        command = ["scontrol", "ping"]
        ping = subprocess.run(command, capture_output=True, text=True, timeout=SLURM_TIMEOUT_SECONDS, check=False)
        is_up = ping.returncode == 0 and " UP" in ping.stdout
        why = ["", *ping.stderr.splitlines()][-1]  # the last line has the reason
        answer = " ".join((ping.stdout or why).split())
    except (subprocess.TimeoutExpired, OSError) as error:
        answer, is_up = str(error), False
    if is_up:
        return Diagnosis("OK", "SLURM", answer)
    return Diagnosis("note", "SLURM", f"no controller answers: {answer}", ASK_FOR_IT)


def _store(params: Params | None, root: Path) -> Diagnosis:
    uri = os.environ.get("MLFLOW_TRACKING_URI") or (params and params.launch.tracking_uri)
    return Diagnosis("OK", "tracking store", without_password(uri or default_uri(root / "runs")))


def _inputs(params: Params, root: Path) -> Iterator[Diagnosis]:
    """Check the files and folders that the parameters name."""
    named = [("model.checkpoint", params.model.checkpoint), ("tokenizer.checkpoint", params.tokenizer.checkpoint)]
    named.append(("pretrain.causal_checkpoint", params.pretrain.causal_checkpoint))
    if params.corpus.source.name != "files":
        yield Diagnosis("OK", "corpus", f"source {params.corpus.source.name}; no file is needed")
    else:
        files = params.corpus.files.model_dump(include=FILES)
        if not params.corpus.files.knowledge:
            yield Diagnosis("missing", "corpus.files.knowledge", "no file of passages is named", "name at least one")
        named += [(f"corpus.files.{key}", name) for key, names in files.items() for name in names]
    for key, name in named:
        if name is not None and is_dataset(name):
            yield Diagnosis("OK", key, f"{name}, a data set of the Hub, fetched once")
        elif name is not None and (root / name).exists():
            yield _folder(key, name, root / name, params)
        elif name is not None:
            remedy = "put it there (docs/real_text.md has sources), or name another in params.yaml or with --set"
            yield Diagnosis("missing", key, f"{name}: no such file or folder", remedy)


def _folder(key: str, name: str, path: Path, params: Params) -> Diagnosis:
    """Return the diagnosis of a file or folder that exists; a checkpoint must be usable."""
    from realm_lab.engine.corpus.vocabulary import load_tokenizer
    from realm_lab.engine.params.checkpoint import check_checkpoint, check_positions
    from realm_lab.engine.params.frozen import causal

    lengths = params.corpus.passage_length, params.corpus.sentence_length
    try:
        if key == "model.checkpoint":
            check_checkpoint(path)
            check_positions(path, *lengths)
        elif key == "tokenizer.checkpoint":
            load_tokenizer(path)
        elif key == "pretrain.causal_checkpoint":
            model = causal().load()
            model.check(path)
            model.check_positions(path, *lengths)
    except UserError as error:
        return Diagnosis("wrong", key, error.fault, error.remedy)
    return Diagnosis("OK", key, name)
