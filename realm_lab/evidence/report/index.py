"""reports/index.html: a table of all studies on one self-contained page, made from the files under reports/.

It shows the reports in reports/. A committed report in reports/reference/ is shown if reports/ has no report of this
name with a complete run. The numbers of a study come from its results.csv, its date and figure from its folder. A
report without a results.csv (made by hand, or of a search) is only linked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from realm_lab.errors import UserError
from realm_lab.evidence.report.frames import read_summary
from realm_lab.evidence.report.rendering import page, picture, title_of
from realm_lab.evidence.report.report_data import Report, load_report
from realm_lab.evidence.report.sections.axes import Axes
from realm_lab.evidence.report.sections.flags import Warnings
from realm_lab.evidence.report.sections.interaction import Interactions
from realm_lab.evidence.report.sections.metrics import result_rows
from realm_lab.evidence.report.sections.overview import Overview
from realm_lab.evidence.statistics.wording import signed
from realm_lab.records.files import write_text
from realm_lab.records.study import DEFAULT

MOST_OF_FIGURES = 600_000  # bytes of all figures on the page; studies after these are listed without their figure


def write_index(reports: Path) -> Path:
    """Write the page from the reports under `reports`; returns its path. Without any report the page is a note."""
    reports = Path(reports)
    problems: list[str] = []
    studies, others, room = [], [], MOST_OF_FIGURES
    found = [path.parent for pattern in ("reference/*/report.md", "*/report.md") for path in reports.glob(pattern)]
    # The last report of each name is shown: the one in reports/ if it has a complete run, else the one in reference/.
    # A report that cannot be read counts as complete, and gets a note below.
    found.sort(
        key=lambda folder: (
            bool(read_summary(folder).get("coverage", {}).get("complete", True)),
            folder.parent.name != "reference",
        )
    )
    folders = {folder.name: folder for folder in found}
    for folder in sorted(folders.values(), key=lambda one: (one.parent.name == "reference", one.name != DEFAULT, one)):
        address = quote(folder.relative_to(reports).as_posix())
        try:
            if (folder / "results.csv").is_file():
                study = _study(folder) | {"address": address, "is_reference": address.startswith("reference/")}
                room -= len(study["drawing"]["data"]) if study["drawing"] else 0
                studies.append(study if room >= 0 else study | {"drawing": None})
            else:
                text = (folder / "report.md").read_text(encoding="utf-8", errors="replace")
                others.append({"address": f"{address}/report.md", "title": title_of(text, folder.name)})
        except UserError as error:
            problems.append(str(error).replace(f"{reports}/", "reports/"))
    text = page(
        "index.html.j2",
        title="realm_lab: all studies",
        studies=studies,
        others=others,
        problems=problems,
        runs=sum(study["coverage"]["runs"] for study in studies),
        complete=sum(study["coverage"]["complete"] for study in studies),
    )
    write_text(reports / "index.html", text)
    return reports / "index.html"


def _study(folder: Path) -> dict[str, Any]:
    """Return the data of one study on the page. UserError: its summary.json or results.csv cannot be read."""
    report, summary = load_report(folder), read_summary(folder)
    first = report.compared[0] if report.compared else None
    try:
        pictures = [(entry, folder / "figures" / f"{entry['name']}.png") for entry in summary["figures"][:1]]
        drawn = [entry | {"data": picture(path)} for entry, path in pictures if path.is_file()]
        return summary | {
            "name": folder.name,
            "anchor": quote(folder.name),
            "rest": Overview(report).verdict.rest,
            "flags": report.flags,
            "warnings": Warnings(report).lines,
            "seeds": report.record.seeds,
            "links": [name for name in ("report.html", "report.md", "results.csv") if (folder / name).is_file()],
            "designs": [("Means by both axes", Axes(report).rows), ("Interaction", Interactions(report).rows)],
            "table": (first.metric, result_rows(first, report.results)) if first else None,
            "others": [one.metric for one in report.compared[1:]],
            "strongest": _strongest(report),
            "drawing": drawn[0] if drawn else None,
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(repr(error), "write the report again", path=folder) from None


def _strongest(report: Report) -> dict[str, Any] | None:
    """Return the finding with the smallest p in the first metric, among the interactions if there are any, else among
    the cells."""
    first = report.compared[:1]
    findings = [one.finding for one in report.interactions if one.metric == first[0].metric]
    findings = findings or [cell.finding for one in first for cell in one.cells if cell.finding]
    if not findings:
        return None
    found = min(findings, key=lambda one: (one.corrected_p, -abs(one.size)))
    return {"delta": found.size, "text": signed(found.size, found.metric.digits), "p": found.corrected_p}
