"""`realm-lab report`: everything under reports/ that can be rebuilt from the run folders, rebuilt from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from realm_lab.core.files import atomic_write, read_json, write_text
from realm_lab.errors import UserError
from realm_lab.reporting import markdown, page
from realm_lab.reporting.document import Block, Document, Figure, Section, Text
from realm_lab.reporting.provenance_sections import coverage_section, mismatches, reproduce_section, studies_section
from realm_lab.reporting.results_sections import edition_section, main_section
from realm_lab.reporting.table import Collection, collect, curves_table, gaps
from realm_lab.reporting.verdict import key_numbers, verdict
from realm_lab.reporting.worked_examples import load_examples, worked_examples

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
    """Write report.md, index.html and figures/ into `reports`; return the page's path.

    Shown are the runs named in reports/metrics.json under "runs", else all of `study`. No time of writing is
    recorded: the same run folders give the same bytes.
    """
    runs, reports = Path(runs), Path(reports)
    names, seeds, problems = _asked_for(reports)
    collection = collect(runs, study, names, seeds)
    collection.problems[:0] = problems
    document = build(collection, reports, study)
    _write_figures(document, reports / "figures")
    write_text(reports / "report.md", markdown.render(document))
    write_text(reports / "index.html", page.render(document))
    return reports / "index.html"


def build(collection: Collection, reports: Path, study: str) -> Document:
    """The content of the report, in its order."""
    # Here, because the drawing library takes longer to import than all of the rest.
    from realm_lab.reporting.figure_list import curve_figures

    points = curves_table(collection)
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
    studies = studies_section(reports)
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
