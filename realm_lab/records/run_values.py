"""The numbers of one run, read from the folders of its stages, under the names of `results.csv`.

This module does not import pandas, so that `status` and searches read single numbers quickly.
"""

from __future__ import annotations

from collections.abc import Mapping

from realm_lab.records.metric_log import RESERVED, scalars
from realm_lab.records.metrics import METRICS
from realm_lab.records.run import StageRun


def run_values(stages: Mapping[str, StageRun]) -> dict[str, float]:
    """Return all numbers of a complete run.

    They are the results of its last stage (nested names joined by dots), the mean age of the index over pre-training,
    and the resources that the run used; if the last stage is not the evaluation, also the last values of that stage's
    curves. UserError: a file of a stage is not the one that was written.
    """
    for stage in stages.values():
        stage.check()
    last = [*stages.values()][-1]
    values = {} if last.stage == "evaluate" else last_values(last)
    values |= dict(scalars(last.results()))
    values |= {m.name: values[m.key] for m in METRICS.values() if m.source == "results" and m.key in values}
    if "pretrain" in stages and (age := last_values(stages["pretrain"]).get("index_staleness_steps_mean")) is not None:
        values["index_staleness_steps"] = age  # the curve is the mean over all steps so far: its last value counts
    statuses = {name: stage.status() for name, stage in stages.items()}
    values["wall_seconds"] = sum(status.wall_seconds for status in statuses.values())
    values["device_hours"] = sum(map(device_seconds, stages.values())) / 3600
    if flop := sum(status.training_flop for status in statuses.values()):
        values["training_teraflop"] = flop / 1e12
    if memory := max(status.peak_memory_bytes for status in statuses.values()):
        values["peak_memory_gibibytes"] = memory / 2**30
    return values


def device_seconds(stage: StageRun) -> float:
    """Return the time of a stage times the number of processes that shared it, each with a separate device."""
    return stage.status().wall_seconds * int(stage.environment().get("processes") or 1)


def last_values(stage: StageRun) -> dict[str, float]:
    """Return the last finite value of each curve of a stage."""
    return {name: value for row in stage.metrics.rows() for name, value in scalars(row) if name not in RESERVED}
