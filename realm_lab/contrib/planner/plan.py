"""`realm-lab plan`: estimate time, staleness, memory and cost from parameters, a corpus size and devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from realm_lab.contrib.planner.bench import REMEDY, Speeds, default_path, model_identity, read_calibration
from realm_lab.contrib.planner.devices import Device, find_device
from realm_lab.contrib.planner.workload import Text, Workload, read_text, workload
from realm_lab.engine.core.durations import duration
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.training.flops import encoder_operations
from realm_lab.errors import UserError

HOUR, GIB = 3600.0, 2**30
EFFICIENCY = 0.35  # share of a table's peak that encoders of BERT-base's size reach; narrow ones reach less
ASSUMED = [
    "sentences of a step share no passage; the ranks share a batch evenly and their exchange of gradients is free",
    "builders have separate devices of the trainers' kind; one index after the other, taken into use at once",
    "every trainer device holds and searches the whole index, exactly; a refresh, if any, every refresh.interval_steps",
    "a run's other stages read queries and passages of mean length; evaluating all questions counts as 1,000",
    "the BM25 of an evaluation is not counted; at a million passages it takes most of the time",
]
OF_TABLE = ["search reads memory at the table's bandwidth; a step has no fixed cost; the last layer is counted in full"]


class Request(NamedTuple):
    """Settings besides the parameters. None: passages of the prepared corpus, this machine, no cost."""

    passages: int | None = None
    device: str | None = None
    trainers: int = 1
    builders: int = 1
    price: float | None = None  # of a device hour


class Source(NamedTuple):
    """The device, and the source of its numbers."""

    kind: str  # "measured" or "table"
    device: str
    speeds: Speeds
    memory_bytes: float
    text: str  # for people


class Seconds(NamedTuple):
    """Durations that a plan is computed from."""

    step: float
    step_search: float  # of the search in a step
    build: float  # of a new index, by the builders
    inline: float  # of a refresh by the trainers themselves


class Freshness(NamedTuple):
    """Time, staleness and cost of a way of refreshing. `age`: of the index, in steps since its weights were current."""

    refresh_seconds: float
    interval_steps: int  # between two indexes
    age_lowest: int
    age_mean: float
    age_highest: int
    age_mean_seconds: float
    share_of_time: float  # in which trainers refresh instead of training
    hours: float  # of the whole pre-training
    devices: int
    device_hours: float
    cost: float | None


def make_plan(params: Params, root: Path, request: Request) -> dict[str, Any]:
    """Return all estimates of a plan as plain values: seconds, bytes, hours.

    UserError: an unknown device, no measurement of this machine, or no corpus and no --passages.
    """
    text = read_text(params, root)
    work = workload(params, text)
    if request.device is not None:
        source = _from_table(find_device(request.device), params, request, work)
    else:
        source = _measured(params, root, text)
    passages = request.passages or text.passages
    if passages is None:
        raise UserError("how many passages? give --passages N, or run `realm-lab prepare` for these parameters")
    settings = params.pretrain
    times = seconds(params, work, source.speeds, passages, request)
    is_refreshed = settings.refresh.policy.name != "never" and settings.train_document_tower
    interval = settings.refresh.interval_steps if is_refreshed else settings.steps
    ways = [freshness(settings.steps, interval, times, request, one) for one in (True, False)]
    sizes = work._asdict()
    plan: dict[str, Any] = {
        "device": source.device,
        "source": source.kind,
        "source_text": source.text,
        **{name: getattr(request, name) for name in ("trainers", "builders", "price")},
        "passages": passages,
        "steps": settings.steps,
        "model": sizes.pop("shape")._asdict() | sizes,
        "speeds": source.speeds._asdict(),
        "seconds": times._asdict(),
        "asynchronous": ways[0]._asdict(),
        "synchronous": ways[1]._asdict(),
        "memory_bytes": memory(params, work, passages) | {"device": source.memory_bytes},
    }
    hours = stage_hours(params, work, source.speeds, passages) | {"pretrain": ways[1].device_hours}
    plan |= {"stage_device_hours": hours, "seeds": len(params.seeds)}
    used = plan["memory_bytes"]
    needs, has = (f"{size / GIB:,.1f} GiB" for size in (used["model"] + used["index"], used["device"]))
    note = f"a trainer needs {needs} before activations, a device has {has}: plan for a device with more memory"
    fits = used["model"] + used["index"] <= used["device"]
    assumptions = [f"text: {text.source}", *ASSUMED, *(OF_TABLE if source.kind == "table" else ())]
    return plan | {"assumptions": assumptions, "notes": [] if fits else [note]}


def memory(params: Params, work: Workload, passages: int) -> dict[str, float]:
    """Return bytes that a trainer device holds without activations: weights with gradients and the two moments of
    AdamW, and the index, float32 with the search's bfloat16 copy."""
    counted = work.reader_parameters + work.embedder_parameters
    weights = (6 if params.model.precision == "bfloat16" else 4) * counted
    return {"model": weights + 3 * 4 * work.trained_parameters, "index": 6.0 * passages * work.dimension}


