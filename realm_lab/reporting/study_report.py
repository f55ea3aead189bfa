"""The report of a study from its run folders: what it says, in which order."""

from __future__ import annotations

from typing import Any

from realm_lab.reporting.confounds import confounds, grid_confounds
from realm_lab.reporting.document import Block, Code, Document, Section
from realm_lab.reporting.edition_table import table_4
from realm_lab.reporting.provenance_sections import coverage_section
from realm_lab.reporting.study_comparison import verdict
from realm_lab.reporting.study_contents import StudyContents
from realm_lab.reporting.study_figures import figures_blocks
from realm_lab.reporting.study_sections import (
    changes_table,
    cost_blocks,
    grid_coverage,
    grid_gaps,
    results_blocks,
    tuned_section,
)
from realm_lab.reporting.table import gaps
from realm_lab.reporting.tuning import tuned_verdict
from realm_lab.reporting.worked_examples import load_examples, table_3
from realm_lab.tracking.study_record import StudyRecord


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
        absent = grid_gaps(contents.grid)
        if absent:
            unfinished = sum(not run.is_complete for run in contents.grid.runs)
            total = len(contents.grid.runs)
            warnings.append(f"Incomplete grid: {unfinished} of its {total} runs are unfinished; see Coverage.")
        warnings += [*unfair, *contents.grid.problems]
        coverage.blocks.extend(grid_coverage(contents.grid, absent, unfair))
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
            Section("results", "Results", results_blocks(contents)),
            *tuned_section(contents.tuned),
            Section("figures", "Figures", figures_blocks(contents)),
            Section("cost", "Cost", cost_blocks(contents)),
            Section("cells", "What each cell changes", [changes_table(study)]),
            Section("worked-examples", "Worked examples", _worked(contents, examples)),
            Section("edition-swap", "Another edition of the corpus", table_4(contents.rows, contents.cells)),
            coverage,
            Section("reproduce", "How to reproduce", [Code(_commands(study))]),
        ],
        explorer=examples,
        explorer_notes=notes,
    )


def _worked(contents: StudyContents, examples: list[dict[str, Any]]) -> list[Block]:
    """The paper's Table 3, of the baseline cell, beside a warm start."""
    study = contents.study
    warm = next((cell.name for cell in study.cells if cell.system == "warm_start" and not cell.changes), None)
    return table_3(examples, study.baseline, study.cell(study.baseline).title, warm)


def _commands(study: StudyRecord) -> str:
    source = study.source or f"experiments/{study.name}.yaml"
    return (
        f"realm-lab sweep {source}              # runs what is missing, then writes this report\n"
        f"realm-lab sweep {source} --dry-run    # what that would be\n"
        f"realm-lab report {study.name}                        # only this report, from the run folders"
    )
