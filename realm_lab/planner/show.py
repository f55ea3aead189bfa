"""What `plan` and `bench` print."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from realm_lab.planner.calibration import Calibration
from realm_lab.planner.plan import Plan

GIB = 2**30
WIDTH = 140  # where no terminal says how wide it is


def show_plan(plan: Plan, console: Console | None = None) -> None:
    """Print a plan: what is known and from where, time, staleness, memory, cost, and what was assumed."""
    console = console or _console()
    settings, source, shape = plan.params.pretrain, plan.source, plan.work.shape
    request = plan.request
    out = console.print
    out(
        f"[bold]{plan.passages:,} passages[/], {plan.work.mean_passage:.0f} wordpieces each, "
        f"vectors of {plan.work.dimension}"
    )
    out(
        f"model: {shape.layers} layers of {shape.hidden_size}, {plan.params.model.precision}; "
        f"{plan.work.parameters.embedder / 1e6:.3g} M parameters in the embedder, "
        f"{plan.work.parameters.reader / 1e6:.3g} M in the reader"
    )
    out(
        f"devices: {request.trainers} to train and search, {request.builders} to build; each {source.device}",
        markup=False,
    )
    out(f"speeds are {source.said}", markup=False)
    out()
    _ways(plan, console)
    out(
        f"[dim]a step of {settings.batch_size} sentences takes {duration(plan.seconds.step)}, of it "
        f"{duration(plan.seconds.step_search)} searching; to hold the asynchronous index at one exact age, without "
        f"waiting: pretrain.refresh.delay_steps={plan.asynchronous.age_lowest}[/]"
    )
    out()
    _memory(plan, console)
    out()
    for line in plan.assumptions:
        out(f"assumed: {line}", markup=False, style="dim")
    for line in plan.notes:
        out(f"note: {line}", markup=False, style="yellow")


def _ways(plan: Plan, console: Console) -> None:
    ways = (plan.asynchronous, plan.synchronous)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", "asynchronous", "synchronous"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    table.add_row("a refresh", *(duration(way.refresh_seconds) for way in ways))
    table.add_row("every", *(f"{way.interval_steps:,} steps" for way in ways))
    table.add_row("age of the index", *(f"{way.age_lowest:,} to {way.age_highest:,} steps" for way in ways))
    table.add_row("  mean", *(f"{way.age_mean:,.1f} steps, {duration(way.age_mean_seconds)}" for way in ways))
    table.add_row("share of time not training", *(f"{way.share_of_time:.1%}" for way in ways))
    table.add_row(f"all {plan.params.pretrain.steps:,} steps", *(duration(3600 * way.hours) for way in ways))
    table.add_row("device hours", *(f"{way.device_hours:,.2f} on {way.devices}" for way in ways))
    if plan.request.price is not None:
        table.add_row(f"cost, at {plan.request.price:g} an hour", *(f"{plan.cost(way):,.2f}" for way in ways))
    console.print(table)


def _memory(plan: Plan, console: Console) -> None:
    used = plan.memory
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("memory of a device")
    table.add_column("", justify="right", no_wrap=True)
    for role, parts in (("trainer", used.trainer), ("searcher", used.searcher), ("builder", used.builder)):
        for name, size in parts.items():
            table.add_row(f"{role}: {name}", gibibytes(size))
    table.add_row("[bold]trainer with searcher[/]", gibibytes(used.on_trainer))
    table.add_row("[bold]builder[/]", gibibytes(used.on_builder))
    table.add_row("there is", gibibytes(plan.source.memory_bytes))
    table.add_row(f"a generation on disk, {plan.request.dtype}", gibibytes(used.stored))
    console.print(table)


def show_calibration(calibration: Calibration, path: Path, console: Console | None = None) -> None:
    """Print what was measured, and where it is kept."""
    console = console or _console()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    peaks = calibration.matrix_gflops_per_second
    for name, peak in peaks.items():
        table.add_row(f"best matrix product, {name}", f"{peak:,.0f} Gflop/s", "")
    table.add_row("reading memory", f"{calibration.read_bytes_per_second / 1e9:,.1f} GB/s", "")
    model = calibration.model
    of_peak = calibration.embed_operations_per_second / 1e9 / peaks[model["precision"]]
    rate = f"{calibration.embed_passages_per_second:,.0f} passages/s"
    together = f"{calibration.embed_passages:,} together; {of_peak:.0%} of the best product, whole layers counted"
    table.add_row("embedding", rate, together)
    for size, taken in zip(calibration.step_sentences, calibration.step_seconds, strict=True):
        table.add_row(f"a training step of {size}", duration(taken), f"{size / taken:,.1f} sentences/s")
    for size, taken in zip(calibration.search_queries, calibration.search_seconds, strict=True):
        searched = f"among {calibration.search_rows:,} vectors of {model['projection_size']}"
        table.add_row(f"exact search of {size}", duration(taken), searched)
    table.add_row("storing a generation", f"{calibration.store_bytes_per_second / 1e6:,.0f} MB/s", "")
    console.print(f"{calibration.device}, torch {calibration.torch}, host {calibration.host}", markup=False)
    console.print(
        f"model: {model['layers']} layers of {model['hidden_size']}, {model['precision']}; {calibration.lengths}",
        markup=False,
    )
    console.print(table)
    console.print(f"written to {path}; `realm-lab plan` reckons from it", markup=False)


def _console() -> Console:
    found = Console(soft_wrap=True)
    return found if found.is_terminal else Console(soft_wrap=True, width=WIDTH)


def duration(seconds: float) -> str:
    """Seconds for people: 0.83 ms, 12.3 s, 4.2 min, 7.5 h, 3.1 days."""
    for factor, unit, limit in (
        (1e3, "ms", 1.0),
        (1.0, "s", 120.0),
        (1 / 60, "min", 7200.0),
        (1 / 3600, "h", 172800.0),
    ):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 86400:,.1f} days"


def gibibytes(size: float) -> str:
    """Bytes for people, from MiB on."""
    return f"{size / GIB:,.2f} GiB" if size >= GIB / 10 else f"{size / 2**20:,.1f} MiB"
