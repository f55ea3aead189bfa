"""`realm-lab plan`: from parameters, a corpus size and devices to refresh time, staleness, memory and cost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch

from realm_lab.core.process import limit_threads, pick_device
from realm_lab.errors import UserError
from realm_lab.params.parameters import Params
from realm_lab.planner.bench import REMEDY, Speeds, default_path, model_identity, read_calibration
from realm_lab.planner.machine import Device, device_name, find_device
from realm_lab.planner.memory import Memory, memory
from realm_lab.planner.workload import Text, Workload, read_text, workload
from realm_lab.retrieval.embeddings import DTYPES, SHARD_ROWS

ASSUMED_EFFICIENCY = 0.35  # of a table's peak, by encoders of BERT-base's size; narrow ones reach less
STORE_RATE = 5e8  # bytes a second, where no disk was measured
PREPARE_READINGS = 10.0  # of the float32 index, to make it ready for the search
HOUR = 3600.0


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

    kind: str  # "measured" or "table"
    device: str
    speeds: Speeds
    memory_bytes: float
    on_processor: bool
    text: str  # for people
    notes: list[str]


class Seconds(NamedTuple):
    """The times of which a plan is made."""

    step: float
    step_search: float  # of it, searching
    build: float  # of a new index, by the builders
    inline: float  # of a refresh by the trainers themselves
    swap: float  # in which a trainer makes a new index ready for the search


class Freshness(NamedTuple):
    """What a way of refreshing leads to. `age`: steps between the weights behind the index and those that search it."""

    refresh_seconds: float
    interval_steps: int  # between two indexes
    age_lowest: int
    age_mean: float
    age_highest: int
    age_mean_seconds: float
    share_of_time: float  # in which trainers do not train
    hours: float  # of the whole pre-training
    devices: int
    device_hours: float
    cost: float | None


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


def make_plan(params: Params, root: Path, request: Request) -> Plan:
    """Estimate everything.

    Raises:
        UserError: a number that makes no sense, an unknown device, or no measurement of this machine.
    """
    _check(request)
    text = read_text(params, root)
    work = workload(params, text)
    source = _source(params, root, request, work, text)
    passages = request.passages or text.passages
    if passages is None:
        raise UserError("how many passages? give --passages N, or run `realm-lab prepare` for these parameters")
    times = seconds(params, work, source.speeds, passages, request)
    on_each = params.pretrain.batch_size / request.trainers
    used = memory(params, work, passages, on_each, on_processor=source.on_processor, dtype=request.dtype)
    steps, interval = params.pretrain.steps, params.pretrain.refresh.interval_steps
    ways = asynchronous(steps, interval, times, request), synchronous(steps, interval, times, request)
    notes = [*source.notes, *_warnings(params, request, passages, used, source)]
    return Plan(params, request, passages, work, source, times, *ways, used, _assumptions(source, text), notes)


def _check(request: Request) -> None:
    for name in ("trainers", "builders", "passages"):
        value = getattr(request, name)
        if value is not None and value < 1:
            remedy = "; the synchronous column is without builders" if name == "builders" else ""
            raise UserError(f"--{name} {value}: give 1 or more{remedy}")
    if request.price is not None and request.price < 0:
        raise UserError(f"--price {request.price:g}: give 0 or more")
    if request.efficiency is not None and not 0 < request.efficiency <= 1:
        raise UserError(f"--efficiency {request.efficiency:g}: give a share of the peak above 0, at most 1")
    if request.dtype not in DTYPES:
        raise UserError(f"--dtype {request.dtype}: choose {', '.join(DTYPES)}")


def _source(params: Params, root: Path, request: Request, work: Workload, text: Text) -> Source:
    """The measurement of the device that is meant, else the table."""
    path = request.calibration or default_path(root)
    notes = []
    if request.device is None or request.calibration is not None or path.exists():
        found = read_calibration(path)
        if request.device is None:
            limit_threads(params.launch.threads)
            here = device_name(pick_device(params.launch.device))
            if found.device != here:
                remedy = f'{REMEDY} here, or plan for that one: --device "{found.device}"'
                raise UserError(f"{path}: measured on {found.device} (host {found.host}), this is {here}; {remedy}")
        if request.device is None or request.device.lower() == found.device.lower():
            for name, wanted in model_identity(params, text.vocabulary_size).items():
                if found.model.get(name) != wanted:
                    difference = f"measured with {name} {found.model.get(name)}, the parameters say {wanted}"
                    raise UserError(f"{path}: {difference}; {REMEDY} with the same parameters")
            if request.efficiency is not None:
                raise UserError("--efficiency is for devices of the table; this one is measured: leave it out")
            if found.torch != torch.__version__:
                notes = [f"{path}: measured with torch {found.torch}, this is {torch.__version__}; {REMEDY} again"]
            about = f"measured: {path}, {found.date}, host {found.host}, torch {found.torch}"
            is_cpu = found.device_type == "cpu"
            return Source("measured", found.device, found.speeds, found.memory_bytes, is_cpu, about, notes)
        notes.append(f"{path} is of {found.device}: not used")
    device = find_device(request.device)
    efficiency = ASSUMED_EFFICIENCY if request.efficiency is None else request.efficiency
    precision = params.model.precision
    reached = "assumed" if request.efficiency is None else "as you say (--efficiency)"
    peak = f"{device.operations(precision) / 1e12:g} Tflop/s in {precision}, {efficiency:.0%} of it {reached}"
    speeds = table_speeds(device, precision, efficiency, work)
    about = f"from the table: {device.source}; {peak}"
    return Source("table", device.name, speeds, device.memory_bytes, False, about, notes)


def table_speeds(device: Device, precision: str, efficiency: float, work: Workload) -> Speeds:
    """Speeds of a device of the table: a share of its peak, and its bandwidth for all that only reads."""
    speed = efficiency * device.operations(precision)
    scoring = efficiency * (device.matrix_operations["bfloat16"] or device.operations("float32"))
    row = 2.0 * work.dimension / device.bandwidth_bytes
    prepare = PREPARE_READINGS * 4.0 * work.dimension / device.bandwidth_bytes
    return Speeds(speed, speed, 0.0, row, 2.0 * work.dimension / scoring, prepare, STORE_RATE)


def seconds(params: Params, work: Workload, speeds: Speeds, passages: int, request: Request) -> Seconds:
    """Seconds of a step and of a refresh."""
    sentences = params.pretrain.batch_size / request.trainers
    search = passages * (speeds.search_row_seconds + sentences * speeds.search_row_query_seconds)
    step = speeds.update_seconds + sentences * work.sentence_operations / speeds.train_operations + search
    shards = math.ceil(passages / SHARD_ROWS)  # whole shards are shared out among the builders
    part = min(passages, math.ceil(shards / request.builders) * SHARD_ROWS)
    row_bytes = work.dimension * DTYPES[request.dtype].itemsize
    build = part * (work.passage_operations / speeds.embed_operations + row_bytes / speeds.store_bytes)
    swap = passages * speeds.prepare_row_seconds
    inline = passages / request.trainers * work.passage_operations / speeds.embed_operations + swap
    return Seconds(step, search, build, inline, swap)


def asynchronous(steps: int, interval_steps: int, times: Seconds, request: Request) -> Freshness:
    """Builders on devices of their own: the trainer goes on, and takes an index when it is there.

    One index after the other: the next begins `interval_steps` after the last, or when the last is there.
    """
    late = math.ceil(times.build / times.step)
    every = max(interval_steps, late, 1)
    return _freshness(steps, every, late, times.build, times.swap, times, request.trainers + request.builders, request)


def synchronous(steps: int, interval_steps: int, times: Seconds, request: Request) -> Freshness:
    """The trainers stop and embed the passages between them."""
    return _freshness(steps, interval_steps, 0, times.inline, times.inline, times, request.trainers, request)


def _freshness(
    steps: int, every: int, late: int, refresh: float, stop: float, times: Seconds, devices: int, request: Request
) -> Freshness:
    """A refresh every so many steps, searched `late` steps after its weights, that stops the trainers for `stop` s."""
    mean = late + (every - 1) / 2
    hours = (steps * times.step + max(0, steps - 1) // every * stop + times.inline) / HOUR  # and the first index
    share = stop / (stop + every * times.step)
    cost = None if request.price is None else request.price * hours * devices
    ages = (late, mean, late + every - 1, mean * times.step)
    return Freshness(refresh, every, *ages, share, hours, devices, hours * devices, cost)


def _assumptions(source: Source, text: Text) -> list[str]:
    found = [
        f"text: {text.source}",
        "sentences of a step share no passage; the ranks share a batch evenly and their exchange of gradients is free",
        "builders have devices of their own, of the trainers' kind, and share whole shards; one index after the other",
        "every trainer device holds and searches the whole index, exactly",
    ]
    if source.kind == "table":
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
    refresh = params.pretrain.refresh
    if refresh.policy != "interval":
        every = f"a refresh every {refresh.interval_steps} steps (pretrain.refresh.interval_steps)"
        found.append(f"pretrain.refresh.policy is {refresh.policy}; planned is {every}")
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
    used, work, request = plan.memory, plan.work._asdict(), plan.request
    totals = {"trainer_with_searcher": used.on_trainer, "builder_total": used.on_builder}
    return {
        "device": plan.source.device,
        "source": plan.source.kind,
        "source_text": plan.source.text,
        **{name: getattr(request, name) for name in ("trainers", "builders", "price")},
        "passages": plan.passages,
        "model": work.pop("shape")._asdict() | work,
        "speeds": plan.source.speeds._asdict(),
        "seconds": plan.seconds._asdict(),
        "asynchronous": plan.asynchronous._asdict(),
        "synchronous": plan.synchronous._asdict(),
        "memory_bytes": used._asdict() | totals | {"device": plan.source.memory_bytes},
        "assumptions": plan.assumptions,
        "notes": plan.notes,
    }
