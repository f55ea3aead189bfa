"""Everything under reports/NAME of a study, from the run folders alone: the same runs give the same bytes.

    results.csv     a row for each run            summary.json    by cell, with what was found
    report.md       the report, templates/study.md.j2             figures/*.png
    examples.json   single questions, for the pages               report.html  the report with these, one page
    tables/*.tex    LaTeX tables, with figures/*.pdf only with `--paper`

A report is never replaced by one of fewer complete runs (they may have been run elsewhere), unless that is asked for.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from realm_lab.core.files import atomic_write, read_json, write_json, write_text
from realm_lab.errors import UserError
from realm_lab.params.load import show
from realm_lab.reporting import tables
from realm_lab.reporting.code_notes import code_notes
from realm_lab.reporting.comparison import Scores, as_json, compare_cells
from realm_lab.reporting.confounds import confounds
from realm_lab.reporting.default_run import write_default_outputs
from realm_lab.reporting.examples import explorer_data, load_examples, table_3
from realm_lab.reporting.figures import Drawing
from realm_lab.reporting.frames import (
    StudyFrames,
    load_runs,
    metric_columns,
    read_summary,
    report_folder,
    summarise,
    write_results,
)
from realm_lab.reporting.index import write_index
from realm_lab.reporting.interactions import interaction_rows
from realm_lab.reporting.paper import write_tables
from realm_lab.reporting.rendering import html, page, render, seeds_text, title_of
from realm_lab.reporting.reproduce import expected_rows
from realm_lab.reporting.study_figures import drawings
from realm_lab.reporting.verdict import verdict
from realm_lab.tracking.state import JobState
from realm_lab.tracking.study_record import DEFAULT, SCRATCH, Studies

SEARCH = "search-"  # what the names of searches begin with; they write reports of their own
DEFAULT_METRICS = ("exact_match", "recall_at_5", "retrieval_utility_end", "recall_at_20")


def report(
    root: Path,
    study: str | None = None,
    *,
    force: bool = False,
    html: bool = False,
    paper: bool = False,
    studies: Studies | None = None,
) -> Path:
    """`realm-lab report [STUDY]`: one study or all; returns the path that a person wants to open."""
    studies = studies or Studies(Path(root) / "runs")
    if study is None:
        if html or paper:
            flag = "--html" if html else "--paper"
            raise UserError(f"report {flag}: name the study, `realm-lab report NAME {flag}`")
        return write_all(root, force=force, studies=studies)
    folder = Path(root) / "reports" / Path(study).name.removesuffix(".yaml")
    is_run_here = folder.name in studies.names()
    there = report_folder(root, folder.name)
    if html and there and not is_run_here and not paper:  # a reference result, or run elsewhere
        return write_page(there)
    write_study_report(root, folder.name, force=force, paper=paper, explorer=html, studies=studies)
    if paper:
        return folder / "tables" / "all.tex"
    return write_page(folder) if html else folder / "report.md"


def write_study_report(
    root: Path,
    name: str,
    *,
    force: bool = False,
    jobs: Mapping[str, JobState] | None = None,
    paper: bool = False,
    explorer: bool = False,
    studies: Studies | None = None,
) -> Path:
    """Write reports/NAME of a study that has been recorded, and the page of all studies; returns the folder.

    `force` replaces a report that counts more complete runs, too; `jobs` is what a scheduler says of its stages;
    `paper` also writes LaTeX tables and PDF figures, `explorer` examples.json; both are then kept as new as the report.
    UserError: no such study here, or the report that is there has more complete runs.
    """
    root, folder = Path(root), Path(root) / "reports" / name
    study = load_runs(root / "runs", (studies or Studies(root / "runs")).read(name), jobs)
    reported = read_summary(folder).get("coverage", {}).get("complete", 0)
    if (complete := tables.coverage(study)["complete"]) < reported and not force:
        raise UserError(
            f"{folder / 'report.md'}: counts {reported} complete runs, here are {complete}; it stays as it is (run the "
            "rest, or replace it with --force)"
        )
    explorer = explorer or name == DEFAULT or (folder / "examples.json").is_file()
    write_report(study, folder, paper=paper or (folder / "tables" / "all.tex").is_file(), explorer=explorer)
    if name == DEFAULT:
        write_default_outputs(study, root / "reports")
    write_index(root / "reports")
    return folder


def write_all(root: Path, *, force: bool = False, studies: Studies | None = None) -> Path:
    """Write the report of every study whose runs are here, and the page of all studies; returns the page.

    A study with fewer complete runs here than its report counts keeps its report; so does a broken one. UserError: no
    study was run here, and there is no report either.
    """
    root = Path(root)
    studies = studies or Studies(root / "runs")
    if not studies.names() and not (root / "reports").is_dir():
        raise UserError(
            f"{root}: no runs and no reports here; run `realm-lab sweep NAME` first, or `realm-lab init FOLDER`"
        )
    for name in (name for name in studies.names() if not name.startswith(SEARCH)):
        try:
            write_study_report(root, name, force=force, studies=studies)
        except UserError as error:  # a broken or smaller study must not take the page away from the others
            print(f"study {name}: its report stays as it is: {error}", file=sys.stderr)
    return write_index(root / "reports")


def write_page(folder: Path) -> Path:
    """report.html of the report.md and the examples.json that are there; returns its path."""
    write_text(folder / "report.html", page_of(folder / "report.md"))
    return folder / "report.html"


def page_of(report: Path) -> str:
    """A report.md as one self-contained page."""
    text, path = report.read_text(encoding="utf-8"), report.with_name("examples.json")
    examples = read_json(path) if path.is_file() else None
    return page("page.html.j2", title=title_of(text), body=html(text, report.parent), examples=examples)


def _commands(study: StudyFrames) -> tuple[str, ...]:
    """What makes the results of a study again: one without a file is the default pipeline, its verbs with other
    parameters, or a DVC experiment."""
    record = study.record
    if record.source:
        return f"realm-lab sweep {record.source}", f"realm-lab report {record.name}"
    if record.name == SCRATCH:
        flags = [f"--preset {run.record.preset}" for run in study.runs[:1]]
        flags += [f"--set {shlex.quote(f'{name}={show(value)}')}" for name, value in record.common.items()]
        return " ".join(["realm-lab evaluate", *flags]), f"realm-lab report {SCRATCH}"
    return ("dvc repro",) if record.name == DEFAULT else (f"dvc exp apply {record.name}", "dvc repro")


def write_report(
    study: StudyFrames,
    folder: Path,
    title: str = "",
    commands: Sequence[str] = (),
    *,
    paper: bool = False,
    explorer: bool = False,
) -> dict[str, Any]:
    """Everything of one study into `folder`; returns what summary.json says.

    `title` is the heading (default: the study's name), `commands` make it again (default: the study's sweep).
    """
    record = study.record
    commands = commands or _commands(study)
    results = compare_cells(record, study.results, record.metrics or DEFAULT_METRICS, Scores(study.runs))
    answer = verdict(record, results)
    found = drawings(study, results, is_paper=paper)
    examples = load_examples(study)
    summary = summarised(study) | {
        "verdict": str(answer),
        "lead": answer.lead,
        "warnings": [*tables.unfinished(study), *confounds(study), *code_notes(study), *study.problems],
        "flags": study.flags,
        "figures": [drawing.entry for drawing in found],
        "comparisons": as_json(results),
    }
    rows = [(result, tables.result_rows(result, study.results)) for result in results]
    others = tables.other_rows(study)
    text = render(
        "study.md.j2",
        title=title or f"Study: {record.name}",
        commands=commands,
        summary=summary,
        baseline=record.cell(record.baseline).title,
        seeds=seeds_text(record.seeds),
        common=", ".join(f"{name} = {show(value)}" for name, value in record.common.items()),
        presets=sorted({run.record.preset for run in study.runs}),
        results=rows,
        interactions=interaction_rows(record, results),
        **others,
        runs=tables.run_rows(study),
        worked=table_3(study, examples),
        expected=expected_rows(record, study.results, record.metrics or DEFAULT_METRICS),
        machines=sorted({machine for run in study.runs for machine in run.environment("cpu")}),
        commits=sorted({commit for run in study.runs for commit in run.environment("git_commit")}),
    )
    write_results(folder / "results.csv", study.results)
    write_figures(folder, found)
    write_text(folder / "report.md", text)
    if paper:
        write_tables(folder, rows, others, summary["figures"])
    write_json(folder / "summary.json", summary)
    if explorer:
        write_json(folder / "examples.json", explorer_data(study, examples))
    return summary


def summarised(study: StudyFrames) -> dict[str, Any]:
    """Per cell how many runs there are, and of each metric n, mean, sd (ddof = 1), min and max over the seeds."""
    record, cells = study.record, {}
    for cell in record.cells:
        mine = study.results[study.results["cell"] == cell.name]
        found = {name: summarise(mine[name]) for name in metric_columns(study.results)}
        cells[cell.name] = {
            "title": cell.title,
            "coverage": tables.coverage(study, cell.name),
            "collapsed": int(mine["collapsed"].sum()),
            "metrics": {name: summary._asdict() for name, summary in found.items() if summary},
        }
    return {
        "study": record.name,
        "question": record.question,
        "baseline": record.baseline,
        "seeds": list(record.seeds),
        "metrics": list(record.metrics or DEFAULT_METRICS),
        "delta": record.delta,
        "coverage": tables.coverage(study),
        "cells": cells,
    }


def write_figures(folder: Path, found: list[Drawing]) -> None:
    """figures/NAME.png of each drawing, and NAME.pdf for a paper; those of our earlier report without data go."""
    before = read_summary(folder)
    for drawing in found:
        for suffix, data in {"png": drawing.png, "pdf": drawing.pdf}.items():
            if data:
                with atomic_write(folder / "figures" / f"{drawing.name}.{suffix}", "wb") as file:
                    file.write(data)
    for name in {entry["name"] for entry in before.get("figures", ())} - {drawing.name for drawing in found}:
        for suffix in ("png", "pdf"):
            (folder / "figures" / f"{Path(name).name}.{suffix}").unlink(missing_ok=True)
