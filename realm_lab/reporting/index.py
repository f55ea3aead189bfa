"""reports/index.html: one self-contained page for all studies, made of what lies under reports/.

No run folder is read: a study that was run elsewhere and committed is on the page like any other, and a fresh clone can
write the page again. The numbers of a study come from its results.csv, what is said of it from its summary.json,
pictures from figures/, the explorer of
worked examples from default/examples.json. What has no summary of a study (a report made by hand, a search) is linked.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from realm_lab.core.files import read_json, write_text
from realm_lab.errors import UserError
from realm_lab.reporting.comparison import compare_cells
from realm_lab.reporting.frames import load_committed
from realm_lab.reporting.rendering import asset, number, picture, render
from realm_lab.reporting.tables import result_rows
from realm_lab.tracking.study_record import StudyCell, StudyRecord

DEFAULT = "default"
SHOWN_FIGURES = 2  # of a study; the default run shows all
HEADING_CHARACTERS = 200


def write_index(reports: Path) -> Path:
    """Write the page from what lies under `reports`; returns its path. Without any report the page says so."""
    reports = Path(reports)
    problems: list[str] = []
    studies, others = [], []
    folders = sorted(path for path in reports.iterdir() if path.is_dir()) if reports.is_dir() else []
    for folder in sorted(folders, key=lambda path: (path.name != DEFAULT, path.name)):
        if (folder / "results.csv").is_file():
            try:
                studies.append(_study(folder))
                continue
            except UserError as error:
                problems.append(str(error).replace(f"{reports}/", "reports/"))
        if (folder / "report.md").is_file():
            others.append(_link(folder))
    examples = _examples(reports / DEFAULT / "examples.json", problems)
    script = asset("page.js")
    text = render(
        "index.html.j2",
        style=asset("page.css"),
        script=script,
        script_digest=Markup(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()),
        studies=studies,
        others=others,
        problems=problems,
        runs=sum(study["coverage"]["runs"] for study in studies),
        complete=sum(study["coverage"]["complete"] for study in studies),
        examples=Markup(embed(examples)) if examples and examples.get("examples") else None,
    )
    write_text(reports / "index.html", text)
    return reports / "index.html"


def embed(value: Any) -> str:
    """JSON that can stand inside a script element: no "<" survives, so neither "</script" nor "<!--" can."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _study(folder: Path) -> dict[str, Any]:
    """What the page says of one study; its numbers and differences are computed again from results.csv.

    Raises:
        UserError: its summary.json or results.csv cannot be read.
    """
    summary, results = load_committed(folder)
    try:
        record, names = design_of(summary), summary["metrics"]
        found = compare_cells(record, results, names)
        figures = summary.get("figures", [])
        figures = [entry for entry in figures if (folder / "figures" / f"{entry['name']}.png").is_file()]
        return {
            "name": folder.name,
            "question": record.question,
            "verdict": summary["verdict"].removeprefix(record.question).strip(),
            "baseline": record.cell(record.baseline).title,
            "headline": f"{found[0].metric.title} {number(found[0].baseline.mean)}" if found else "",
            "cells": len(record.cells),
            "seeds": len(record.seeds),
            "coverage": summary["coverage"],
            "warnings": summary.get("warnings", []),
            "flags": summary.get("flags", []),
            "links": [name for name in ("report.html", "report.md", "results.csv") if (folder / name).is_file()],
            "address": quote(folder.name),
            "tables": [
                {"title": one.metric.title, "unit": one.metric.unit, "rows": result_rows(one, results)} for one in found
            ],
            "figures": [
                entry | {"data": picture(folder / "figures" / f"{entry['name']}.png")}
                for entry in (figures if folder.name == DEFAULT else figures[:SHOWN_FIGURES])
            ],
        }
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise UserError(f"{folder / 'summary.json'}: {error!r} is missing; write the report again") from None


def design_of(summary: dict[str, Any]) -> StudyRecord:
    """The design of a study as its summary.json has it: enough to compare its cells again."""
    tuned = summary.get("tuned", {}).get("parameter", "").rpartition(".")[2]
    own = [name for name in summary["cells"] if not tuned or f",{tuned}=" not in name]  # without those of the grid
    cells = tuple(StudyCell(name, summary["cells"][name]["title"], "", {}) for name in own)
    return StudyRecord(summary["study"], summary["question"], summary["baseline"], cells, tuple(summary["seeds"]), ())


def _link(folder: Path) -> dict[str, str]:
    """A report that the page does not show, with its heading and first words."""
    lines = (folder / "report.md").read_text(encoding="utf-8", errors="replace").splitlines()
    title = next((line.lstrip("# ") for line in lines if line.startswith("#")), folder.name)
    text = next((line.strip("*> ") for line in lines if line.strip() and line[0] not in "#|!<-"), "")
    return {"address": f"{quote(folder.name)}/report.md", "title": title, "text": text[:HEADING_CHARACTERS]}


def _examples(path: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        found = read_json(path) if path.is_file() else None
    except UserError as error:
        problems.append(str(error))
        return None
    return found if isinstance(found, dict) else None