def _measured(params: Params, root: Path, text: Text) -> Source:
    """Read the speeds that were measured on this machine, or on one that shares this folder. UserError: there are none,
    or they were measured with another model."""
    path = default_path(root)
    found = read_calibration(path)
    for name, wanted in model_identity(params, text.vocabulary_size).items():
        if found.model.get(name) != wanted:
            difference = f"measured with {name} {found.model.get(name)}, the parameters say {wanted}"
            raise UserError(difference, f"{REMEDY} with the same parameters", path=path)
    about = f"measured: {path}, {found.date}, host {found.host}, torch {found.torch}"
    return Source("measured", found.device, found.speeds, found.memory_bytes, about)


def _from_table(device: Device, params: Params, request: Request, work: Workload) -> Source:
    """Return speeds that are a share of the device's peak; a search also reads the index at the device's bandwidth."""
    precision, share = params.model.precision, EFFICIENCY
    speed = share * device.operations(precision)
    scoring = share * (device.matrix_operations["bfloat16"] or device.operations("float32"))
    # the bfloat16 rows are read once for all queries of a batch
    reading = 2.0 * work.dimension / device.bandwidth_bytes / (params.pretrain.batch_size / request.trainers)
    speeds = Speeds(speed, speed, 0.0, reading + 2.0 * work.dimension / scoring)
    peak = f"{device.operations(precision) / 1e12:g} Tflop/s in {precision}, {share:.0%} of it assumed"
    return Source("table", device.name, speeds, device.memory_bytes, f"from the table: {device.source}; {peak}")


def seconds(params: Params, work: Workload, speeds: Speeds, passages: int, request: Request) -> Seconds:
    """Return seconds of a step and of a refresh."""
    sentences = params.pretrain.batch_size / request.trainers
    search = passages * sentences * speeds.search_row_query_seconds
    step = speeds.update_seconds + sentences * work.sentence_operations / speeds.train_operations + search
    embedding = passages * work.passage_operations / speeds.embed_operations
    return Seconds(step, search, embedding / request.builders, embedding / request.trainers)


