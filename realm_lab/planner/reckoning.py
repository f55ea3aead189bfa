"""The arithmetic of a plan: speeds of a device, then seconds, staleness and cost."""

from __future__ import annotations

import math
from typing import NamedTuple

from realm_lab.errors import UserError
from realm_lab.params.parameters import Params
from realm_lab.planner.calibration import Calibration
from realm_lab.planner.devices import Device
from realm_lab.planner.workload import Workload
from realm_lab.retrieval.embeddings import SHARD_ROWS

ASSUMED_EFFICIENCY = 0.35  # of a table's peak, by encoders of BERT-base's size; narrow ones reach less
STORE_RATE = 5e8  # bytes a second, where no disk was measured
PREPARE_READINGS = 10.0  # of the float32 index, to make it ready for the search
HOUR = 3600.0


class Speeds(NamedTuple):
    """What a device does in a second, and where each number is from: "measured" or "table"."""

    source: str
    embed_operations: float
    step_operations: float
    step_fixed_seconds: float
    search_row_seconds: float
    search_row_query_seconds: float
    searched_already: int  # passages whose search is part of step_fixed_seconds
    prepare_row_seconds: float
    store_bytes: float


class Seconds(NamedTuple):
    """The times of which a plan is made."""

    step: float
    step_search: float  # of it, searching
    build: float  # of a generation, by the builders
    inline: float  # of a refresh by the trainers themselves
    swap: float  # in which a trainer makes a new index ready for the search


class Freshness(NamedTuple):
    """What a way of refreshing leads to. `age`: steps between the weights behind the index and those that search it."""

    refresh_seconds: float
    interval_steps: int  # between two generations
    age_lowest: int
    age_mean: float
    age_highest: int
    age_mean_seconds: float
    share_of_time: float  # in which trainers do not train
    hours: float  # of the whole pre-training
    devices: int
    device_hours: float


def measured_speeds(calibration: Calibration) -> Speeds:
    """Speeds of a device that was measured."""
    return Speeds(
        "measured",
        calibration.embed_operations_per_second,
        calibration.step_operations_per_second,
        calibration.step_fixed_seconds,
        calibration.search_row_seconds,
        calibration.search_row_query_seconds,
        calibration.step_passages,
        calibration.prepare_row_seconds,
        calibration.store_bytes_per_second,
    )


def table_speeds(device: Device, precision: str, efficiency: float, work: Workload) -> Speeds:
    """Speeds of a device of the table: a share of its peak, and its bandwidth for all that only reads."""
    if not 0 < efficiency <= 1:
        raise UserError(f"--efficiency {efficiency:g}: give a share of the peak above 0, at most 1")
    rate = efficiency * device.operations(precision)
    scored = efficiency * (device.matrix_operations["bfloat16"] or device.operations("float32"))
    return Speeds(
        "table",
        rate,
        rate,
        0.0,
        2.0 * work.dimension / device.bandwidth_bytes,
        2.0 * work.dimension / scored,
        0,
        PREPARE_READINGS * 4.0 * work.dimension / device.bandwidth_bytes,
        STORE_RATE,
    )


def largest_part(passages: int, builders: int) -> int:
    """Passages of the builder that has most; whole shards are shared out, as `index build --shard` does."""
    shards = math.ceil(passages / SHARD_ROWS)
    return min(passages, math.ceil(shards / builders) * SHARD_ROWS)


def seconds(
    params: Params, work: Workload, speeds: Speeds, passages: int, trainers: int, builders: int, row_bytes: int
) -> Seconds:
    """Seconds of a step and of a refresh."""
    sentences = params.pretrain.batch_size / trainers
    search = passages * (speeds.search_row_seconds + sentences * speeds.search_row_query_seconds)
    if speeds.searched_already:
        extra = max(0, passages - speeds.searched_already)
        added = extra * (speeds.search_row_seconds + sentences * speeds.search_row_query_seconds)
    else:
        added = search
    step = speeds.step_fixed_seconds + sentences * work.sentence_operations / speeds.step_operations + added
    part = largest_part(passages, builders)
    build = part * (work.passage_operations / speeds.embed_operations + row_bytes / speeds.store_bytes)
    swap = passages * speeds.prepare_row_seconds
    inline = passages / trainers * work.passage_operations / speeds.embed_operations + swap
    return Seconds(step, search, build, inline, swap)


def asynchronous(steps: int, interval_steps: int, times: Seconds, trainers: int, builders: int) -> Freshness:
    """Builders on devices of their own: the trainer goes on, and takes a generation when it is there.

    One generation after the other: the next begins `interval_steps` after the last, or when the last is there.
    """
    late = math.ceil(times.build / times.step)
    every = max(interval_steps, late, 1)
    refreshes = max(0, steps - 1) // every
    hours = (steps * times.step + refreshes * times.swap + times.inline) / HOUR
    share = times.swap / (times.swap + every * times.step)
    return _freshness(times.build, every, late, share, hours, times, trainers + builders)


def synchronous(steps: int, interval_steps: int, times: Seconds, trainers: int) -> Freshness:
    """The trainers stop and embed the passages between them."""
    refreshes = max(0, steps - 1) // interval_steps
    hours = (steps * times.step + refreshes * times.inline + times.inline) / HOUR
    share = times.inline / (times.inline + interval_steps * times.step)
    return _freshness(times.inline, interval_steps, 0, share, hours, times, trainers)


def _freshness(
    refresh: float, every: int, lowest: int, share: float, hours: float, times: Seconds, devices: int
) -> Freshness:
    highest = lowest + every - 1
    mean = (lowest + highest) / 2
    return Freshness(refresh, every, lowest, mean, highest, mean * times.step, share, hours, devices, hours * devices)
