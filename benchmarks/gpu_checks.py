"""Checks that only benchmarks.gpu runs: those of `doctor --gpu`, refreshes during training, two ranks."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.machine import description, peak_gibibytes
from benchmarks.real_text import add_arguments, parameters
from realm_lab.engine.core.process import pick_device
from realm_lab.engine.params.load import preset_values, resolve
from realm_lab.engine.systems.identity import open_stage, plan_run
from realm_lab.lab.gpu_check import checks
from realm_lab.lab.worker import run_stage
from realm_lab.records.files import read_json, write_json

WARM_STEPS, NO_REFRESH_STEPS = 10, 60
REFRESH_SECONDS = 15.0  # from one refresh to the next: more than a process takes to start
EXCHANGED = 1 << 24  # float32 numbers
EXCHANGE_SECONDS = 45.0


def doctor(arguments: argparse.Namespace) -> dict[str, Any]:
    """The checks of `realm-lab doctor --gpu`: losses, resume to the bit and search against the CPU, NCCL."""
    preset = "smoke" if arguments.tiny else "toy"
    params = resolve(preset_values(preset) | {"preset": preset, "launch.device": arguments.device})
    found = []
    for subject, is_right, finding in checks(params, pick_device(arguments.device)):
        found.append({"subject": subject, "right": is_right, "found": finding})
        print(f"{subject}: {finding}", flush=True)
    return {"checks": found}


def refresh(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare pre-training whose index a builder process refreshes on the same device with one without refreshes."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        never = _losses(arguments, root, {"steps": _few(arguments), "refresh": {"policy": "never"}}, "inline")
        step_seconds = statistics.median(row["step_seconds"] for row in never[WARM_STEPS:])
        interval = 8 if arguments.tiny else round(REFRESH_SECONDS / step_seconds)
        late = {"interval_steps": interval, "delay_steps": interval}
        rows = _losses(arguments, root, {"steps": 4 * interval, "refresh": late}, "process")
    return {
        "interval_steps": interval,
        "refreshes": rows[-1]["refreshes"],
        "refresh_share_of_time": rows[-1]["refresh_share_of_time"],
        "stall": {"never": _stall(never), "builder": _stall(rows)},
        "step_seconds": {"never": step_seconds, "builder": statistics.median(row["step_seconds"] for row in rows)},
        "peak_memory_gibibytes": peak_gibibytes(pick_device(arguments.device)),
    }


def _few(arguments: argparse.Namespace) -> int:
    return WARM_STEPS + 10 if arguments.tiny else NO_REFRESH_STEPS


def _losses(
    arguments: argparse.Namespace, root: Path, pretrain: dict[str, Any], builder: str
) -> list[dict[str, float]]:
    """The values that each step of a pre-training logged; earlier stages that are done in `root` are not repeated."""
    few = {"steps": 2, "optimiser": {"warmup_steps": 1}}
    one = {"warmup_steps": 1}
    changes = {
        "warm_start": {"reader": few, "embedder": few},
        "pretrain": {"batch_size": 8, "candidates": 8, "reader": one, "retriever": one, **pretrain},
        "evaluate": {"interval_steps": 10**6, "cloze_sentences": 8},
        "launch": {"log_interval_steps": 1, "builder": builder, "token_budget": arguments.token_budget},
    }
    params = parameters(arguments, "bfloat16", changes)
    for stage in ("prepare", "warm_start", "pretrain"):
        run_stage(stage, "realm", params, 0, root)
    found = open_stage(root / "runs", plan_run(params, "realm", 0), "pretrain").metrics.rows()
    return [row for row in found if "step_seconds" in row]


def _stall(rows: list[dict[str, float]]) -> float:
    """The share of the time that steps take beyond equally many steps of median length."""
    seconds = [row["step_seconds"] for row in rows[WARM_STEPS:]]
    return 1 - statistics.median(seconds) * len(seconds) / sum(seconds)


def ranks(arguments: argparse.Namespace) -> dict[str, Any]:
    """Check an all-reduce of two processes on one device, which NCCL may refuse; on the CPU the backend is gloo."""
    backend = dist.get_default_backend_for_device(arguments.device)
    with tempfile.TemporaryDirectory() as scratch:
        context = mp.get_context("spawn")
        given = (Path(scratch), backend, arguments.device)
        started = [context.Process(target=_rank, args=(rank, *given)) for rank in (0, 1)]
        for process in started:
            process.start()
        deadline = time.monotonic() + EXCHANGE_SECONDS
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
        said = [read_json(path) for path in sorted(Path(scratch).glob("rank-*.json"))]
    errors = [one["error"] for one in said if "error" in one]
    errors += [f"no answer in {EXCHANGE_SECONDS:g} s"] * (len(said) < len(started))
    return {"backend": backend, "error": errors[0]} if errors else {"backend": backend, **said[0]}


def _rank(rank: int, folder: Path, backend: str, name: str) -> None:
    """Work of one of the processes, which writes its finding to a file."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = torch.device(name if name == "cpu" else f"{name}:0")
    try:
        dist.init_process_group(backend, init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
        values = torch.full((EXCHANGED,), rank + 1.0, device=device)
        dist.all_reduce(values)
        right = bool((values == 3.0).all())
        started = time.perf_counter()
        dist.all_reduce(values)
        float(values[0])
        found = {"right": right, "gigabytes_per_second": 1e-9 * values.nbytes / (time.perf_counter() - started)}
    except Exception as error:  # NCCL raises errors of several types
        found = {"error": " ".join(str(error).split())[:500]}
    write_json(folder / f"rank-{rank}.json", found)


CHECKS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "doctor": doctor,
    "refresh": refresh,
    "ranks": ranks,
}


def main(argv: list[str] | None = None) -> int:
    """Run one of CHECKS, and write it to --output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_checks", description=__doc__)
    parser.add_argument("check", choices=CHECKS)
    add_arguments(parser)
    parser.add_argument("--token-budget", type=int, default=1536, help="launch.token_budget (default: 1536)")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    machine = description(arguments.threads, pick_device(arguments.device))
    result = {"machine": machine, **CHECKS[arguments.check](arguments)}
    print(result)
    if arguments.output:
        write_json(arguments.output, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
