"""A comparison of runs as a document: for the terminal, for reports/compare/NAME/report.md and its page."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from realm_lab.reporting import terminal
from realm_lab.reporting.comparison_figures import Delta, bands_figure, deltas_figure
from realm_lab.reporting.document import (
    NOTHING,
    Block,
    Document,
    Section,
    Table,
    Text,
    mean_sd,
    number,
    show_interval,
    signed,
)
from realm_lab.reporting.document_files import write_document
from realm_lab.reporting.overlap_table import overlap_table
from realm_lab.reporting.run_comparison import Difference, RunComparison, as_json, metric_name, show_value
from realm_lab.reporting.study_comparison import COSTS
from realm_lab.reporting.study_figures import CURVES
from realm_lab.reporting.table import state_of

DIGEST_CHARACTERS = 12
PLAIN_WIDTH = 160  # columns where there is no terminal
PAIR_NOTE = (
    "Without a number of seeds it is one run against one run: the interval is a bootstrap over the questions that both "
    "answered. It speaks of other questions put to these very models, not of other seeds; for that compare cells of a "
    "study, as STUDY/CELL."
)
SEEDS_NOTE = (
    "Δ: mean over the shared seeds of the paired difference, with Student's 95 % interval. p: exact sign-flip test, "
    "Holm-corrected over the sides; beside it the smallest p that so many seeds could have given. Questions: bootstrap "
    "with the seed as block, of other questions and not of other seeds."
)


def compare_runs(root: Path, texts: Sequence[str], out: Path | None, *, is_json: bool) -> None:
    """Compare, print, and write the page into `out`/NAME (default: ROOT/reports/compare); its path comes last."""
    found = RunComparison(root / "runs", texts)
    document = build(found)
    page = write_document(document, (out or root / "reports" / "compare") / found.name).with_name("index.html")
    if is_json:
        print(json.dumps(as_json(found) | {"page": str(page)}, indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)
    terminal.show(document, console)
    print(page)


def build(found: RunComparison) -> Document:
    """The content, in its order: numbers, differences, curves, parameters, where it comes from."""
    runs = [run for part in found.parts for run in part.collection.runs]
    return Document(
        title=f"Comparison: {' and '.join(part.title for part in found.parts)}",
        subtitle=" · ".join(
            f"{part.title}: {len(part.collection.runs)} run{'s' * (len(part.collection.runs) > 1)}"
            for part in found.parts
        ),
        verdict=_verdict(found),
        flags=[
            f"{run.label}, seed {run.record.seed}, {stage}: {'; '.join(flags)}"
            for run in runs
            for stage, flags in run.flags.items()
        ],
        warnings=found.warnings,
        key_numbers=[],
        sections=[
            Section("results", "Results", _results(found)),
            Section("figures", "Curves", _figures(found)),
            Section("parameters", "Parameters", [_changes(found)]),
            Section("provenance", "Provenance", [_identity(found)]),
        ],
    )


def _verdict(found: RunComparison) -> str:
    items = [item for item in found.differences if item.metric not in COSTS]
    if not items:
        return "Nothing to compare yet: no result has been measured on both sides."
    metric = items[0].metric
    items = [item for item in items if item.metric == metric]
    first = found.parts[0].title
    return f"{metric_name(metric).capitalize()}, against {first} ({number(items[0].first)}): " + "; ".join(
        f"{item.title} {number(item.value)} ({signed(item.mean, 3)}, {item.finding})" for item in items
    )


def _results(found: RunComparison) -> list[Block]:
    if not found.metrics:
        return [Text("No final numbers yet: no run has a complete evaluate stage.", missing=True)]
    rows = []
    for metric in found.metrics:
        shown = {part.title: mean_sd(part.values(metric).values(), _digits(metric)) for part in found.parts}
        rows.append({"metric": metric_name(metric)} | shown)
    several = any(len(part.collection.runs) > 1 for part in found.parts)
    caption = "Final numbers, mean ± standard deviation over seeds (ddof = 1)." if several else "Final numbers."
    blocks: list[Block] = [Table(caption, pd.DataFrame(rows))]
    if found.differences:
        blocks.append(_differences(found))
    overlap = overlap_table(pd.concat([part.rows for part in found.parts]), [(p.title, p.title) for p in found.parts])
    return [*blocks, overlap] if overlap else blocks


def _differences(found: RunComparison) -> Table:
    frame = pd.DataFrame([_row(item) for item in found.differences])
    frame = frame[[name for name in frame if (frame[name] != NOTHING).any()]]
    if len(found.parts) == 2:
        frame = frame.drop(columns="side")
    kinds = {item.repeated is not None for item in found.differences}
    notes = [note for repeated, note in ((True, SEEDS_NOTE), (False, PAIR_NOTE)) if repeated in kinds]
    return Table(f"Differences from {found.parts[0].title}.", frame, notes=tuple(notes))


def _row(item: Difference) -> dict[str, str]:
    digits = _digits(item.metric)
    row = {"metric": metric_name(item.metric), "side": item.title, "Δ": signed(item.mean, digits)}
    over = item.repeated
    row["seeds"] = str(len(over.seeds)) if over else NOTHING
    row["95 %, seeds"] = show_interval(over.interval, digits) if over else NOTHING
    row["p (smallest)"] = f"{number(item.corrected_p)} ({number(item.smallest_p)})" if over else NOTHING
    row["95 %, questions"] = show_interval(item.examples, digits) if item.examples else NOTHING
    row["questions"] = str(item.questions) if item.examples else NOTHING
    return row | {"finding": item.finding}


def _figures(found: RunComparison) -> list[Block]:
    cells = [(part.title, part.title) for part in found.parts]
    known = [part.points for part in found.parts if len(part.points)]  # an empty table would change the columns' types
    points = pd.concat(known, ignore_index=True) if known else found.parts[0].points
    several = any(len(part.collection.runs) > 1 for part in found.parts)
    band = "mean over seeds, band from the lowest to the highest" if several else "one run each"
    caption = f"Over pre-training: {band}."
    panels = []
    for metric in ("exact_match", "recall_at_5", "retrieval_utility_end"):
        drawn = [
            Delta(item.title, item.repeated.deltas, item.repeated.mean, *item.repeated.interval)
            for item in found.differences
            if item.metric == metric and item.repeated
        ]
        panels.append((metric_name(metric), drawn))
    figures = [
        bands_figure("curves", caption, points[points["stage"] == "pretrain"], CURVES, cells),
        deltas_figure(
            "deltas",
            f"Paired differences from {found.parts[0].title}: a tick a seed, the dot their mean, the line Student's "
            "95 % interval.",
            panels,
        ),
    ]
    blocks: list[Block] = [figure for figure in figures if figure]
    blocks = blocks or [Text("No curves: no run has been pre-trained.", missing=True)]
    so_far = _so_far(found)
    return [*blocks, so_far] if so_far else blocks


def _so_far(found: RunComparison) -> Table | None:
    """Where pre-training is not finished on every side: its curves at the last step that all sides have."""
    finished = [state_of(run.statuses) == "COMPLETE" for part in found.parts for run in part.collection.runs]
    rows = []
    for panel in CURVES:
        means = {}
        for part in found.parts:
            mine = part.points[(part.points["stage"] == "pretrain") & (part.points["metric"] == panel.metric)]
            means[part.title] = mine.groupby("step")["value"].mean()
        shared = sorted(set.intersection(*(set(mean.index) for mean in means.values())))
        if shared:
            row = {"metric": panel.title, "step": str(shared[-1])}
            rows.append(row | {title: number(mean[shared[-1]]) for title, mean in means.items()})
    if all(finished) or not rows:
        return None
    return Table("Pre-training so far: the last step that every side has.", pd.DataFrame(rows))


def _changes(found: RunComparison) -> Block:
    changes = found.changes()
    if not changes:
        return Text("No parameter differs.")
    titles = [part.title for part in found.parts]
    rows = [
        {"parameter": key} | dict(zip(titles, map(show_value, values), strict=True)) for key, values in changes.items()
    ]
    return Table("Only what differs; devices and launchers are left out.", pd.DataFrame(rows))


def _identity(found: RunComparison) -> Table:
    rows = []
    for part in found.parts:
        for run in part.collection.runs:
            envs = run.environments.values()
            commits = sorted({str(env["git_commit"])[:DIGEST_CHARACTERS] for env in envs if env.get("git_commit")})
            dirty = " + changes" if any(env.get("git_dirty") for env in envs) else ""
            rows.append(
                {
                    "side": part.title,
                    "seed": str(run.record.seed),
                    "run": run.record.name,
                    "state": state_of(run.statuses),
                    "engine": str(run.record.engine_version),
                    "commit": ", ".join(commits) + dirty if commits else NOTHING,
                    "corpus": str(run.record.inputs.get("corpus", NOTHING))[:DIGEST_CHARACTERS],
                }
            )
    return Table("The runs.", pd.DataFrame(rows))


def _digits(metric: str) -> int:
    return 1 if metric in COSTS else 3
