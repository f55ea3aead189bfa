"""`realm-lab doctor --gpu`: check that a GPU does what realm_lab needs; the output is a report for an issue.

A smoke model is trained on the toy world for a few steps: on the CPU, on the device, and on the device twice more, once
uninterrupted and once with a stop and a resume.
"""

# Shapes: N rows of an index, B queries, D embedding size

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist

from realm_lab.engine.core.device import device_name, memory_bytes, seconds_of
from realm_lab.engine.core.process import autocast, pick_device
from realm_lab.engine.params.load import load
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval.exact import ExactSearch
from realm_lab.engine.retrieval.refresh_policies import Interval, Progress
from realm_lab.engine.systems.identity import open_stage, plan_run
from realm_lab.errors import UserError
from realm_lab.lab.worker import run_stage

SHORT = {
    "preset": "smoke",
    "warm_start.reader.steps": 5,
    "warm_start.embedder.steps": 5,
    "pretrain.steps": 12,
    "evaluate.interval_steps": 12,
    "evaluate.cloze_sentences": 8,
    "evaluate.questions": 8,
    "launch.log_interval_steps": 1,
}
STOPPED_AFTER = 5
SEARCHED_ROWS, QUERIES, DIMENSION, COUNT = 100_000, 64, 128, 20
PRODUCT_SIZE = 1024
BFLOAT16_ERROR = 2.0**-7  # most relative error of a product: factors and results are rounded to 8 bits, sums are not
SAME = 1e-3  # relative difference of losses between two devices, after a few steps
GIB = 2**30
Said = tuple[bool | None, str]  # passed or not (None: for information), and the finding


def gpu_device(params: Params) -> torch.device:
    """Return the device to check. UserError: there is none."""
    device = pick_device(params.launch.device)
    if device.type == "cpu":
        raise UserError(f"no GPU: torch {torch.__version__} sees none here; `realm-lab doctor` checks the rest")
    return device


def checks(params: Params, device: torch.device) -> Iterator[tuple[str, bool | None, str]]:
    """Yield the subject of each check, whether it passed, and its finding; a check that raises has failed."""
    with tempfile.TemporaryDirectory() as folder:
        training = _Training(Path(folder), params.launch.device)
        tried: dict[str, Callable[[], Said]] = {
            "device": lambda: _device(device),
            "bfloat16": lambda: _bfloat16(device),
            "search": lambda: _search(device),
            "FAISS": _faiss,
            "exchange": lambda: _exchange(device),
            "training": training.equals_the_cpu,
            "resume": training.resumes,
        }
        for subject, check in tried.items():
            started = time.perf_counter()
            try:
                right, found = check()
            except Exception as error:  # any error is a finding
                right, found = False, f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
            yield subject, right, f"{found} ({time.perf_counter() - started:.1f} s)"


def _device(device: torch.device) -> Said:
    name, versions = device_name(device), f"torch {torch.__version__}, CUDA {torch.version.cuda}"
    driver = "no nvidia-smi"
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = f"driver {subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()[:1]}"
    return True, f"{device}: {name}, {memory_bytes(device) / GIB:.0f} GiB; {versions}, {driver}"


def _bfloat16(device: torch.device) -> Said:
    left, right = (torch.randn(PRODUCT_SIZE, PRODUCT_SIZE, generator=torch.Generator().manual_seed(n)) for n in (0, 1))
    exact = left.double() @ right.double()
    here, there = left.to(device), right.to(device)
    seconds, errors = {}, {}
    for precision in ("float32", "bfloat16"):
        with autocast(device, precision):
            product = here @ there
            seconds[precision] = min(seconds_of(lambda: here @ there, device) for _ in range(3))
        errors[precision] = float((product.cpu().double() - exact).norm() / exact.norm())
    rate = 2e-12 * PRODUCT_SIZE**3
    speeds = ", ".join(f"{name} {rate / taken:.3g} TFLOP/s" for name, taken in seconds.items())
    return errors["bfloat16"] < BFLOAT16_ERROR, f"relative error {errors['bfloat16']:.1e} of a product; {speeds}"


