"""Exact search of embeddings that stay on the disk: seconds and peak memory, at the size of Wikipedia 2018.

The vectors are random and stored by the embedding store; each search is a separate process. Only the rows of one chunk
are copied at a time. Run from the repository: python -m benchmarks.search_scale --help
"""

# Shapes: N passages, B queries, R rows, D embedding size

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import description, table
from realm_lab.engine.retrieval.embeddings import EmbeddingStore, Identity
from realm_lab.engine.retrieval.exact import ExactSearch
from realm_lab.records.files import write_json

WIKIPEDIA_2018 = 13_353_718  # passages of Guu et al. 2020, section 4.2
SIZE, COUNT = 128, 8
BATCHES = (1, 64)
REPOSITORY = Path(__file__).resolve().parents[1]


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, print it, and write it to --output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search_scale", description=__doc__)
    parser.add_argument("--rows", type=int, default=WIKIPEDIA_2018, help=f"vectors (default: {WIKIPEDIA_2018})")
    parser.add_argument("--dtype", default="float16", choices=["float32", "float16"], help="on disk (default: float16)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="default: all")
    parser.add_argument("--folder", type=Path, help="where the vectors are written, then removed (default: scratch)")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        print(json.dumps(search(**json.loads(arguments.child))))
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        identity = Identity("random", "random", 0, "float32", arguments.dtype, arguments.rows, SIZE)
        started = time.perf_counter()
        stored = EmbeddingStore(Path(folder)).build(identity, vectors)
        wrote = time.perf_counter() - started
        found = []
        for batch in BATCHES:
            child = json.dumps({"folder": folder, "batch": batch, "threads": arguments.threads})
            command = [sys.executable, "-m", "benchmarks.search_scale", "--child", child]
            environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads)}
            done = subprocess.run(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, check=True)
            found.append(json.loads(done.stdout))
        result = {
            "machine": description(arguments.threads),
            "rows": arguments.rows,
            "dtype": arguments.dtype,
            "stored_gibibytes": (stored.folder / "embeddings.bin").stat().st_size / 2**30,
            "write_seconds": wrote,
            "searches": found,
        }
    print(report(result))
    if arguments.output:
        write_json(arguments.output, result)
    return 0


def vectors(rows_R: np.ndarray) -> Tensor:
    """Standard normal vectors, the same for the same rows, [R, D]."""
    return torch.randn(len(rows_R), SIZE, generator=torch.Generator().manual_seed(int(rows_R[0])))


def search(folder: str, batch: int, threads: int) -> dict[str, Any]:
    """Search the store of a folder twice, in this process; returns seconds, and peak memory with mapped files."""
    torch.set_num_threads(threads)
    before = peak_mebibytes()
    started = time.perf_counter()
    [stored] = EmbeddingStore(Path(folder)).published()
    backend = ExactSearch(stored)
    opened = time.perf_counter() - started
    query_BD = torch.randn(batch, SIZE, generator=torch.Generator().manual_seed(-1))
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        found = backend.search(query_BD, COUNT)
        seconds.append(time.perf_counter() - started)
    peak = peak_mebibytes()
    checked = _is_best(stored[:], query_BD[:1], found.rows_BK[0]) if len(stored) <= 1_000_000 else None
    return {
        "batch": batch,
        "open_seconds": opened,
        "first_seconds": seconds[0],
        "second_seconds": seconds[1],
        "memory_before_mebibytes": before,
        "peak_memory_mebibytes": peak,
        "is_best_of_all_rows": checked,
    }


def peak_mebibytes() -> float:
    """Peak memory of this process, pages of files included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 2**10


def _is_best(rows_ND: Tensor, query_1D: Tensor, found_K: Tensor) -> bool:
    score_N = (rows_ND.double() @ query_1D.double().T)[:, 0]
    return bool(torch.equal(score_N.topk(COUNT).indices, found_K))


def report(result: dict[str, Any]) -> str:
    """The table."""
    columns = ["batch", "first_seconds", "second_seconds", "memory_before_mebibytes", "peak_memory_mebibytes"]
    head = ["queries", "first search, s", "again, s", "memory before, MiB", "peak memory, MiB"]
    stored = f"{result['rows']:,} vectors of {SIZE}, {result['dtype']}, {result['stored_gibibytes']:.2f} GiB on disk"
    rows = [[found[column] for column in columns] for found in result["searches"]]
    return "\n\n".join([str(result["machine"]), stored, table(head, rows)])


if __name__ == "__main__":
    sys.exit(main())
