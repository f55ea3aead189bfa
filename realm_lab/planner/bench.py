"""`realm-lab bench`: a short measurement of this machine with the model of the parameters."""

# Shapes: N rows of an index, B queries, K candidates, D embedding size

from __future__ import annotations

import datetime
import platform
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from realm_lab.core.process import limit_threads, pick_device
from realm_lab.core.seeding import numpy_generator
from realm_lab.models.initial import new_embedder, new_reader
from realm_lab.params.parameters import Params
from realm_lab.planner.calibration import FORMAT, Calibration, model_identity
from realm_lab.planner.machine import device_name, matrix_peak, memory_bytes, read_rate, seconds_of
from realm_lab.planner.sample import Sample, write_sample
from realm_lab.planner.workload import Workload, without_checkpoint, workload
from realm_lab.retrieval.embeddings import EmbeddingStore, Identity
from realm_lab.retrieval.exact import ExactSearch
from realm_lab.retrieval.retriever import Inputs, Retriever
from realm_lab.training.pretrain import PretrainTask

REPEATS = 3  # the median counts
SAMPLE_ROWS = 1 << 14
FIRST_ROWS = 4
SEARCH_ROWS = 1 << 18
STORE_ROWS = 1 << 16
STEPS = 1_000_000  # more than are made


class Effort(NamedTuple):
    """How long to measure. A run of each kind is to last about `seconds`."""

    seconds: float = 1.5
    sample_rows: int = SAMPLE_ROWS
    search_rows: int = SEARCH_ROWS


class SpreadRetriever(Retriever):
    """Searches as always, then reads passages that no other sentence reads: what a step costs must not depend on how
    alike untrained vectors are."""

    def find(self, *positional: Any, **named: Any) -> np.ndarray:
        """Random candidates in the place of those that were found, as far as the passages suffice."""
        rows_BK = super().find(*positional, **named)
        drawn = numpy_generator(0, "bench-candidates").permutation(len(self.passages))
        return np.where(rows_BK >= 0, np.resize(drawn, rows_BK.size).reshape(rows_BK.shape), rows_BK)


def measure(
    params: Params, root: Path, effort: Effort | None = None, say: Callable[[str], None] = lambda what: None
) -> Calibration:
    """Measure embedding, training steps, search and storing on the device of the parameters, in a scratch folder."""
    effort = effort or Effort()
    limit_threads(params.launch.threads)
    device = pick_device(params.launch.device)
    (root / "runs").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=root / "runs") as scratch:
        sample = write_sample(params, root, Path(scratch) / "sample", effort.sample_rows)
        work = workload(params, sample)
        say("matrix products and memory")
        least = min(0.05, effort.seconds / 10)
        peaks = {name: matrix_peak(name, least, device)["best"] for name in ("float32", "bfloat16")}
        bandwidth = read_rate(device)
        say("embedding")
        rows, embed_seconds = _embedding(params, sample, device, effort.seconds)
        embedding_rate = rows * work.passage_operations / embed_seconds
        say("training steps")
        steps = _steps(params, root, Path(scratch), work, embedding_rate, device, effort)
        say("search and storing")
        search = _search(params, work, device, effort)
        store = _store(work.dimension, Path(scratch) / "store")
    fixed, per_sentence = line_through(steps.sizes, steps.seconds)
    row, row_query = line_through(search.sizes, [seconds / effort.search_rows for seconds in search.seconds])
    return Calibration(
        format=FORMAT,
        device=device_name(device),
        device_type=device.type,
        host=platform.node(),
        torch=torch.__version__,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        model=model_identity(params, sample.vocabulary_size),
        lengths=sample.source,
        memory_bytes=memory_bytes(device),
        matrix_gflops_per_second=peaks,
        read_bytes_per_second=bandwidth,
        embed_passages=rows,
        embed_passages_per_second=rows / embed_seconds,
        embed_operations_per_second=embedding_rate,
        step_sentences=steps.sizes,
        step_seconds=steps.seconds,
        step_fixed_seconds=fixed,
        step_operations_per_second=work.sentence_operations / per_sentence,
        step_passages=steps.passages,
        search_rows=effort.search_rows,
        search_queries=search.sizes,
        search_seconds=search.seconds,
        search_row_seconds=row,
        search_row_query_seconds=row_query,
        prepare_row_seconds=search.prepare_seconds / effort.search_rows,
        store_bytes_per_second=store,
    )


def line_through(sizes: list[int], seconds: list[float]) -> tuple[float, float]:
    """What is fixed and what each more costs, neither negative, so that the largest size is met exactly."""
    last, total = sizes[-1], seconds[-1]
    if last == sizes[0]:
        return 0.0, total / last
    each = max(0.0, (total - seconds[0]) / (last - sizes[0]))
    each = min(each, total / last)
    if not each:  # noise: more took no longer
        each = total / last
    return total - each * last, each


