"""reports/index.html: one self-contained page for all studies, made of what lies under reports/ and no run folder.

It shows your own results, and those of reports/reference/, which are committed, where you have none of that name.
The numbers of a study come from its results.csv, its verdict from its summary.json, pictures from figures/, the
explorer from default/examples.json. What has no summary of a study (a report made by hand, a search) is linked.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from realm_lab.core.files import read_json, write_text
from realm_lab.errors import UserError
from realm_lab.reporting.comparison import compare_cells
from realm_lab.reporting.frames import load_committed, read_summary
from realm_lab.reporting.rendering import page, picture, title_of
from realm_lab.reporting.tables import result_rows
from realm_lab.reporting.verdict import Verdict, verdict
from realm_lab.tracking.study_record import DEFAULT, StudyCell, StudyRecord

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
    """What the page says of one study; its numbers and differences are computed again from results.csv. UserError: its
    summary.json or results.csv cannot be read."""
    summary, results = load_committed(folder)
    try:
        record = design_of(summary)
        found = compare_cells(record, results, summary["metrics"])
        if "lead" in summary:  # with what is known of runs alone: axes
            answer = Verdict(summary["lead"], summary["verdict"].removeprefix(summary["lead"]).strip())
        else:
            answer = verdict(record, found)
        pictures = [(entry, folder / "figures" / f"{entry['name']}.png") for entry in summary.get("figures", [])]
        figures = [entry | {"data": picture(path)} for entry, path in pictures if path.is_file()]
        return summary | {
            "name": folder.name,
            "anchor": quote(folder.name),
            "lead": answer.lead,
            "rest": answer.rest,
            "cells": record.cells,
            "links": [name for name in ("report.html", "report.md", "results.csv") if (folder / name).is_file()],
            "tables": [(one.metric, result_rows(one, results)) for one in found],
            "figures": figures if folder.name == DEFAULT else figures[:SHOWN_FIGURES],
        }
    except (KeyError, TypeError, AttributeError, ValueError, StopIteration) as error:
        raise UserError(f"{folder}: {error!r}; write the report again") from None


def design_of(summary: dict[str, Any]) -> StudyRecord:
    """The design of a study as its summary.json has it: enough to compare its cells again."""
    cells = tuple(StudyCell(name, told["title"], "", {}) for name, told in summary["cells"].items())
    record = StudyRecord(summary["study"], summary["question"], summary["baseline"], cells, tuple(summary["seeds"]), ())
    return replace(record, delta=summary.get("delta", {}))
