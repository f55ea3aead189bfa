"""Exact top 8 of many vectors, compared with FAISS Flat, a plain product with torch and the time to read the vectors
once; IVF and PQ with recall. With --device on a GPU, without IVF and PQ, and with FAISS only if it is built for GPUs.

All searches get the same synthetic vectors. Run from the repository: python -m benchmarks.index_search --help
"""

# Shapes: N passages, B queries, K results, D embedding size

from __future__ import annotations

import argparse
import importlib
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import bandwidth, description, peak_gibibytes, table
from realm_lab.engine.core.device import CPU, seconds_of
from realm_lab.engine.core.process import pick_device
from realm_lab.engine.params.sections import IndexSearch
from realm_lab.engine.retrieval.approximate import ApproximateSearch, recall
from realm_lab.engine.retrieval.backends import PARAMETER, SEARCH_BACKENDS
from realm_lab.engine.retrieval.exact import ExactSearch
from realm_lab.engine.retrieval.search import true_scores
from realm_lab.errors import UserError
from realm_lab.records.files import write_json

try:
    import faiss
except ModuleNotFoundError:
    faiss = None  # type: ignore[assignment]

WIKIPEDIA_2018 = 13_353_718  # passages of Guu et al. 2020, section 4.2
SIZE, COUNT = 128, 8
BATCHES = (1, 16, 64, 256)
CLUSTERS, SPREAD = 1000, 0.5  # clusters: centres about sqrt(D) long, members SPREAD sqrt(D) away
RIVALS = {"faiss_flat": "FAISS Flat", "torch": "plain torch"}
PLAIN_ROWS = 1 << 18  # rows of each product of the plain search
TARGETS = {"faster_than_faiss_flat": 5.0, "readings_of_the_index_at_batch_1": 1.5}


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, print it, and write it to --output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.index_search", description=__doc__)
    parser.add_argument("--rows", type=int, default=WIKIPEDIA_2018, help=f"vectors (default: {WIKIPEDIA_2018})")
    parser.add_argument("--approximate-rows", type=int, default=1_000_000, help="of them, for IVF and PQ; 0: without")
    parser.add_argument("--device", default="cpu", help="as launch.device (default: cpu)")
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
    if min(arguments.rows, arguments.approximate_rows or COUNT) < COUNT:
        raise UserError(f"--rows and --approximate-rows must be {COUNT} or more")
    torch.set_num_threads(arguments.threads)
    device = pick_device(arguments.device)
    if faiss:
        faiss.omp_set_num_threads(arguments.threads)
    rows = min(arguments.rows, 6000) if arguments.tiny else arguments.rows
    host_ND = vectors(rows, seed=0)
    embeddings_ND = host_ND.to(device)
    read_seconds = _best(embeddings_ND.sum, arguments.repetitions, device)
    moved = bandwidth(arguments.tiny, device)
    started = time.perf_counter()
    exact = ExactSearch(embeddings_ND)
    exact.search(vectors(1, seed=5).to(device), COUNT)
    prepared = time.perf_counter() - started
    rivals = _rivals(embeddings_ND)
    batches = {str(batch): _batch(exact, host_ND, rivals, batch, arguments) for batch in BATCHES}
    first = batches[str(BATCHES[0])]["exact_seconds"]
    read_first = exact._copy.rows_ND if exact._copy else embeddings_ND
    for batch in batches.values():
        batch["fraction_of_bandwidth"] = read_first.nbytes / batch["exact_seconds"] / moved
    peak = peak_gibibytes(device) or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    few = min(rows, arguments.approximate_rows)
    approximate = {}
    if faiss and few and device.type == "cpu":
        del exact, read_first
        clustered_ND = vectors(few, seed=0, clustered=True)
        approximate = _approximate(host_ND[:few], "independent") | _approximate(clustered_ND, "clustered")
    return {
        "machine": description(arguments.threads, device) | {"faiss": faiss.__version__ if faiss else None},
        "sizes": {"rows": rows, "size": SIZE, "count": COUNT, "approximate_rows": few},
        "targets": TARGETS,
        "read_once": {
            "float32_seconds": read_seconds,
            "float32_gigabytes_per_second": 4e-9 * rows * SIZE / read_seconds,
            "copied_gigabytes_per_second": 1e-9 * moved,
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


def _rivals(embeddings_ND: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """Other searches of the same memory, which return the rows found, [B, COUNT]."""
    found: dict[str, Callable[[Tensor], Tensor]] = {"torch": partial(plain_search, embeddings_ND)}
    if faiss and embeddings_ND.is_cpu:
        # IndexFlatIP.search is this function over a copy, which the memory would not hold.
        stored, metric = embeddings_ND.numpy(), faiss.METRIC_INNER_PRODUCT
        found["faiss_flat"] = lambda query_BD: torch.from_numpy(faiss.knn(query_BD.numpy(), stored, COUNT, metric)[1])
    elif hasattr(faiss, "StandardGpuResources"):
        importlib.import_module("faiss.contrib.torch_utils")  # lets FAISS take tensors
        knn = partial(faiss.knn_gpu, faiss.StandardGpuResources(), metric=faiss.METRIC_INNER_PRODUCT)
        found["faiss_flat"] = lambda query_BD: knn(query_BD, embeddings_ND, COUNT)[1]
    return found


def plain_search(embeddings_ND: Tensor, query_BD: Tensor) -> Tensor:
    """The rows of the largest float32 products, [B, COUNT]."""
    scores_BK, rows_BK = query_BD.new_empty(len(query_BD), 0), query_BD.new_empty(len(query_BD), 0, dtype=torch.int64)
    for start in range(0, len(embeddings_ND), PLAIN_ROWS):
        part_Bn = query_BD @ embeddings_ND[start : start + PLAIN_ROWS].T
        best = part_Bn.topk(min(COUNT, part_Bn.shape[1]))
        scores_BK, kept_BK = torch.cat([scores_BK, best.values], 1).topk(COUNT)
        rows_BK = torch.cat([rows_BK, best.indices + start], 1).gather(1, kept_BK)
    return rows_BK


def _batch(
    exact: ExactSearch,
    host_ND: Tensor,
    rivals: dict[str, Callable[[Tensor], Tensor]],
    batch: int,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Measure exact search and its rivals on the same queries: speed, shared results, and bit-equality with the CPU."""
    host_BD = vectors(batch, seed=100 + batch)
    device = exact.embeddings_ND[:1].device
    query_BD = host_BD.to(device)
    rows_BK, scores_BK = (part.cpu() for part in exact.search(query_BD, COUNT))
    seconds = _best(partial(exact.search, query_BD, COUNT), arguments.repetitions, device)
    found = {"exact_seconds": seconds, "exact_queries_per_second": batch / seconds}
    for name, search in rivals.items():
        others: list[Tensor] = []
        if device.type != "cpu":
            search(query_BD)  # warm up
        taken = _best(lambda: others.append(search(query_BD)), 1, device)  # noqa: B023
        found |= {f"{name}_seconds": taken, f"{name}_queries_per_second": batch / taken}
        shared = (rows_BK[:, :, None] == others[0].cpu()[:, None]).any(2).float().mean()
        found |= {f"faster_than_{name}": taken / seconds, f"shared_with_{name}": float(shared)}
    identical = 0
    for query in range(min(batch, arguments.checked)):
        rows_K, scores_K = every_row(host_ND, host_BD[query])
        identical += int(torch.equal(rows_BK[query], rows_K) and torch.equal(scores_BK[query], scores_K))
    return found | {
        "checked_against_every_row": min(batch, arguments.checked),
        "of_these_identical_bit_for_bit": identical,
    }


def every_row(stored_ND: Tensor, query_D: Tensor) -> tuple[Tensor, Tensor]:
    """The first COUNT rows of one query by the true scores of all rows, and these scores."""
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
    """Build seconds, queries per second and recall of IVF-Flat and IVF-PQ, compared with exact search."""
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
        build = SEARCH_BACKENDS.choose(PARAMETER, IndexSearch(backend={"name": kind, **options}).backend)
        backend = ApproximateSearch(embeddings_ND, build(embeddings_ND, 0))
        built = time.perf_counter() - started
        seconds = _best(partial(backend.search, query_BD, COUNT), 2)
        found[f"{kind}, {name}"] = {
            "queries_per_second": len(query_BD) / seconds,
            "recall_at_8": recall(backend, exact, query_BD, COUNT),
            "build_seconds": built,
        }
    return found


def _best(work: Callable[[], object], repetitions: int, device: torch.device = CPU) -> float:
    return min(seconds_of(work, device) for _ in range(max(1, repetitions)))


def report(result: dict[str, Any]) -> str:
    """The tables."""
    once, sizes = result["read_once"], result["sizes"]
    columns = ["exact_queries_per_second", "fraction_of_bandwidth"]
    heads = ["batch", "exact, queries/s", "of the bandwidth"]
    for name, title in RIVALS.items():
        if f"{name}_seconds" in result["batches"][str(BATCHES[0])]:
            columns += [f"{name}_queries_per_second", f"faster_than_{name}"]
            heads += [f"{title}, queries/s", "times faster"]
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
            table([*heads, "bits checked"], rows),
            table([f"of {sizes['approximate_rows']} rows, batch 256", "queries/s", "recall@8", "build, s"], found),
        ]
    )


def _check(batch: dict[str, Any]) -> str:
    return f"{batch['of_these_identical_bit_for_bit']} of {batch['checked_against_every_row']} identical"


if __name__ == "__main__":
    sys.exit(main())
