"""Exact top 8 of many vectors, beside FAISS Flat and beside the time to read the index once; IVF and PQ with recall.

Synthetic vectors, the same for all. Run from the repository: python -m benchmarks.index_search --help
"""

# Shapes: N passages, B queries, K results, D embedding size

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import description, table
from realm_lab.core.files import write_json
from realm_lab.errors import UserError
from realm_lab.params.sections import Search
from realm_lab.retrieval.approximate import ApproximateSearch, recall
from realm_lab.retrieval.backends import PARAMETER, SEARCH_BACKENDS
from realm_lab.retrieval.exact import ExactSearch
from realm_lab.retrieval.search import true_scores

WIKIPEDIA_2018 = 13_353_718  # passages of Guu et al. 2020, section 4.2
SIZE, COUNT = 128, 8
BATCHES = (1, 16, 64, 256)
CLUSTERS, SPREAD = 1000, 0.5  # of the clustered vectors: cluster centres are as long as sqrt(D), members lie around
TARGETS = {"faster_than_faiss_flat": 5.0, "readings_of_the_index_at_batch_1": 1.5}


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, print it, and write it to --output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.index_search", description=__doc__)
    parser.add_argument("--rows", type=int, default=WIKIPEDIA_2018, help=f"vectors (default: {WIKIPEDIA_2018})")
    parser.add_argument("--approximate-rows", type=int, default=1_000_000, help="of them, for IVF and PQ")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="default: all")
    parser.add_argument("--repetitions", type=int, default=3, help="timed runs of exact search; the best counts")
    parser.add_argument(
        "--checked", type=int, default=2, help="queries of each batch checked against every row's score"
    )
    parser.add_argument("--tiny", action="store_true", help="a few thousand vectors: for the tests")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args(argv)
    try:
        result = run(arguments)
    except UserError as error:
        print(f"benchmarks.index_search: {error}", file=sys.stderr)
        return 2
    print(report(result))
    if arguments.output:
        write_json(arguments.output, result)
    return 0


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one path after the other; nothing else may run meanwhile."""
    if arguments.rows < COUNT or arguments.approximate_rows < COUNT:
        raise UserError(f"--rows and --approximate-rows must be {COUNT} or more")
    torch.set_num_threads(arguments.threads)
    faiss.omp_set_num_threads(arguments.threads)
    rows = min(arguments.rows, 6000) if arguments.tiny else arguments.rows
    embeddings_ND = vectors(rows, seed=0)
    read_seconds = _best(embeddings_ND.sum, arguments.repetitions)
    started = time.perf_counter()
    exact = ExactSearch(embeddings_ND)
    exact.search(vectors(1, seed=5), COUNT)
    prepared = time.perf_counter() - started
    batches = {str(batch): _batch(exact, batch, arguments) for batch in BATCHES}
    first = batches[str(BATCHES[0])]["exact_seconds"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    few = min(rows, arguments.approximate_rows)
    clustered_ND = vectors(few, seed=0, clustered=True)
    del exact
    approximate = _approximate(embeddings_ND[:few], "independent") | _approximate(clustered_ND, "clustered")
    return {
        "machine": description(arguments.threads) | {"faiss": faiss.__version__},
        "sizes": {"rows": rows, "size": SIZE, "count": COUNT, "approximate_rows": few},
        "targets": TARGETS,
        "read_once": {
            "float32_seconds": read_seconds,
            "float32_gigabytes_per_second": 4e-9 * rows * SIZE / read_seconds,
            "exact_batch_1_in_readings_of_float32": first / read_seconds,
        },
        "prepare_seconds": prepared,
        "peak_memory_gibibytes": peak,
        "batches": batches,
        "approximate": approximate,
    }


def vectors(rows: int, seed: int, clustered: bool = False) -> Tensor:
    """Standard normal vectors, or members of clusters, float32 [N, D]."""
    generator = torch.Generator().manual_seed(seed)
    vectors_ND = torch.empty(rows, SIZE)
    centres_CD = torch.randn(CLUSTERS, SIZE, generator=torch.Generator().manual_seed(1))
    for part_ND in vectors_ND.split(1 << 18):
        part_ND.normal_(generator=generator)
        if clustered:
            part_ND.mul_(SPREAD).add_(centres_CD[torch.randint(CLUSTERS, (len(part_ND),), generator=generator)])
    return vectors_ND


def _batch(exact: ExactSearch, batch: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Exact search and FAISS Flat on the same queries, and how far their results agree."""
    query_BD = vectors(batch, seed=100 + batch)
    stored_ND = exact.embeddings_ND[:]
    found = exact.search(query_BD, COUNT)
    seconds = _best(partial(exact.search, query_BD, COUNT), arguments.repetitions)
    # On the same memory: IndexFlatIP.search is this function over a copy, which the memory would not hold.
    flat: list[np.ndarray] = []
    queries, stored = query_BD.numpy(), stored_ND.numpy()
    flat_seconds = _best(lambda: flat.extend(faiss.knn(queries, stored, COUNT, faiss.METRIC_INNER_PRODUCT)), 1)
    shared = (found.rows_BK.numpy()[:, :, None] == flat[1][:, None]).any(2).mean()
    identical = 0
    for query in range(min(batch, arguments.checked)):
        rows_K, scores_K = every_row(stored_ND, query_BD[query])
        same = torch.equal(found.rows_BK[query], rows_K) and torch.equal(found.scores_BK[query], scores_K)
        identical += int(same)
    return {
        "exact_seconds": seconds,
        "exact_queries_per_second": batch / seconds,
        "faiss_flat_seconds": flat_seconds,
        "faiss_flat_queries_per_second": batch / flat_seconds,
        "faster_than_faiss_flat": flat_seconds / seconds,
        "shared_with_faiss_flat": float(shared),
        "checked_against_every_row": min(batch, arguments.checked),
        "of_these_identical_bit_for_bit": identical,
    }