def _retriever(params: Params, sample: Sample, device: torch.device, kind: type[Retriever] = Retriever) -> Retriever:
    embedder = new_embedder(without_checkpoint(params), sample.vocabulary_size, 0, None).to(device)
    stale = params.pretrain.search_query == "stale"
    return kind(embedder, sample.passages, Inputs.of(params, sample.special), "bench", stale_queries=stale)


def _embedding(params: Params, sample: Sample, device: torch.device, target_seconds: float) -> tuple[int, float]:
    """Passages embedded together, and the median seconds that took."""
    retriever = _retriever(params, sample, device)
    total, rows = len(sample.passages), min(FIRST_ROWS, len(sample.passages))

    def embed() -> object:
        return retriever.embed_passages(np.arange(rows) * total // rows)

    embed()  # warm
    while (taken := seconds_of(embed, device)) < target_seconds / 2 and rows < total:
        rows = min(total, rows * max(2, min(8, int(target_seconds / taken))))
    return rows, statistics.median(seconds_of(embed, device) for _ in range(REPEATS))


class _Steps(NamedTuple):
    sizes: list[int]
    seconds: list[float]
    passages: int


def _steps(
    params: Params, root: Path, scratch: Path, work: Workload, rate: float, device: torch.device, effort: Effort
) -> _Steps:
    """Seconds of a step at two batch sizes, as large as the time allows and no larger than the parameters'."""
    settings = params.pretrain
    largest = max(1, int(effort.seconds * rate / work.sentence_operations))
    largest = min(largest, settings.batch_size, params.launch.micro_batch or settings.batch_size)
    sizes = sorted({max(1, largest // 3), largest})
    passages = max(2 * largest * settings.candidates, settings.over_retrieve + 1)
    sample = write_sample(params, root, scratch / "steps", passages)
    seconds = []
    for size in sizes:
        task = _task(params, sample, size, device)
        task.train_step(0)  # builds the index, and makes the optimisers' moments
        taken: list[float] = []
        while len(taken) < REPEATS or (sum(taken) < effort.seconds and len(taken) < 20):
            step = len(taken) + 1
            taken.append(seconds_of(partial(task.train_step, step), device))
        seconds.append(statistics.median(taken))
    return _Steps(sizes, seconds, passages)


def _task(params: Params, sample: Sample, batch: int, device: torch.device) -> PretrainTask:
    """Pre-training without refreshing and early warnings."""
    chosen = without_checkpoint(params)
    refresh = chosen.pretrain.refresh.model_copy(update={"policy": "never", "delay_steps": 0})
    changes = {
        "batch_size": batch,
        "steps": STEPS,
        "refresh": refresh,
        "calibrate_null": False,
    }
    chosen = chosen.model_copy(update={"pretrain": chosen.pretrain.model_copy(update=changes)})
    reader = new_reader(chosen, sample.vocabulary_size, 0).to(device)
    retriever = _retriever(chosen, sample, device, SpreadRetriever)
    return PretrainTask(chosen, 0, retriever, reader, sample.sentences, sample.special, lambda retriever, reader: {})


class _Search(NamedTuple):
    sizes: list[int]
    seconds: list[float]
    prepare_seconds: float


def _search(params: Params, work: Workload, device: torch.device, effort: Effort) -> _Search:
    """Exact search of a step's queries, and of a third of them, among random vectors."""
    generator = torch.Generator().manual_seed(0)
    embeddings_ND = torch.randn(effort.search_rows, work.dimension, generator=generator).to(device)
    prepared = statistics.median(seconds_of(lambda: ExactSearch(embeddings_ND), device) for _ in range(REPEATS))
    backend = ExactSearch(embeddings_ND)
    batch = params.pretrain.batch_size
    sizes = sorted({max(1, batch // 3), batch})
    seconds = []
    for size in sizes:
        query_BD = torch.randn(size, work.dimension, generator=generator).to(device)
        find = partial(backend.search, query_BD, params.pretrain.candidates)
        find()
        runs = [seconds_of(find, device) for _ in range(REPEATS)]
        seconds.append(statistics.median(runs))
    return _Search(sizes, seconds, prepared)


def _store(dimension: int, folder: Path) -> float:
    """Bytes a second of writing embeddings: shards, digests, publication."""
    rows_ND = torch.randn(STORE_ROWS, dimension, generator=torch.Generator().manual_seed(0))
    store = EmbeddingStore(folder)

    def build(number: int) -> None:
        identity = Identity(str(number), "bench", 0, "float32", "float32", *rows_ND.shape)
        store.build(identity, lambda rows_R: rows_ND[torch.from_numpy(rows_R)])

    seconds = statistics.median(seconds_of(partial(build, number)) for number in range(REPEATS))
    return rows_ND.nbytes / seconds
