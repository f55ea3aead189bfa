"""The report of a study from its run folders: what it says, in which order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from realm_lab.config import show
from realm_lab.core.files import atomic_write, write_text
from realm_lab.errors import UserError
from realm_lab.reporting import markdown, page
from realm_lab.reporting.comparison_figures import Delta, Spot, bands_figure, deltas_figure, plane_figure
from realm_lab.reporting.confounds import confounds, grid_confounds
from realm_lab.reporting.document import NOTHING, Block, Code, Document, Figure, Section, Table, Text, number
from realm_lab.reporting.edition_table import table_4
from realm_lab.reporting.figures import Panel
from realm_lab.reporting.overlap_table import overlap_table
from realm_lab.reporting.provenance_sections import coverage_section
from realm_lab.reporting.results_sections import bm25_values
from realm_lab.reporting.statistics import Interval
from realm_lab.reporting.study_comparison import CellResult, MetricResult, Scores, compare_study, study_rows, verdict
from realm_lab.reporting.study_figures import (
    compute_figure,
    compute_of,
    compute_table,
    staleness_by_drift,
    utility_by_masking,
)
from realm_lab.reporting.table import (
    Collection,
    Run,
    Summary,
    collect,
    collect_design,
    coverage_table,
    curves_table,
    gaps,
    results_table,
    summarise,
)
from realm_lab.reporting.tuning import Tuned, chosen_values, tune, tuned_blocks, tuned_verdict
from realm_lab.reporting.worked_examples import load_examples, table_3
from realm_lab.tracking.study_record import StudyRecord, read_study_record, study_folder

STAGES = ("warm_start", "pretrain", "finetune", "evaluate")
CURVES = (
    Panel("retrieval_utility", "retrieval utility, weighted by p(z|x)", "nats per span"),
    Panel("recall_at_5", "recall@5 before fine-tuning", "share of dev questions", 0.0, 1.03),
    Panel("cloze_log_likelihood", "held-out log p(y|x)", "nats per span"),
    Panel("index_staleness_steps", "age of the index", "steps", 0.0),
)
STATISTICS_NOTE = (
    "Δ: mean over seeds of the paired difference from the baseline, with Student's 95 % interval, which covers what it "
    "says for normal differences and too little where seeds fail now and then. p: exact sign-flip test over the seeds, "
    "Holm-corrected over the cells of this metric; beside it the smallest p that this many seeds and cells could have "
    "given. Examples: bootstrap over questions with the seed as block; it speaks of other questions, not other seeds."
)


class StudyContents:
    """Everything that is read of a study, once."""

    def __init__(self, runs: Path, name: str):
        path = study_folder(runs, name) / "study.json"
        if not path.exists():
            known = ", ".join(sorted(p.parent.name for p in (Path(runs) / "studies").glob("*/study.json")))
            raise UserError(
                f"{path}: no such study has been swept; run `realm-lab sweep experiments/{name}.yaml`"
                + (f" (there are: {known})" if known else "")
            )
        self.study: StudyRecord = read_study_record(path)
        self.collection: Collection = collect(Path(runs), name)
        self.points = curves_table(self.collection)
        self.rows = study_rows(self.collection, results_table(self.collection), self.points)
        scores = Scores()
        self.results: list[MetricResult] = compare_study(self.study, self.collection, self.rows, scores)
        self.grid: Collection | None = None  # the runs at other values of the tuned parameter
        self.tuned: Tuned | None = None
        if self.study.tuning is not None:
            self._tune(scores)

    def _tune(self, scores: Scores) -> None:
        tuning, study = self.study.tuning, self.study.everything()
        assert tuning is not None
        own = {cell.name for cell in self.study.cells}
        cells = tuple(cell for cell in study.cells if cell.name not in own)
        design = replace(study, cells=cells, runs=tuning.runs, seeds=tuning.seeds)
        self.grid = collect_design(self.collection.runs_folder, design, [])
        points = curves_table(self.grid, ("pretrain",))
        rows = study_rows(self.grid, results_table(self.grid), points)
        everything = replace(self.collection, runs=[*self.collection.runs, *self.grid.runs])
        self.tuned = tune(
            self.study,
            tuning,
            everything,
            pd.concat([frame for frame in (self.rows, rows) if len(frame)] or [self.rows], ignore_index=True),
            pd.concat([frame for frame in (self.points, points) if len(frame)] or [self.points], ignore_index=True),
            scores,
        )

    @property
    def cells(self) -> list[tuple[str, str]]:
        """(name, title), the baseline first."""
        ordered = sorted(self.study.cells, key=lambda cell: cell.name != self.study.baseline)
        return [(cell.name, cell.title) for cell in ordered]

    @property
    def pretrained(self) -> list[tuple[str, str]]:
        """The cells with a pre-training of their own; one that another cell has already is left out."""
        seen: set[tuple[str, ...]] = set()
        found = []
        for name, title in self.cells:
            stages = tuple(run.record.stages.get("pretrain", "") for run in self.collection.of(name))
            if any(stages) and stages not in seen:
                seen.add(stages)
                found.append((name, title))
        return found


def write_document(document: Document, folder: Path) -> Path:
    """Write report.md, index.html and figures/ into a folder of the document's own; returns report.md's path."""
    kept = set()
    for section in document.sections:
        for block in section.blocks:
            if isinstance(block, Figure):
                kept.add(block.name)
                write_text(folder / "figures" / f"{block.name}.svg", block.svg)
                with atomic_write(folder / "figures" / f"{block.name}.png", "wb") as file:
                    file.write(block.png)
    for old in (folder / "figures").glob("*"):
        if old.stem not in kept:
            old.unlink()
    write_text(folder / "report.md", markdown.render(document))
    write_text(folder / "index.html", page.render(document))
    return folder / "report.md"


def build(contents: StudyContents) -> Document:
    """The report's content in its order: verdict, tables, figures, cost, coverage and confounds, differences."""
    study, collection = contents.study, contents.collection
    examples, notes = load_examples(collection)
    found = confounds(study, collection)
    missing = gaps(collection)
    warnings = [f"Incomplete: {len(missing)} of the study's pieces are missing or unfinished; see Coverage."]
    warnings = [*(warnings if missing else []), *found, *collection.problems]
    coverage = coverage_section(collection, found)
    answer, runs = verdict(study, contents.results), [*collection.runs]
    if contents.tuned is not None and contents.grid is not None:
        unfair = grid_confounds(study, collection, contents.grid)
        absent = _grid_gaps(contents.grid)
        if absent:
            unfinished = sum(not run.is_complete for run in contents.grid.runs)
            total = len(contents.grid.runs)
            warnings.append(f"Incomplete grid: {unfinished} of its {total} runs are unfinished; see Coverage.")
        warnings += [*unfair, *contents.grid.problems]
        coverage.blocks.extend(_grid_coverage(contents.grid, absent, unfair))
        answer = f"{answer} {tuned_verdict(contents.tuned)}".rstrip()
        runs += contents.grid.runs
    seeds = ", ".join(map(str, study.seeds))
    return Document(
        title=f"Study: {study.name}",
        subtitle=f"baseline {study.cell(study.baseline).title} · seeds {seeds} · {len(study.everything().runs)} runs",
        verdict=answer,
        flags=[
            f"{run.label}, seed {run.record.seed}, {stage}: {'; '.join(flags)}"
            for run in runs
            for stage, flags in run.flags.items()
        ],
        warnings=warnings,
        key_numbers=[],
        sections=[
            Section("results", "Results", _results(contents)),
            *_tuned_section(contents.tuned),
            Section("figures", "Figures", _figures(contents)),
            Section("cost", "Cost", _cost_blocks(contents)),
            Section("cells", "What each cell changes", [_changes(study)]),
            Section("worked-examples", "Worked examples", _worked(contents, examples)),
            Section("edition-swap", "Another edition of the corpus", table_4(contents.rows, contents.cells)),
            coverage,
            Section("reproduce", "How to reproduce", [Code(_commands(study))]),
        ],
        explorer=examples,
        explorer_notes=notes,
    )