def every_row(stored_ND: Tensor, query_D: Tensor) -> tuple[Tensor, Tensor]:
    """The top of one query by the true score of every row."""
    score_N = torch.cat(
        [
            true_scores(
                query_D[None], part_ND, torch.zeros(len(part_ND), dtype=torch.int64), torch.arange(len(part_ND))
            )
            for part_ND in stored_ND.split(1 << 18)
        ]
    )
    rows_K = score_N.argsort(descending=True, stable=True)[:COUNT]
    return rows_K, score_N[rows_K]


def _approximate(embeddings_ND: Tensor, name: str) -> dict[str, Any]:
    """Build seconds, queries a second and recall of IVF-Flat and IVF-PQ, exact search beside them."""
    chosen = torch.randperm(len(embeddings_ND), generator=torch.Generator().manual_seed(2))[:256]
    query_BD = embeddings_ND[chosen] + 0.5 * vectors(len(chosen), seed=3)
    exact = ExactSearch(embeddings_ND)
    seconds = _best(partial(exact.search, query_BD, COUNT), 2)
    found = {
        f"exact, {name}": {"queries_per_second": len(query_BD) / seconds, "recall_at_8": 1.0, "build_seconds": 0.0}
    }
    lists = max(1, min(1024, len(embeddings_ND) // 39))
    for kind in ("ivf_flat", "ivf_pq"):
        started = time.perf_counter()
        options = {"nlist": lists, "nprobe": min(32, lists)}
        if kind == "ivf_pq" and len(embeddings_ND) < 10_000:  # 256 codes take most of a minute to learn
            options["nbits"] = 4
        chosen = SEARCH_BACKENDS.choose(PARAMETER, Search(backend={"name": kind, **options}).backend)
        backend = ApproximateSearch(embeddings_ND, chosen(embeddings_ND, 0))
        built = time.perf_counter() - started
        seconds = _best(partial(backend.search, query_BD, COUNT), 2)
        found[f"{kind}, {name}"] = {
            "queries_per_second": len(query_BD) / seconds,
            "recall_at_8": recall(backend, exact, query_BD, COUNT),
            "build_seconds": built,
        }
    return found


def _best(work: Callable[[], object], repetitions: int) -> float:
    taken = []
    for _ in range(max(1, repetitions)):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


def report(result: dict[str, Any]) -> str:
    """The tables."""
    once, sizes = result["read_once"], result["sizes"]
    columns = ("exact_queries_per_second", "faiss_flat_queries_per_second", "faster_than_faiss_flat")
    rows = [[name, *(batch[column] for column in columns), _check(batch)] for name, batch in result["batches"].items()]
    found = [[name, *path.values()] for name, path in result["approximate"].items()]
    return "\n\n".join(
        [
            f"{result['machine']}",
            f"{sizes}; peak memory {result['peak_memory_gibibytes']:.1f} GiB; "
            f"the copy in bytes took {result['prepare_seconds']:.1f} s",
            f"reading the index once: float32 {once['float32_seconds']:.3f} s "
            f"({once['float32_gigabytes_per_second']:.0f} GB/s); exact search of one query takes "
            f"{once['exact_batch_1_in_readings_of_float32']:.2f} readings of it",
            table(["batch", "exact, queries/s", "FAISS Flat, queries/s", "times faster", "bits checked"], rows),
            table([f"of {sizes['approximate_rows']} rows, batch 256", "queries/s", "recall@8", "build, s"], found),
        ]
    )


def _check(batch: dict[str, Any]) -> str:
    return f"{batch['of_these_identical_bit_for_bit']} of {batch['checked_against_every_row']} identical"


if __name__ == "__main__":
    sys.exit(main())
