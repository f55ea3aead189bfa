"""The chapters of tables in the report of a study: results, all else equal and at each cell's best; cost; the grid."""

from __future__ import annotations

from typing import Any

import pandas as pd

from realm_lab.params.load import show
from realm_lab.reporting.document import NOTHING, Block, Section, Table, Text, number, show_interval, signed
from realm_lab.reporting.overlap_table import overlap_table
from realm_lab.reporting.results_sections import bm25_values
from realm_lab.reporting.study_comparison import CellResult, MetricResult
from realm_lab.reporting.study_contents import StudyContents
from realm_lab.reporting.study_figures import compute_figure, compute_of, compute_table
from realm_lab.reporting.table import Collection, Run, Summary, coverage_table, summarise
from realm_lab.reporting.tuning import Tuned, chosen_values, tuned_blocks
from realm_lab.tracking.study_record import StudyRecord

STAGES = ("warm_start", "pretrain", "finetune", "evaluate")
STATISTICS_NOTE = (
    "Δ: mean over seeds of the paired difference from the baseline, with Student's 95 % interval, which covers what it "
    "says for normal differences and too little where seeds fail now and then. p: exact sign-flip test over the seeds, "
    "Holm-corrected over the cells of this metric; beside it the smallest p that this many seeds and cells could have "
    "given. Examples: bootstrap over questions with the seed as block; it speaks of other questions, not other seeds."
)


def results_blocks(contents: StudyContents) -> list[Block]:
    """A table for each metric, the baseline first, and exact match by overlap with training."""
    if not any(result.cells[0].values for result in contents.results):
        return [Text("No numbers yet: no run of the baseline has a complete evaluate stage.", missing=True)]
    blocks: list[Block] = []
    bm25 = bm25_values(contents.rows)
    for result in contents.results:
        rows = [_row(cell, result) for cell in result.cells]
        if reference := summarise(bm25.get(result.metric, {}).values()):
            rows.append(
                {"cell": "BM25, the same passages", **_spread(reference, _digits(result)), "finding": "reference"}
            )
        notes = [STATISTICS_NOTE] if not blocks else []
        papers = {cell.paper.source for cell in result.cells if cell.paper}
        if any("paper" in row for row in rows):
            notes.append(f"Paper: {'; '.join(sorted(papers))}. Another data set: compare directions, not numbers.")
        if result.agreement:
            found = result.agreement
            notes.append(
                f"Order of the {found.cells} cells that the paper has: Kendall's tau {number(found.tau, 2)} "
                f"(over resampled seeds {number(found.interval.low, 2)} to {number(found.interval.high, 2)}; "
                f"p {number(found.p, 3)} of no relation)."
            )
        frame = pd.DataFrame(rows).fillna(NOTHING)
        blocks.append(Table(f"{result.name[0].upper()}{result.name[1:]}.", frame, notes=tuple(notes)))
    overlap = overlap_table(contents.rows, contents.cells)
    return [*blocks, overlap] if overlap else blocks


def tuned_section(tuned: Tuned | None) -> list[Section]:
    """The study once more at each cell's best value; nothing for a study without a grid."""
    if tuned is None:
        return []
    values, own = chosen_values(tuned), show(tuned.tuning.own)
    short = tuned.tuning.parameter.rsplit(".", 1)[-1].replace("_", " ")
    tables: list[Block] = []
    for result, equal in zip(tuned.results, tuned.equal, strict=True):
        before = {cell.cell.name: cell for cell in equal.cells}
        rows = []
        for cell in result.cells:
            row = _row(cell, result)
            row = {"cell": row.pop("cell"), short: values.get(cell.cell.name, NOTHING)} | row
            other = before[cell.cell.name].comparison
            row[f"Δ at {own}"] = signed(other.mean, _digits(result)) if other else NOTHING
            rows.append(row)
        notes = (f"Δ at {own}: all else equal, on the same seeds.",) if not tables else ()
        name = f"{result.name[0].upper()}{result.name[1:]}"
        tables.append(Table(f"{name}, each cell at its best.", pd.DataFrame(rows).fillna(NOTHING), notes=notes))
    return [Section("tuned", f"Each cell at its best {short}", tuned_blocks(tuned, tables))]


def _digits(result: MetricResult) -> int:
    return 1 if result.metric in ("wall_seconds", "index_staleness_steps") else 3


def _row(cell: CellResult, result: MetricResult) -> dict[str, str]:
    summary = summarise(cell.values.values())
    digits = _digits(result)
    row = {"cell": cell.cell.title, **_spread(summary, digits)}
    found = cell.comparison
    row["Δ"] = signed(found.mean, digits) if found else NOTHING
    row["95 %"] = show_interval(found.interval, digits) if found else NOTHING
    row["p (smallest)"] = f"{number(cell.corrected_p)} ({number(cell.smallest_p)})" if found else NOTHING
    if any(other.per_example is not None for other in result.cells):
        row["95 %, examples"] = show_interval(cell.per_example, digits) if cell.per_example else NOTHING
    row["finding"] = cell.finding if found else ("baseline" if cell is result.cells[0] else "no data")
    if cell.paper and result.metric in cell.paper.values:
        value = cell.paper.values[result.metric]
        row["paper"] = number(value)
        row["paper Δ"] = signed(value - cell.paper.baseline[result.metric], 3)
    return row


