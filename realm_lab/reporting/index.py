"""reports/index.html: one self-contained page for all studies, made from the files under reports/ and no run folder.

It shows your own results, and those of reports/reference/, which are committed, if you have none of that name. The
numbers of a study come from its results.csv, its verdict from its summary.json, images from figures/, the explorer
from default/examples.json. A report without a summary of a study (made by hand, or of a search) is linked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from realm_lab.core.files import read_json, write_text
from realm_lab.errors import UserError
from realm_lab.reporting.frames import read_summary
from realm_lab.reporting.rendering import page, picture, title_of
from realm_lab.reporting.report_data import load_report
from realm_lab.reporting.tables import result_rows, unfinished
from realm_lab.tracking.study_record import DEFAULT

SHOWN_FIGURES = 2  # of a study; the default run shows all


def write_index(reports: Path) -> Path:
    """Write the page from what lies under `reports`; returns its path. Without any report the page says so."""
    reports = Path(reports)
    problems: list[str] = []
    studies, others, examples = [], [], None
    found = [path.parent for pattern in ("reference/*/report.md", "*/report.md") for path in reports.glob(pattern)]
    # The last of a name is shown: your own where it has a complete run, else that of reference/.
    # One that cannot be read, which is said below, counts as complete.
    found.sort(
        key=lambda folder: (
            bool(read_summary(folder).get("coverage", {}).get("complete", True)),
            folder.parent.name != "reference",
        )
    )
    folders = {folder.name: folder for folder in found}
    for _, folder in sorted(folders.items(), key=lambda item: (item[0] != DEFAULT, item[0])):
        address = quote(folder.relative_to(reports).as_posix())
        try:
            if (folder / "results.csv").is_file():
                studies.append(_study(folder) | {"address": address, "is_reference": address.startswith("reference/")})
            else:
                text = (folder / "report.md").read_text(encoding="utf-8", errors="replace")
                others.append({"address": f"{address}/report.md", "title": title_of(text, folder.name)})
            if folder.name == DEFAULT and (folder / "examples.json").is_file():
                examples = read_json(folder / "examples.json")
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
        examples=examples,
    )
    write_text(reports / "index.html", text)
    return reports / "index.html"


def _study(folder: Path) -> dict[str, Any]:
    """What the page shows of one study. UserError: its summary.json or results.csv cannot be read."""
    report, summary = load_report(folder), read_summary(folder)
    try:
        pictures = [(entry, folder / "figures" / f"{entry['name']}.png") for entry in summary["figures"]]
        figures = [entry | {"data": picture(path)} for entry, path in pictures if path.is_file()]
        return summary | {
            "name": folder.name,
            "anchor": quote(folder.name),
            "rest": report.verdict.rest,
            "warnings": [*unfinished(report.results), *summary["warnings"], *summary["code"]],
            "seeds": report.record.seeds,
            "links": [name for name in ("report.html", "report.md", "results.csv") if (folder / name).is_file()],
            "tables": [(one.metric, result_rows(one, report.results)) for one in report.compared],
            "figures": figures if folder.name == DEFAULT else figures[:SHOWN_FIGURES],
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder}: {error!r}; write the report again") from None
