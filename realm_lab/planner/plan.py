"""`realm-lab plan`: from parameters, a corpus size and devices to refresh time, staleness, memory and cost."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.core.process import limit_threads, pick_device
from realm_lab.errors import UserError
from realm_lab.params.parameters import Params
from realm_lab.planner.calibration import (
    Calibration,
    check_device,
    check_model,
    default_path,
    model_identity,
    read_calibration,
    version_note,
)
from realm_lab.planner.devices import find_device
from realm_lab.planner.machine import device_name
from realm_lab.planner.memory import Memory, memory
from realm_lab.planner.reckoning import (
    ASSUMED_EFFICIENCY,
    STORE_RATE,
    Freshness,
    Seconds,
    Speeds,
    asynchronous,
    measured_speeds,
    seconds,
    synchronous,
    table_speeds,
)
from realm_lab.planner.sample import Sample, write_sample
from realm_lab.planner.workload import Workload, workload
from realm_lab.retrieval.embeddings import DTYPES, SHARD_ROWS

SAMPLE_ROWS = 2048


class Request(NamedTuple):
    """What is asked for besides the parameters; None: as the prepared corpus, this machine, not at all."""

    passages: int | None = None
    device: str | None = None
    trainers: int = 1
    builders: int = 1
    price: float | None = None  # of a device hour
    efficiency: float | None = None
    dtype: str = "float32"  # of the index on disk
    calibration: Path | None = None


class Source(NamedTuple):
    """The device, and where its numbers are from."""

    device: str
    speeds: Speeds
    memory_bytes: float
    on_processor: bool
    said: str
    notes: list[str]


class Plan(NamedTuple):
    """Everything that is printed."""

    params: Params
    request: Request
    passages: int
    work: Workload
    source: Source
    seconds: Seconds
    asynchronous: Freshness
    synchronous: Freshness
    memory: Memory
    assumptions: list[str]
    notes: list[str]

    def cost(self, way: Freshness) -> float | None:
        """Of the whole pre-training, where a price is given."""
        return None if self.request.price is None else self.request.price * way.device_hours


def make_plan(params: Params, root: Path, request: Request) -> Plan:
    """Reckon everything.

    Raises:
        UserError: a number that makes no sense, an unknown device, or no measurement of this machine.
    """
    _check(request)
    with tempfile.TemporaryDirectory(prefix="realm-lab-plan-") as scratch:
        sample = write_sample(params, root, Path(scratch), SAMPLE_ROWS)
        work = workload(params, sample)
    passages = request.passages or sample.corpus_passages
    if passages is None:
        raise UserError("how many passages? give --passages N, or run `realm-lab prepare` for these parameters")
    source = _source(params, root, request, work, sample)
    settings, trainers, builders = params.pretrain, request.trainers, request.builders
    row_bytes = work.dimension * DTYPES[request.dtype].itemsize
    times = seconds(params, work, source.speeds, passages, trainers, builders, row_bytes)
    interval = settings.refresh.interval_steps
    sentences = settings.batch_size / trainers
    used = memory(
        params,
        work,
        passages,
        sentences,
        on_processor=source.on_processor,
        asynchronous=True,
        dtype=request.dtype,
    )
    return Plan(
        params,
        request,
        passages,
        work,
        source,
        times,
        asynchronous(settings.steps, interval, times, trainers, builders),
        synchronous(settings.steps, interval, times, trainers),
        used,
        _assumptions(source, sample, request),
        [*source.notes, *_warnings(params, request, passages, used, source)],
    )


def _check(request: Request) -> None:
    if request.builders < 1:
        raise UserError(
            f"--builders {request.builders}: give 1 or more; what happens without a builder of its own is the "
            "synchronous column"
        )
    for name in ("trainers", "passages"):
        value = getattr(request, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} {value}: give 1 or more")
    if request.price is not None and request.price < 0:
        raise UserError(f"--price {request.price:g}: give 0 or more")
    if request.dtype not in DTYPES:
        raise UserError(f"--dtype {request.dtype}: choose {', '.join(DTYPES)}")


def _source(params: Params, root: Path, request: Request, work: Workload, sample: Sample) -> Source:
    """The measurement of the device that is meant, else the table."""
    path = request.calibration or default_path(root)
    notes = []
    if request.device is None or request.calibration is not None or path.exists():
        calibration = read_calibration(path)
        if request.device is None:
            limit_threads(params.launch.threads)
            check_device(path, calibration, device_name(pick_device(params.launch.device)))
        if request.device is None or request.device.lower() == calibration.device.lower():
            check_model(path, calibration, model_identity(params, sample.vocabulary_size))
            if request.efficiency is not None:
                raise UserError("--efficiency is for devices of the table; this one is measured: leave it out")
            return _measured(path, calibration)
        notes.append(f"{path} is of {calibration.device}: not used")
    device = find_device(request.device)
    efficiency = ASSUMED_EFFICIENCY if request.efficiency is None else request.efficiency
    precision = params.model.precision
    speeds = table_speeds(device, precision, efficiency, work)
    peak = device.operations(precision) / 1e12
    reached = "assumed" if request.efficiency is None else "as you say (--efficiency)"
    said = f"from the table: {device.source}; {peak:g} Tflop/s in {precision}, {efficiency:.0%} of it {reached}"
    return Source(device.name, speeds, device.memory_bytes, False, said, notes)


def _measured(path: Path, calibration: Calibration) -> Source:
    said = f"measured: {path}, {calibration.date}, host {calibration.host}, torch {calibration.torch}"
    note = version_note(calibration)
    return Source(
        calibration.device,
        measured_speeds(calibration),
        calibration.memory_bytes,
        calibration.device_type == "cpu",
        said,
        [f"{path}: {note}"] if note else [],
    )


def _assumptions(source: Source, sample: Sample, request: Request) -> list[str]:
    found = [
        f"text: {sample.source}",
        "sentences of a step share no passage; the ranks share a batch evenly and their exchange of gradients is free",
        "builders have devices of their own, of the trainers' kind; one generation is built after the other",
        "every trainer device holds and searches the whole index, exactly",
    ]
    if request.builders > 1:
        found.append("several builders share the shards out, as `realm-lab index build --shard I/N` does")
    if source.speeds.source == "table":
        found.append(
            f"search and swap read memory at the table's bandwidth; storing takes {STORE_RATE / 1e9:g} GB/s; no fixed "
            "time in a step; operations count the last layer whole"
        )
    return found


def _warnings(params: Params, request: Request, passages: int, used: Memory, source: Source) -> list[str]:
    found = []
    shards = math.ceil(passages / SHARD_ROWS)
    if request.builders > shards:
        found.append(f"{request.builders} builders, but only {shards} shards of {SHARD_ROWS:,} passages: some are idle")
    if params.pretrain.refresh.policy != "interval":
        found.append(
            f"pretrain.refresh.policy is {params.pretrain.refresh.policy}; planned is a refresh every "
            f"{params.pretrain.refresh.interval_steps} steps (pretrain.refresh.interval_steps)"
        )
    for role, needed in (("a trainer", used.on_trainer), ("a builder", used.on_builder)):
        if needed > source.memory_bytes:
            found.append(
                f"{role} needs {needed / 2**30:.1f} GiB, a device has {source.memory_bytes / 2**30:.1f}: "
                "more --trainers, launch.micro_batch or launch.recompute lower the trainer's part, launch.token_budget "
                "the builder's"
            )
    return found


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain values; seconds, bytes, hours."""
    used = plan.memory
    ways = {}
    for name in ("asynchronous", "synchronous"):
        way: Freshness = getattr(plan, name)
        ways[name] = way._asdict() | {"cost": plan.cost(way)}
    return {
        "device": plan.source.device,
        "source": plan.source.speeds.source,
        "source_text": plan.source.said,
        "passages": plan.passages,
        "trainers": plan.request.trainers,
        "builders": plan.request.builders,
        "model": {**plan.work.shape._asdict(), "projection_size": plan.work.dimension},
        "parameters": plan.work.parameters._asdict(),
        "operations": {"passage": plan.work.passage_operations, "sentence": plan.work.sentence_operations},
        "speeds": plan.source.speeds._asdict(),
        "seconds": plan.seconds._asdict(),
        **ways,
        "memory_bytes": {
            "trainer": used.trainer,
            "searcher": used.searcher,
            "builder": used.builder,
            "trainer_with_searcher": used.on_trainer,
            "builder_total": used.on_builder,
            "generation_on_disk": used.stored,
            "device": plan.source.memory_bytes,
        },
        "price_per_device_hour": plan.request.price,
        "assumptions": plan.assumptions,
        "notes": plan.notes,
    }
