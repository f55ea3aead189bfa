"""`realm-lab plan --measure`: a short measurement of this machine with the configured model, kept for plans."""

# Shapes: N rows of an index, B sequences or queries, L positions, D embedding size

from __future__ import annotations

import datetime
import platform
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import TypeAdapter

from realm_lab.contrib.planner.workload import Workload, read_text, without_checkpoint, workload
from realm_lab.engine.core.device import device_name, memory_bytes, seconds_of
from realm_lab.engine.core.process import autocast, limit_threads, pick_device
from realm_lab.engine.models.initial import embedder_shape, encoder_shape, new_embedder, new_reader
from realm_lab.engine.models.inputs import Batch
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval.exact import ExactSearch
from realm_lab.engine.training.flops import encoder_operations
from realm_lab.engine.training.optimiser import ScheduledAdamW
from realm_lab.errors import UserError
from realm_lab.records.files import write_json
from realm_lab.records.validation import read_record

REMEDY = "run `realm-lab plan --measure`"
REPEATS = 7  # the median counts
SEARCH_ROWS = 1 << 18


class Speeds(NamedTuple):
    """Rates of a device per second, and durations in seconds."""

    embed_operations: float  # per second
    train_operations: float  # per second
    update_seconds: float  # of the optimisers' update in a step
    search_row_query_seconds: float  # of scoring a row of the index for one query of a batch


@dataclass(frozen=True)
class Calibration:
    """Speeds of one device with one model. `model`: the sizes and settings of `model_identity`."""

    device: str
    host: str
    torch: str
    date: str
    model: dict[str, Any]
    lengths: str  # source of the lengths of the measured text
    memory_bytes: int
    speeds: Speeds


CALIBRATION: TypeAdapter[Calibration] = TypeAdapter(Calibration)


def default_path(root: Path) -> Path:
    """Return the file that `plan --measure` writes and `plan` reads."""
    return root / "runs" / "bench.json"


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration, atomically."""
    write_json(path, asdict(calibration) | {"speeds": calibration.speeds._asdict()})


def read_calibration(path: Path) -> Calibration:
    """Read a calibration. UserError: the file is missing or invalid."""
    if not path.exists():
        raise UserError(
            "this machine has not been measured", f"{REMEDY}, or plan for a device: --device H100", path=path
        )
    return read_record(path, CALIBRATION, REMEDY)


def model_identity(params: Params, vocabulary_size: int) -> dict[str, Any]:
    """Return the model's sizes and settings: a plan uses a measurement only if they are equal."""
    params = without_checkpoint(params)
    shape = encoder_shape(params, vocabulary_size)._asdict()
    del shape["config"]  # the configuration of a checkpoint
    return {
        **shape,
        **embedder_shape(params)._asdict(),
        "precision": params.model.precision,
        "passage_length": params.corpus.passage_length,
        "sentence_length": params.corpus.sentence_length,
        "token_budget": params.launch.token_budget,
    }


def measure(params: Params, root: Path) -> Calibration:
    """Measure embedding, training and search on the device of the parameters."""
    limit_threads(params.launch.threads)
    device = pick_device(params.launch.device)
    text = read_text(params, root)
    work = workload(params, text)
    return Calibration(
        device=device_name(device),
        host=platform.node(),
        torch=torch.__version__,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        model=model_identity(params, text.vocabulary_size),
        lengths=text.source,
        memory_bytes=memory_bytes(device),
        speeds=Speeds(
            _embedding(params, work, device),
            *_training(params, work, device),
            _search(params, work.dimension, device),
        ),
    )


def show_calibration(calibration: Calibration, path: Path) -> None:
    """Print the measurements, and the path of their file."""
    model = calibration.model
    print(f"{calibration.device}, torch {calibration.torch}, host {calibration.host}")
    print(f"model: {model['layers']} layers of {model['hidden_size']}, {model['precision']}; {calibration.lengths}")
    for name, value in calibration.speeds._asdict().items():
        print(f"{name.replace('_', ' ')}: {value:.3g}")
    print(f"written to {path}; `realm-lab plan` uses it")


def _sequences(length: float, budget: int, device: torch.device) -> Batch:
    """Return as many sequences of random wordpieces as an encoder reads at once."""
    size = max(1, round(length))
    tokens_BL = torch.randint(5, 100, (max(1, budget // size), size), generator=torch.Generator().manual_seed(0))
    return Batch(tokens_BL, torch.zeros_like(tokens_BL), torch.ones_like(tokens_BL, dtype=torch.bool)).to(device)


def _median_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the median of REPEATS calls, after a warm-up call."""
    work()
    return statistics.median(seconds_of(work, device) for _ in range(REPEATS))


def _embedding(params: Params, work: Workload, device: torch.device) -> float:
    """Measure operations per second of embedding passages."""
    embedder = new_embedder(without_checkpoint(params), work.shape.vocabulary_size, 0, None).to(device).eval()
    batch = _sequences(work.passage, params.launch.token_budget, device)

    def embed() -> None:
        with torch.no_grad(), autocast(device, params.model.precision):
            embedder.embed_documents(batch)

    return work.passage_operations * len(batch.tokens_BL) / _median_seconds(embed, device)


def _training(params: Params, work: Workload, device: torch.device) -> tuple[float, float]:
    """Measure operations per second of the reader's forward and backward pass, and seconds of an optimiser update."""
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
    optimiser = ScheduledAdamW("reader", reader, params.pretrain.reader, 1, set())
    for parameter in reader.parameters():
        parameter.grad = torch.zeros_like(parameter)
    update = _median_seconds(lambda: optimiser.step(0), device)
    return operations / seconds, update * work.trained_parameters / work.reader_parameters


def _search(params: Params, dimension: int, device: torch.device) -> float:
    """Measure the seconds of an exact search among random vectors, per row and query of a batch."""
    generator = torch.Generator().manual_seed(0)
    backend = ExactSearch(torch.randn(SEARCH_ROWS, dimension, generator=generator).to(device))
    query_BD = torch.randn(params.pretrain.batch_size, dimension, generator=generator).to(device)
    seconds = _median_seconds(lambda: backend.search(query_BD, params.pretrain.candidates), device)
    return seconds / (SEARCH_ROWS * len(query_BD))