def _results(contents: StudyContents) -> list[Block]:
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


def _tuned_section(tuned: Tuned | None) -> list[Section]:
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


def _grid_gaps(grid: Collection) -> list[str]:
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


def _grid_coverage(grid: Collection, absent: list[str], unfair: list[str]) -> list[Block]:
    blocks: list[Block] = [Text(gap, missing=True) for gap in [*absent, *unfair]]
    if not absent:
        blocks.append(Text(f"The grid is complete: {len(grid.runs)} runs at other values than the cells' own."))
    return [*blocks, Table("State of every stage of the grid.", coverage_table(grid).astype(str))]


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


def _figures(contents: StudyContents) -> list[Block]:
    pretrain = contents.points[contents.points["stage"] == "pretrain"]
    panels = []
    for result in contents.results[:3]:
        deltas = [
            Delta(cell.cell.title, cell.comparison.deltas, cell.comparison.mean, *cell.comparison.interval)
            for cell in result.cells[1:]
            if cell.comparison
        ]
        panels.append((result.name, deltas))
    seeds = ", ".join(map(str, contents.study.seeds))
    drawn = [
        deltas_figure(
            "deltas",
            "Paired differences from the baseline: a tick a seed, the dot their mean, the line Student's 95 % interval "
            f"(seeds {seeds}).",
            panels,
        ),
        bands_figure(
            "curves",
            f"Over pre-training: mean over seeds, band from the lowest to the highest (seeds {seeds}). Cells that "
            "differ in fine-tuning alone share a curve.",
            pretrain,
            CURVES,
            contents.pretrained,
        ),
        utility_by_masking(contents.study, pretrain, f"seeds {seeds}"),
        staleness_by_drift(contents.study, pretrain, contents.rows, f"seeds {seeds}"),
        *_planes(contents),
    ]
    return [figure for figure in drawn if figure] or [Text("No figures: there are no numbers yet.", missing=True)]


