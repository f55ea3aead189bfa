"""What `plan` and `bench` print."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from realm_lab.planner.bench import Calibration
from realm_lab.planner.plan import Plan

WIDTH = 140  # where no terminal says how wide it is


def show_plan(plan: Plan, console: Console | None = None) -> None:
    """Print a plan: what is known and from where, time, staleness, memory, cost, and what was assumed."""
    console = console or _console()
    work, request, out = plan.work, plan.request, (console or _console()).print
    out(f"[bold]{plan.passages:,} passages[/], {work.passage:.0f} wordpieces each, vectors of {work.dimension}")
    sizes = f"{work.embedder_parameters / 1e6:.3g} M parameters in the embedder, {work.reader_parameters / 1e6:.3g} M"
    model = f"{work.shape.layers} layers of {work.shape.hidden_size}, {plan.params.model.precision}"
    out(f"model: {model}; {sizes} in the reader")
    out(f"devices: {request.trainers} to train and search, {request.builders} to build; each {plan.source.device}")
    out(f"speeds are {plan.source.text}\n", markup=False)
    ways = (plan.asynchronous, plan.synchronous)
    table = Table("", "asynchronous", "synchronous", box=None, pad_edge=False, header_style="dim")
    table.add_row("a refresh", *(duration(way.refresh_seconds) for way in ways))
    table.add_row("every", *(f"{way.interval_steps:,} steps" for way in ways))
    table.add_row("age of the index", *(f"{way.age_lowest:,} to {way.age_highest:,} steps" for way in ways))
    table.add_row("  mean", *(f"{way.age_mean:,.1f} steps, {duration(way.age_mean_seconds)}" for way in ways))
    table.add_row("share of time not training", *(f"{way.share_of_time:.1%}" for way in ways))
    table.add_row(f"all {plan.params.pretrain.steps:,} steps", *(duration(3600 * way.hours) for way in ways))
    table.add_row("device hours", *(f"{way.device_hours:,.2f} on {way.devices}" for way in ways))
    if request.price is not None:
        table.add_row(f"cost, at {request.price:g} an hour", *(f"{way.cost:,.2f}" for way in ways))
    out(table)
    step = f"a step of {plan.params.pretrain.batch_size} sentences takes {duration(plan.seconds.step)}"
    out(
        f"[dim]{step}, of it {duration(plan.seconds.step_search)} searching; to hold the asynchronous index at one "
        f"exact age, without waiting: pretrain.refresh.delay_steps={plan.asynchronous.age_lowest}[/]\n"
    )
    used = plan.memory
    table = Table("memory of a device", "", box=None, pad_edge=False, header_style="dim")
    for role, parts in (("trainer", used.trainer), ("searcher", used.searcher), ("builder", used.builder)):
        for name, size in parts.items():
            table.add_row(f"{role}: {name}", gibibytes(size))
    table.add_row("[bold]trainer with searcher[/]", gibibytes(used.on_trainer))
    table.add_row("[bold]builder[/]", gibibytes(used.on_builder))
    table.add_row("there is", gibibytes(plan.source.memory_bytes))
    table.add_row(f"the embeddings on disk, {request.dtype}", gibibytes(used.stored))
    out(table)
    for line in plan.assumptions:
        out(f"assumed: {line}", markup=False, style="dim")
    for line in plan.notes:
        out(f"note: {line}", markup=False, style="yellow")


def show_calibration(calibration: Calibration, path: Path, console: Console | None = None) -> None:
    """Print what was measured, and where it is kept."""
    console = console or _console()
    speeds, model = calibration.speeds, calibration.model
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("embedding", f"{speeds.embed_operations / 1e9:,.0f} Gflop/s, whole layers counted")
    table.add_row("training", f"{speeds.train_operations / 1e9:,.0f} Gflop/s, the backward pass included")
    table.add_row("an update of the weights", duration(speeds.update_seconds))
    query = speeds.search_row_seconds + speeds.search_row_query_seconds
    table.add_row("exact search of a query among 1,000,000 vectors", duration(1e6 * query))
    table.add_row("storing an index", f"{speeds.store_bytes / 1e6:,.0f} MB/s")
    console.print(f"{calibration.device}, torch {calibration.torch}, host {calibration.host}", markup=False)
    about = f"{model['layers']} layers of {model['hidden_size']}, {model['precision']}; {calibration.lengths}"
    console.print(f"model: {about}", markup=False)
    console.print(table)
    console.print(f"written to {path}; `realm-lab plan` uses it", markup=False)


def _console() -> Console:
    found = Console(soft_wrap=True)
    return found if found.is_terminal else Console(soft_wrap=True, width=WIDTH)


def duration(seconds: float) -> str:
    """Seconds for people: 0.83 ms, 12.3 s, 4.2 min, 7.5 h, 3.1 days."""
    units = ((1e3, "ms", 1.0), (1.0, "s", 120.0), (1 / 60, "min", 7200.0), (1 / 3600, "h", 172800.0))
    for factor, unit, limit in units:
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 86400:,.1f} days"


def gibibytes(size: float) -> str:
    """Bytes for people, from MiB on."""
    return f"{size / 2**30:,.2f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:,.1f} MiB"
