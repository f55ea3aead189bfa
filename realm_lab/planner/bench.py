"""`realm-lab bench`: a short measurement of this machine with the configured model, kept for `realm-lab plan`."""

# Shapes: N rows of an index, B sequences or queries, L positions, D embedding size

from __future__ import annotations

import datetime
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import TypeAdapter

from realm_lab.core.files import write_json
from realm_lab.core.process import autocast, limit_threads, pick_device
from realm_lab.core.records import read_record
from realm_lab.errors import UserError
from realm_lab.models.initial import embedder_shape, encoder_shape, new_embedder, new_reader
from realm_lab.models.inputs import Batch
from realm_lab.params.parameters import Params
from realm_lab.planner.machine import device_name, memory_bytes, seconds_of
from realm_lab.planner.workload import Workload, read_text, without_checkpoint, workload
from realm_lab.retrieval.embeddings import EmbeddingStore, Identity
from realm_lab.retrieval.exact import ExactSearch
from realm_lab.training.flops import encoder_operations

REMEDY = "run `realm-lab bench`"
REPEATS = 3  # the median counts
RUN_SECONDS = 1.5  # about which a measurement is to last
SEARCH_ROWS, STORE_ROWS = 1 << 18, 1 << 16


class Speeds(NamedTuple):
    """What a device does, per second or in seconds."""

    embed_operations: float  # a second
    train_operations: float  # a second
    update_seconds: float  # of a step, for the optimisers
    search_row_seconds: float  # of reading a row of the index, whatever the queries
    search_row_query_seconds: float  # of scoring it for one more query
    prepare_row_seconds: float  # of making a row ready for the search when an index is taken into use
    store_bytes: float  # a second: written, digested and published


@dataclass(frozen=True)
class Calibration:
    """Speeds of one device with one model. `model` is all that the speeds depend on besides the device."""

    device: str
    device_type: str
    host: str
    torch: str
    date: str
    model: dict[str, Any]
    lengths: str  # where the lengths of the measured text are from
    memory_bytes: int
    speeds: Speeds


CALIBRATION: TypeAdapter[Calibration] = TypeAdapter(Calibration)


def default_path(root: Path) -> Path:
    """Where `bench` writes and `plan` reads unless told otherwise."""
    return root / "runs" / "bench.json"


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the file, atomically."""
    write_json(path, asdict(calibration) | {"speeds": calibration.speeds._asdict()})


def read_calibration(path: Path) -> Calibration:
    """Read a file; a missing or a foreign one is a UserError with the remedy."""
    if not path.exists():
        other = "or plan for a device of the table: --device H100"
        raise UserError(f"{path}: this machine has not been measured; {REMEDY}, {other}")
    return read_record(path, CALIBRATION, REMEDY)


def model_identity(params: Params, vocabulary_size: int) -> dict[str, Any]:
    """The model and how it is run: what must be the same for a measurement to count."""
    params = without_checkpoint(params)
    return {
        **encoder_shape(params, vocabulary_size)._asdict(),
        **embedder_shape(params)._asdict(),
        "precision": params.model.precision,
        "passage_length": params.corpus.passage_length,
        "sentence_length": params.corpus.sentence_length,
        "token_budget": params.launch.token_budget,
    }


def measure(params: Params, root: Path) -> Calibration:
    """Measure embedding, training, search and storing on the device of the parameters, in a scratch folder."""
    limit_threads(params.launch.threads)
    device = pick_device(params.launch.device)
    text = read_text(params, root)
    work = workload(params, text)
    print("measuring embedding and training", file=sys.stderr)
    embed_operations = _embedding(params, work, device)
    train_operations, update_seconds = _training(params, work, device)
    print("measuring search and storing", file=sys.stderr)
    row, row_query, prepare = _search(params, work.dimension, device)
    (root / "runs").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=root / "runs") as scratch:
        store = _store(work.dimension, Path(scratch))
    return Calibration(
        device=device_name(device),
        device_type=device.type,
        host=platform.node(),
        torch=torch.__version__,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        model=model_identity(params, text.vocabulary_size),
        lengths=text.source,
        memory_bytes=memory_bytes(device),
        speeds=Speeds(embed_operations, train_operations, update_seconds, row, row_query, prepare, store),
    )


def show_calibration(calibration: Calibration, path: Path) -> None:
    """Print what was measured, and where it is kept."""
    model = calibration.model
    print(f"{calibration.device}, torch {calibration.torch}, host {calibration.host}")
    print(f"model: {model['layers']} layers of {model['hidden_size']}, {model['precision']}; {calibration.lengths}")
    for name, value in calibration.speeds._asdict().items():
        print(f"{name.replace('_', ' ')}: {value:.3g}")
    print(f"written to {path}; `realm-lab plan` uses it")


def _sequences(length: float, budget: int, device: torch.device) -> Batch:
    """Random wordpieces: as many sequences as go through an encoder at once."""
    size = max(1, round(length))
    tokens_BL = torch.randint(5, 100, (max(1, budget // size), size), generator=torch.Generator().manual_seed(0))
    return Batch(tokens_BL, torch.zeros_like(tokens_BL), torch.ones_like(tokens_BL, dtype=torch.bool)).to(device)


def _median_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Median of at least REPEATS calls, and of as many as the time allows, after one that warms up."""
    work()
    taken: list[float] = []
    while len(taken) < REPEATS or (sum(taken) < RUN_SECONDS and len(taken) < 20):
        taken.append(seconds_of(work, device))
    return statistics.median(taken)