def _planes(contents: StudyContents) -> list[Figure | None]:
    """Quality against cost, and against staleness where that differs."""
    metric = next((m for m in contents.study.metrics if m in ("exact_match", "recall_at_5")), None)
    if metric is None or metric not in contents.rows:
        return []
    name = next(result.name for result in contents.results if result.metric == metric)

    def spots(column: str, scale: float) -> list[Spot]:
        rows = contents.rows[contents.rows[[column, metric]].notna().all(axis=1)]
        return [
            Spot(label, x / scale, y) for label, x, y in zip(rows["label"], rows[column], rows[metric], strict=True)
        ]

    cost = plane_figure(
        "cost",
        f"{name[0].upper()}{name[1:]} against the time that a run took; light dots are runs, heavy ones cell means.",
        spots("wall_seconds", 60.0),
        contents.cells,
        ("wall-clock, minutes", name),
    )
    ages = spots("index_staleness_steps", 1.0)
    if len({round(spot.x, 1) for spot in ages}) < 3:
        return [cost]
    caption = f"{name[0].upper()}{name[1:]} against the mean age of the index during pre-training, as measured."
    return [cost, plane_figure("staleness", caption, ages, contents.cells, ("mean age, steps", name), is_log=True)]


def _cost_blocks(contents: StudyContents) -> list[Block]:
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


def _worked(contents: StudyContents, examples: list[dict[str, Any]]) -> list[Block]:
    """The paper's Table 3, of the baseline cell, beside a warm start."""
    study = contents.study
    warm = next((cell.name for cell in study.cells if cell.arm == "warm_start" and not cell.changes), None)
    return table_3(examples, study.baseline, study.cell(study.baseline).title, warm)


def _changes(study: StudyRecord) -> Block:
    base = study.cell(study.baseline)
    rows = []
    for cell in study.cells:
        parts = [f"{key} = {value}" for key, value in cell.changes.items()]
        if cell.arm != base.arm:
            parts.append("no REALM pre-training" if cell.arm == "warm_start" else "with REALM pre-training")
        rows.append({"cell": cell.name, "title": cell.title, "changes": "; ".join(parts) or "nothing: the baseline"})
    return Table("Against the baseline's parameters.", pd.DataFrame(rows))


def _commands(study: StudyRecord) -> str:
    source = study.source or f"experiments/{study.name}.yaml"
    return (
        f"realm-lab sweep {source}              # runs what is missing, then writes this report\n"
        f"realm-lab sweep {source} --dry-run    # what that would be\n"
        f"realm-lab report {study.name}                        # only this report, from the run folders"
    )


def signed(value: float, digits: int) -> str:
    """With its sign, a true minus."""
    text = number(value, digits)
    return text if text[0] in "−0" and not text.strip("0.−") else (text if value < 0 else f"+{text}")


def show_interval(interval: Interval, digits: int) -> str:
    """Both ends with their signs; "unbounded" where the data say nothing."""
    if interval.high == float("inf"):
        return "unbounded"
    return f"{signed(interval.low, digits)} to {signed(interval.high, digits)}"