def freshness(steps: int, interval_steps: int, times: Seconds, request: Request, is_asynchronous: bool) -> Freshness:
    """Plan a refresh at a fixed interval of steps.

    `is_asynchronous`: builders on separate devices make one index after the other while the trainers continue.
    Otherwise the trainers stop and share the passages.
    """
    late = math.ceil(times.build / times.step) if is_asynchronous else 0
    every = max(interval_steps, late, 1)
    refresh, stop = (times.build, 0.0) if is_asynchronous else (times.inline, times.inline)
    devices = request.trainers + (request.builders if is_asynchronous else 0)
    mean = late + (every - 1) / 2
    hours = (steps * times.step + max(0, steps - 1) // every * stop + times.inline) / HOUR  # with the first index
    share = stop / (stop + every * times.step) if every < steps else 0.0
    cost = None if request.price is None else request.price * hours * devices
    ages = (late, mean, late + every - 1, mean * times.step)
    return Freshness(refresh, every, *ages, share, hours, devices, hours * devices, cost)


def stage_hours(params: Params, work: Workload, speeds: Speeds, passages: int) -> dict[str, float]:
    """Return device hours of each stage of a run except preparing, which needs no device, and pre-training (0 here).
    A step of training counts as three forward passes, two of them for the backward pass."""
    joined, query = (float(encoder_operations(work.shape, np.array(length))) for length in (work.joined, work.query))
    reader, embedder = params.warm_start.reader, params.warm_start.embedder
    tuning, measured = params.finetune, params.evaluate
    attempts = embedder.attempts if embedder.attempts > 1 else 0  # a quarter of the steps each
    contrasted = embedder.steps + attempts * math.ceil(embedder.steps / 4)

    def training(steps: int, batch_size: int, operations: float) -> float:
        return steps * (speeds.update_seconds + batch_size * operations / speeds.train_operations)

    warm_start = training(reader.steps, reader.batch_size, 3 * joined)
    warm_start += training(contrasted, embedder.batch_size, 3 * (query + work.passage_operations))
    reading = tuning.candidates * joined * 3
    finetune = training(tuning.steps, tuning.batch_size, reading + query * (3 if tuning.train_query_tower else 1))
    finetune += passages * tuning.steps * tuning.batch_size * speeds.search_row_query_seconds
    finetune += passages * work.passage_operations / speeds.embed_operations  # its index, which evaluation uses too
    read = 2 * measured.cloze_sentences * (params.pretrain.candidates + 1)  # before and after pre-training
    read += (measured.questions or 1000) * tuning.candidates
    evaluate = read * joined / speeds.embed_operations
    found = {"warm_start": warm_start, "pretrain": 0.0, "finetune": finetune, "evaluate": evaluate}
    return {stage: spent / HOUR for stage, spent in found.items()}


def show_plan(plan: dict[str, Any]) -> None:
    """Print a plan as tables: stages with their cost, both ways of refreshing, memory; then the assumptions."""
    out, model, used = Console(soft_wrap=True).print, plan["model"], plan["memory_bytes"]
    out(f"{plan['passages']:,} passages, {model['passage']:.0f} wordpieces each, vectors of {model['dimension']}")
    sizes = f"{model['embedder_parameters']:,} parameters in the embedder, {model['reader_parameters']:,} in the reader"
    out(f"model: {model['layers']} layers of {model['hidden_size']}; {sizes}")
    out(f"devices: {plan['trainers']} to train and search, {plan['builders']} to build; each {plan['device']}")
    out(f"speeds are {plan['source_text']}\n", markup=False)
    spent, price, seeds = plan["stage_device_hours"], plan["price"], plan["seeds"]
    total = {"one run": sum(spent.values())} | ({f"{seeds} seeds": seeds * sum(spent.values())} if seeds > 1 else {})
    stages = _table("device time, refreshed synchronously", "", *["cost"] * (price is not None))
    for name, hours in (spent | total).items():
        costs = [] if price is None else [f"{hours * price:,.2f}"]
        stages.add_row(name.replace("_", " "), _device_time(hours), *costs, style="bold" * (name in total))
    out(stages)
    out("a study's variants: sweep NAME --dry-run\n", style="dim")
    ways = [Freshness(**plan[way]) for way in ("asynchronous", "synchronous")]
    refresh = _table("refreshing", "asynchronous", "synchronous")
    for title, shown in _FRESHNESS.items():
        refresh.add_row(title, *map(shown, ways))
    if price is not None:
        refresh.add_row("cost", *(f"{way.cost:,.2f}" for way in ways))
    times = plan["seconds"]
    out(refresh)
    out(f"a step takes {duration(times['step'])}, of it {duration(times['step_search'])} searching")
    out(f"to hold the asynchronous index at one exact age: pretrain.refresh.delay_steps={ways[0].age_lowest}\n")
    memory_of = _table("memory per device, without activations", "GiB")
    for name, size in used.items():
        memory_of.add_row("available" if name == "device" else name, f"{size / GIB:,.2f}")
    out(memory_of)
    out()
    for line in plan["assumptions"]:
        out(f"assumed: {line}", markup=False, style="dim")
    for line in plan["notes"]:
        out(f"note: {line}", markup=False, style="yellow")


def _device_time(hours: float) -> str:
    """Format device hours: below 10 as a duration, else in whole hours."""
    return duration(hours * HOUR) if hours < 10 else f"{hours:,.0f} h"


def _table(title: str, *columns: str) -> Table:
    """Return an empty table with columns aligned to the right."""
    made = Table(title, box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right")
    return made


_FRESHNESS: dict[str, Callable[[Freshness], str]] = {
    "time of a refresh": lambda way: duration(way.refresh_seconds),
    "steps between two indexes": lambda way: f"{way.interval_steps:,}",
    "age of the index, steps": lambda way: f"{way.age_lowest:,} to {way.age_highest:,}",
    "its mean": lambda way: f"{way.age_mean:,.1f}, {duration(way.age_mean_seconds)}",
    "share of time spent refreshing": lambda way: f"{way.share_of_time:.1%}",
    "pre-training takes": lambda way: duration(way.hours * HOUR),
    "devices": lambda way: f"{way.devices}",
    "device time": lambda way: _device_time(way.device_hours),
}
"""Rows of the table that compares the two ways of refreshing."""