def _embedding(params: Params, work: Workload, device: torch.device) -> float:
    """Operations a second of embedding passages."""
    embedder = new_embedder(without_checkpoint(params), work.shape.vocabulary_size, 0, None).to(device).eval()
    batch = _sequences(work.passage, params.launch.token_budget, device)

    def embed() -> None:
        with torch.no_grad(), autocast(device, params.model.precision):
            embedder.embed_documents(batch)

    return work.passage_operations * len(batch.tokens_BL) / _median_seconds(embed, device)


def _training(params: Params, work: Workload, device: torch.device) -> tuple[float, float]:
    """Operations a second of reading with its backward pass, and the seconds of an update of all that is trained."""
    reader = new_reader(without_checkpoint(params), work.shape.vocabulary_size, 0).to(device)
    batch = _sequences(work.joined, params.launch.token_budget, device)
    at_BM = torch.ones(len(batch.tokens_BL), max(1, round(work.masks)), dtype=torch.int64, device=device)

    def read() -> None:
        with autocast(device, params.model.precision):
            hidden_BMD = reader.encoder(*batch, at_BM)
        hidden_BMD.float().sum().backward()

    seconds = _median_seconds(read, device)
    lengths = np.full(batch.tokens_BL.shape[0], batch.tokens_BL.shape[1])
    operations = 3.0 * encoder_operations(work.shape, lengths).sum()
    adamw = torch.optim.AdamW(reader.parameters(), fused=True)
    for parameter in reader.parameters():
        parameter.grad = torch.zeros_like(parameter)
    update = _median_seconds(adamw.step, device)
    return operations / seconds, update * work.trained_parameters / work.reader_parameters


def _search(params: Params, dimension: int, device: torch.device) -> tuple[float, float, float]:
    """Exact search among random vectors: seconds of a row, of a row and query more, and of preparing a row."""
    generator = torch.Generator().manual_seed(0)
    rows = SEARCH_ROWS
    embeddings_ND = torch.randn(rows, dimension, generator=generator).to(device)
    prepare = statistics.median(seconds_of(lambda: ExactSearch(embeddings_ND), device) for _ in range(REPEATS))
    backend, batch = ExactSearch(embeddings_ND), params.pretrain.batch_size
    sizes = sorted({max(1, batch // 3), batch})
    seconds = []
    for size in sizes:
        query_BD = torch.randn(size, dimension, generator=generator).to(device)
        seconds.append(_median_seconds(partial(backend.search, query_BD, params.pretrain.candidates), device))
    more = sizes[-1] - sizes[0]
    row_query = max(0.0, seconds[-1] - seconds[0]) / more if more else 0.0
    row = max(0.0, seconds[-1] - row_query * sizes[-1])  # noise aside: what the queries share
    return row / rows, row_query / rows, prepare / rows


def _store(dimension: int, folder: Path) -> float:
    """Bytes a second of writing embeddings: shards, digests, publication."""
    rows_ND = torch.randn(STORE_ROWS, dimension, generator=torch.Generator().manual_seed(0))
    store = EmbeddingStore(folder)

    def build(number: int) -> None:
        identity = Identity(str(number), "bench", 0, "float32", "float32", *rows_ND.shape)
        store.build(identity, lambda rows_R: rows_ND[torch.from_numpy(rows_R)])

    seconds = statistics.median(seconds_of(partial(build, number)) for number in range(REPEATS))
    return rows_ND.nbytes / seconds
