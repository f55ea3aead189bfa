"""`realm-lab report`: everything under reports/ that can be rebuilt from the run folders, rebuilt from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from realm_lab.core.files import atomic_write, read_json, write_text
from realm_lab.errors import UserError
from realm_lab.reporting import markdown
from realm_lab.reporting.document import Block, Document, Figure, Section, Text
from realm_lab.reporting.fragment import FILE, Facts, write_fragment
from realm_lab.reporting.overview_page import link_to, refresh
from realm_lab.reporting.provenance_sections import coverage_section, mismatches, reproduce_section
from realm_lab.reporting.results_sections import edition_section, main_section
from realm_lab.reporting.table import Collection, collect, curves_table, gaps
from realm_lab.reporting.verdict import key_numbers, verdict
from realm_lab.reporting.worked_examples import load_examples, worked_examples
from realm_lab.tracking.study_record import read_study_record, study_folder

EXAMPLES_PER_CELL = 40  # in the explorer: the default run has no page of its own
FIGURE_NAMES = (
    "retrieval_utility",
    "recall",
    "cloze",
    "early_warnings",
    "index_freshness",
    "warm_start",
    "comparison",
    "edition_swap",
)


def write_report(runs: Path, reports: Path, study: str = "default") -> Path:
    """Write report.md, overview.json and figures/ into `reports`, then the page of all reports; return its path.

    Shown are the runs named in reports/metrics.json under "runs", else all of `study`. Where there are none of them, as
    in a fresh clone, the report that is there stays. No time of writing is recorded: the same run folders give the same
    bytes.
    """
    runs, reports = Path(runs), Path(reports)
    names, seeds, problems = _asked_for(reports)
    collection = collect(runs, study, names, seeds)
    collection.problems[:0] = problems
    if collection.runs or not (reports / FILE).is_file():
        points = curves_table(collection)
        document = build(collection, points, reports, study)
        _write_figures(document, reports / "figures")
        write_text(reports / "report.md", markdown.render(document))
        write_fragment(
            reports, document, _facts(collection, study), points, per_cell=EXAMPLES_PER_CELL, left_out=("studies",)
        )
    return refresh(reports)


def build(collection: Collection, points: pd.DataFrame, reports: Path, study: str) -> Document:
    """The content of the report, in its order."""
    # Here, because the drawing library takes longer to import than all of the rest.
    from realm_lab.reporting.figure_list import curve_figures

    examples, notes = load_examples(collection)
    drawn: list[Block] = [
        item if isinstance(item, Figure) else Text(item, missing=True) for item in curve_figures(collection, points)
    ]
    sections = [
        main_section(collection),
        Section("figures", "Figures", drawn),
        edition_section(collection),
        Section("worked-examples", "Worked examples", worked_examples(collection, examples)),
        coverage_section(collection, mismatches(collection)),
        reproduce_section(collection),
    ]
    studies = _studies(reports)
    sections += [studies] if studies else []
    return Document(
        title="realm_lab report" if study == "default" else f"realm_lab report: {study}",
        subtitle=_subtitle(collection),
        verdict=verdict(collection),
        flags=_flags(collection),
        warnings=_warnings(collection),
        key_numbers=key_numbers(collection),
        sections=sections,
        explorer=examples,
        explorer_notes=notes,
    )


def _studies(reports: Path) -> Section | None:
    """Links to every study that left a report or a summary under `reports`; None when there is none."""
    folders = sorted(path for path in reports.iterdir() if path.is_dir()) if reports.is_dir() else []
    links: list[Block] = [link for folder in folders if (link := link_to(folder))]
    return Section("studies", "Other studies", links) if links else None


def _facts(collection: Collection, study: str) -> Facts:
    """What the table of studies says of the default run. Its seeds are those that were asked for."""
    path = study_folder(collection.runs_folder, study) / "study.json"
    record = read_study_record(path) if path.is_file() else None
    titles = {cell.name: cell.title for cell in record.cells} if record else {}
    cells = [[label, titles.get(label, label)] for label in collection.labels]
    planned = len(collection.labels) * len(collection.seeds)
    failed = sum(any(status.state == "FAILED" for status in run.statuses.values()) for run in collection.runs)
    return Facts(
        name=study,
        question=record.question if record else "",
        baseline=cells[0][1] if cells else "",
        cells=cells,
        seeds=collection.seeds,
        runs=planned,
        complete=sum(run.is_complete for run in collection.runs),
        failed=failed,
    )


def _flags(collection: Collection) -> list[str]:
    """One line for each flagged stage of each run."""
    return [
        f"{run.label}, seed {run.record.seed}, {stage}: {'; '.join(flags)}"
        for run in collection.runs
        for stage, flags in run.flags.items()
    ]


def _warnings(collection: Collection) -> list[str]:
    """What a reader must know before the first number."""
    found = []
    if not collection.runs:
        found.append("There is no run to report on: run `dvc repro` first.")
    if missing := gaps(collection):
        count = f"{len(missing)} pieces are" if len(missing) > 1 else "one piece is"
        found.append(f"Incomplete: {count} missing or unfinished. " + " ".join(missing))
    return [*found, *mismatches(collection), *collection.problems]


def _subtitle(collection: Collection) -> str:
    if not collection.runs:
        return "no runs"
    presets = ", ".join(sorted({run.record.preset for run in collection.runs}))
    engines = ", ".join(str(version) for version in sorted({run.record.engine_version for run in collection.runs}))
    seeds = ", ".join(map(str, collection.seeds))
    word = "seed" if len(collection.seeds) == 1 else "seeds"
    return f"preset {presets} · {word} {seeds} · {len(collection.runs)} runs · engine version {engines}"


def _asked_for(reports: Path) -> tuple[list[str] | None, list[int] | None, list[str]]:
    """(run names, seeds, problems) of reports/metrics.json; all empty where it does not say."""
    path = reports / "metrics.json"
    if not path.exists():
        return None, None, []
    try:
        metrics: Any = read_json(path)
    except UserError as error:
        return None, None, [str(error).replace(f"{reports}/", "reports/")]
    metrics = metrics if isinstance(metrics, dict) else {}
    names, seeds = metrics.get("runs"), metrics.get("seeds")
    names = [name for name in names if isinstance(name, str)] if isinstance(names, list) and names else None
    seeds = [seed for seed in seeds if isinstance(seed, int)] if isinstance(seeds, list) else None
    return names, seeds, []


def _write_figures(document: Document, folder: Path) -> None:
    """The figures of this report; one of our own names that has no data any more is removed."""
    kept = set()
    for section in document.sections:
        for block in section.blocks:
            if isinstance(block, Figure):
                kept.add(block.name)
                write_text(folder / f"{block.name}.svg", block.svg)
                with atomic_write(folder / f"{block.name}.png", "wb") as file:
                    file.write(block.png)
    for name in set(FIGURE_NAMES) - kept:
        for ending in ("svg", "png"):
            (folder / f"{name}.{ending}").unlink(missing_ok=True)
