"""Writes reports/NAME, the report of a study. The same runs give the same bytes.

    results.csv     a row for each run            summary.json    the findings, and further data from the runs
    curves.csv      curves of the figure          examples.json   single questions, for the pages
    report.md       the report, rendered from these files (report_files.py), as are most of figures/*.png
    report.html     report.md with the examples as one page, for the default run or with `--html`
    tables/*.tex    LaTeX tables; like figures/*.pdf and *.svg only with `--paper`

A report is replaced by one of fewer complete runs only with `force`, since the missing runs may have run elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from realm_lab.errors import UserError
from realm_lab.evidence.ledger import findings_of, note_look, plan_of
from realm_lab.evidence.report.all_sections import collect
from realm_lab.evidence.report.default_run import write_default_outputs
from realm_lab.evidence.report.edited import check_results
from realm_lab.evidence.report.examples import explorer_data
from realm_lab.evidence.report.frames import StudyFrames, load_runs, read_summary, report_folder, results_text
from realm_lab.evidence.report.index import write_index
from realm_lab.evidence.report.rendering import html, page, title_of
from realm_lab.evidence.report.report_files import render_again, write_files
from realm_lab.evidence.report.sections.more_figures import own_figures
from realm_lab.evidence.report.tables import coverage
from realm_lab.records.files import read_json, write_json, write_text
from realm_lab.records.study import DEFAULT, Studies

NO_PLAN = {"line": 0}  # for a study without a plan in the ledger; the default pipeline needs none
SEARCH = "search-"  # first part of the names of searches, whose reports are written elsewhere


def report(
    root: Path,
    study: str | None = None,
    *,
    force: bool = False,
    html: bool = False,
    paper: bool = False,
    studies: Studies | None = None,
) -> Path:
    """`realm-lab report [STUDY]`: report one study or all; returns the path of the file to open.

    A report without runs here (a reference result, or one of runs elsewhere) is rendered again from its data.
    """
    studies = studies or Studies(Path(root) / "runs")
    if study is None:
        if html or paper:
            flag = "--html" if html else "--paper"
            raise UserError(f"report {flag}: name the study, `realm-lab report NAME {flag}`")
        return write_all(root, force=force, studies=studies)
    folder = Path(root) / "reports" / Path(study).name.removesuffix(".yaml")
    is_run_here = folder.name in studies.names()
    there = report_folder(root, folder.name)
    if there and not is_run_here:
        folder = there
        check_results(Path(root), there)
        render_again(there, paper=paper)
        write_index(root / "reports" if there.parent.name != "reference" else there.parent)
    else:
        write_study_report(root, folder.name, force=force, paper=paper, explorer=html, studies=studies)
    if paper:
        return folder / "tables" / "all.tex"
    return write_page(folder) if html else folder / "report.md"


def write_study_report(
    root: Path,
    name: str,
    *,
    force: bool = False,
    paper: bool = False,
    explorer: bool = False,
    studies: Studies | None = None,
) -> Path:
    """Write reports/NAME of a study that has been recorded, and the page of all studies; returns the folder.

    `force`: replace even a report of more complete runs. `paper`: also write LaTeX tables, PDF and SVG. `explorer`:
    also write examples.json. The files of both are always written again if they exist.
    UserError: no such study here, its tuning is unfinished, or the existing report has more complete runs.
    """
    root, folder = Path(root), Path(root) / "reports" / name
    record = (studies or Studies(root / "runs")).read(name)
    if record.tuning and not record.runs:
        raise UserError(f"study {name}: its variants are being tuned, see `realm-lab status {name}`")
    study = load_runs(root / "runs", record)
    reported = read_summary(folder).get("coverage", {}).get("complete", 0)
    if (complete := coverage(study.results)["complete"]) < reported and not force:
        raise UserError(
            f"counts {reported} complete runs, here are {complete}",
            "it stays as it is (run the rest, or replace it with --force)",
            path=folder / "report.md",
        )
    explorer = explorer or name == DEFAULT or (folder / "examples.json").is_file()
    plan = plan_of(root / "runs", name) or (None if name == DEFAULT else NO_PLAN)
    paper = paper or (folder / "tables" / "all.tex").is_file()
    summary = write_report(study, folder, paper=paper, explorer=explorer, plan=plan)
    note_look(root / "runs", name, folder / "results.csv", complete, findings_of(summary))
    if name == DEFAULT:
        write_default_outputs(study, root / "reports")
        write_page(folder)
    write_index(root / "reports")
    return folder


def write_all(root: Path, *, force: bool = False, studies: Studies | None = None) -> Path:
    """Write the report of every study whose runs are here, and the page of all studies; returns the page.

    A study with fewer complete runs here than its report counts keeps its report; so does a broken study. UserError: no
    study was run here, and there is no report either.
    """
    root = Path(root)
    studies = studies or Studies(root / "runs")
    if not studies.names() and not (root / "reports").is_dir():
        raise UserError(
            "no runs and no reports here", "run `realm-lab sweep NAME` first, or `realm-lab init FOLDER`", path=root
        )
    for name in (name for name in studies.names() if not name.startswith(SEARCH)):
        try:
            write_study_report(root, name, force=force, studies=studies)
        except UserError as error:  # a broken or smaller study must not prevent the reports of the others
            print(f"study {name}: its report stays as it is: {error}", file=sys.stderr)
    return write_index(root / "reports")


def write_page(folder: Path) -> Path:
    """Write report.html from the report.md and the examples.json of a folder; returns its path."""
    write_text(folder / "report.html", page_of(folder / "report.md"))
    return folder / "report.html"


def page_of(report: Path) -> str:
    """Convert a report.md into one self-contained page."""
    text, path = report.read_text(encoding="utf-8"), report.with_name("examples.json")
    examples = read_json(path) if path.is_file() else None
    return page("page.html.j2", title=title_of(text), body=html(text, report.parent), examples=examples)


def write_report(
    study: StudyFrames,
    folder: Path,
    title: str = "",
    commands: Sequence[str] = (),
    *,
    paper: bool = False,
    explorer: bool = False,
    plan: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the report of one study into `folder`; returns the content of summary.json.

    `title` is the heading (default: the study's name), `commands` reproduce the report (default: the study's sweep),
    `plan` is the study's plan as `plan_of` returns it.
    """
    own = own_figures(study, is_paper=paper)
    report = collect(study, [entry for entry, _ in own], title, commands, plan)
    write_text(folder / "results.csv", results_text(study.results))
    if report.curves.empty:
        (folder / "curves.csv").unlink(missing_ok=True)
    else:
        write_text(folder / "curves.csv", results_text(report.curves))
    if explorer:
        write_json(folder / "examples.json", explorer_data(study))
    return write_files(folder, report, [drawing for _, drawing in own], paper=paper)