def _spread(summary: Summary | None, digits: int) -> dict[str, str]:
    if summary is None:
        return {"n": "0", "mean ± sd": NOTHING, "range": NOTHING}
    spread = f" ± {number(summary.sd, digits)}" if summary.sd is not None else ""
    return {
        "n": str(summary.n),
        "mean ± sd": f"{number(summary.mean, digits)}{spread}",
        "range": f"{number(summary.low, digits)} to {number(summary.high, digits)}",
    }


def cost_blocks(contents: StudyContents) -> list[Block]:
    """Time and refresh share, then quality at equal steps and at equal compute."""
    blocks: list[Block] = [_cost(contents)]
    compute = compute_of(contents.points, [name for name, _ in contents.cells])
    if compute is None:
        return [*blocks, Text("No comparison at equal compute: fewer than two cells logged operations.", missing=True)]
    seeds = f"seeds {', '.join(map(str, contents.study.seeds))}"
    figure = compute_figure(compute, contents.pretrained, seeds)
    return [*blocks, compute_table(compute, contents.cells), *([figure] if figure else [])]


def _cost(contents: StudyContents) -> Block:
    rows = []
    for name, title in contents.cells:
        runs = [run for run in contents.collection.of(name) if run.is_complete]
        row: dict[str, Any] = {"cell": title, "runs": str(len(runs))}
        for stage in STAGES:
            times = [run.statuses[stage].wall_seconds / 60 for run in runs if stage in run.statuses]
            row[stage.replace("_", " ")] = number(sum(times) / len(times), 1) if times else NOTHING
        whole = [run.wall_seconds for run in runs]
        row["all"] = number(sum(whole) / len(whole) / 60, 1) if whole else NOTHING
        hours = [_device_hours(run) for run in runs]
        row["device-hours"] = number(sum(hours) / len(hours), 3) if hours else NOTHING
        mine = contents.points[(contents.points["label"] == name) & (contents.points["stage"] == "pretrain")]
        for metric, title in (("flops", "FLOPs"), ("time", "time")):
            share = mine[mine["metric"] == f"refresh_share_of_{metric}"].groupby("seed")["value"].last()
            row[f"refresh share of {title}"] = number(float(share.mean()), 3) if len(share) else NOTHING
        rows.append(row)
    note = (
        "A stage that runs share was run once and is counted in each. Device-hours: time times the processes that "
        "shared a stage. Refresh shares are of pre-training."
    )
    return Table("Mean wall-clock minutes of a run, by stage, and device-hours.", pd.DataFrame(rows), notes=(note,))


def _device_hours(run: Run) -> float:
    """Hours of one device, over all stages of a run."""
    hours = 0.0
    for stage, status in run.statuses.items():
        processes = run.environments.get(stage, {}).get("processes", 1)
        hours += status.wall_seconds * (processes if isinstance(processes, int) else 1) / 3600
    return hours


def grid_gaps(grid: Collection) -> list[str]:
    """A sentence for each cell of the grid that has an unfinished run."""
    found = []
    for label in grid.labels:
        states: dict[str, list[str]] = {}
        for run in grid.of(label):
            if not run.is_complete:
                stages = ((stage, status) for stage, status in run.statuses.items() if status.state != "COMPLETE")
                stage, status = next(stages, ("evaluate", None))
                said = f"{stage} is {status.state if status else 'without readable results'}"
                cause = f" ({status.error})" if status and status.error else ""
                states.setdefault(f"{said}{cause}", []).append(str(run.record.seed))
        parts = [f"{said}, seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}" for said, seeds in states.items()]
        found += [f"{label}: {'; '.join(parts)}."] if parts else []
    return found


def grid_coverage(grid: Collection, absent: list[str], unfair: list[str]) -> list[Block]:
    """What the grid lacks or does unfairly, and the state of its stages."""
    blocks: list[Block] = [Text(gap, missing=True) for gap in [*absent, *unfair]]
    if not absent:
        blocks.append(Text(f"The grid is complete: {len(grid.runs)} runs at other values than the cells' own."))
    return [*blocks, Table("State of every stage of the grid.", coverage_table(grid).astype(str))]


def changes_table(study: StudyRecord) -> Block:
    """What each cell changes of the baseline."""
    base = study.cell(study.baseline)
    rows = []
    for cell in study.cells:
        parts = [f"{key} = {value}" for key, value in cell.changes.items()]
        if cell.system != base.system:
            parts.append("no REALM pre-training" if cell.system == "warm_start" else "with REALM pre-training")
        rows.append({"cell": cell.name, "title": cell.title, "changes": "; ".join(parts) or "nothing: the baseline"})
    return Table("Against the baseline's parameters.", pd.DataFrame(rows))