def _search(device: torch.device) -> Said:
    generator = torch.Generator().manual_seed(0)
    rows_ND, query_BD = (torch.randn(n, DIMENSION, generator=generator) for n in (SEARCHED_ROWS, QUERIES))
    here, there = ExactSearch(rows_ND), ExactSearch(rows_ND.to(device))
    away_BD = query_BD.to(device)
    equal = torch.equal(there.search(away_BD, COUNT).rows_BK.cpu(), here.search(query_BD, COUNT).rows_BK)
    seconds = seconds_of(lambda: there.search(away_BD, COUNT), device)
    found = f"{QUERIES} queries in {SEARCHED_ROWS:,} rows of {DIMENSION}: {1000 * seconds:.3g} ms"
    return equal, f"{found}; the rows are {'those' if equal else 'NOT those'} of the CPU"


def _faiss() -> Said:
    try:
        import faiss
    except ModuleNotFoundError:
        return None, "not installed; only approximate search needs it"
    count = faiss.get_num_gpus() if hasattr(faiss, "get_num_gpus") else 0
    return None, f"faiss {faiss.__version__} sees {count} GPUs; approximate indexes are built and searched on the host"


def _exchange(device: torch.device) -> Said:
    backend = dist.Backend.default_device_backend_map.get(device.type)
    if backend is None:
        return None, f"torch has no exchange between processes for {device.type}"
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        values = torch.arange(4.0, device=device)
        dist.all_reduce(values)
        return values.tolist() == [0.0, 1.0, 2.0, 3.0], f"all-reduce of one process by {backend}"
    finally:
        dist.destroy_process_group()


class StoppingInterval(Interval):
    """The preset's refresh policy. It also asks the run to stop, once at each step in `stops`."""

    stops: ClassVar[set[int]] = set()

    def wants_refresh(self, now: Progress) -> bool:
        """True at each multiple of the interval."""
        if now.step in self.stops:
            self.stops.remove(now.step)
            signal.raise_signal(signal.SIGTERM)
        return super().wants_refresh(now)


class _Training:
    """A few steps of pre-training on the toy world, on the CPU and on the device, from the same warm start."""

    def __init__(self, folder: Path, device: str):
        self._folder, self._device = folder, device

    def equals_the_cpu(self) -> Said:
        """Check that the losses on the CPU and on the device differ only by rounding."""
        for stage in ("prepare", "warm_start"):
            run_stage(stage, "realm", self._params("cpu"), 0, self._folder / "begun")
        here, there = self._losses("cpu", "cpu"), self._losses("whole", self._device)
        apart = max(abs(one - other) / abs(one) for one, other in zip(here, there, strict=True))
        return (
            apart < SAME,
            f"the losses of {len(here)} steps differ from the CPU's by {apart:.1e} at most, relatively",
        )

    def resumes(self) -> Said:
        """Check that a resumed run equals an uninterrupted one to the bit; None if two uninterrupted ones differ."""
        self._losses("again", self._device)
        StoppingInterval.stops.add(STOPPED_AFTER)
        with suppress(SystemExit):
            self._losses("resumed", self._device)
        self._losses("resumed", self._device)
        whole, again, resumed = (self._models(name) for name in ("whole", "again", "resumed"))
        if whole == again:
            ends = "as one that was not stopped, to the bit" if whole == resumed else "in OTHER bits than the whole one"
            return whole == resumed, f"a resumed run ends {ends}"
        return None, "two undisturbed runs differ in bits on this device, so a resumed one may"

    def _losses(self, name: str, device: str) -> list[float]:
        """Pre-train in the folder `name`, or continue there; return the logged losses."""
        root, params = self._folder / name, self._params(device)
        if not root.exists():
            shutil.copytree(self._folder / "begun", root)
        run_stage("pretrain", "realm", params, 0, root)
        rows = open_stage(root / "runs", plan_run(params, "realm", 0), "pretrain").metrics.rows()
        return [row["loss"] for row in rows if "loss" in row]

    def _models(self, name: str) -> dict[str, bytes]:
        found = (self._folder / name).glob("runs/stages/pretrain-*/model/**/*.safetensors")
        return {path.parent.name + path.name: path.read_bytes() for path in found}

    def _params(self, device: str) -> Params:
        policy = f"{__name__}:{StoppingInterval.__name__}"
        overrides = {"launch.device": device, "pretrain.refresh.policy": policy}
        return load(self._folder / "params.yaml", SHORT | overrides)
