"""Writes the files of a report from its data: summary.json, report.md, and the figures that are drawn from the data.

The same data gives the same bytes, so a committed report can be compared with a fresh rendering.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path
from typing import Any, get_args

from markupsafe import escape

from realm_lab.evidence.report.all_sections import sections_of, summary_of
from realm_lab.evidence.report.default_run import metrics_of
from realm_lab.evidence.report.figures import Drawing, draw
from realm_lab.evidence.report.frames import read_summary
from realm_lab.evidence.report.paper import write_tables
from realm_lab.evidence.report.rendering import escape_markdown
from realm_lab.evidence.report.report_data import Report, load_report
from realm_lab.evidence.report.section import Group, ReportSection
from realm_lab.records.files import atomic_write, json_text, write_text
from realm_lab.records.study import DEFAULT

MOST_DIFFERENCES = 5  # of a file, that `stale` lists


def write_files(folder: Path, report: Report, own: Sequence[Drawing] = (), *, paper: bool = False) -> dict[str, Any]:
    """Write the files of a report, with the custom figures `own`; returns the content of summary.json."""
    sections = sections_of(report)
    summary = summary_of(report, sections)
    sketches = (sketch for section in sections.values() for sketch in section.sketches)
    drawn = [drawing for sketch in sketches if (drawing := draw(sketch, is_paper=paper))]
    write_figures(folder, [*drawn, *own], {entry["name"] for entry in summary["figures"]})
    if paper:
        write_tables(folder, report, sections, summary["figures"])
    for name, text in texts(sections, summary).items():
        write_text(folder / name, text)
    return summary


def render_again(folder: Path, *, paper: bool = False) -> None:
    """Write a report again from its data, with the files of `--paper` if it has them or `paper` is set. UserError: the
    report is broken."""
    report = load_report(folder)
    write_files(folder, report, paper=paper or (folder / "tables" / "all.tex").is_file())
    for name, text in _of_default(folder, report).items():
        write_text(folder / name, text)


def stale(folder: Path) -> list[str]:
    """Return the lines of a report's files that today's code writes differently. UserError: the report is broken."""
    report = load_report(folder)
    sections = sections_of(report)
    fresh = texts(sections, summary_of(report, sections)) | _of_default(folder, report)
    return [line for name, text in fresh.items() for line in _differences(folder / name, text)]


def _of_default(folder: Path, report: Report) -> dict[str, str]:
    """Return the text of metrics.json for the report of the default run; empty for any other report."""
    if folder.name != DEFAULT or not folder.with_name("metrics.json").is_file():
        return {}
    return {"../metrics.json": json_text(metrics_of(report.record, report.results, report.data["presets"]))}


def _differences(path: Path, fresh: str) -> list[str]:
    there = path.read_text(encoding="utf-8") if path.is_file() else ""
    if there == fresh:
        return []
    lines = list(unified_diff(there.splitlines(), fresh.splitlines(), n=0, lineterm=""))[2:]
    changed = [line for line in lines if not line.startswith("@@")]
    more = [f"{path.name}: {len(changed) - MOST_DIFFERENCES} more lines"] * (len(changed) > MOST_DIFFERENCES)
    return [f"{path.name}: {line}" for line in changed[:MOST_DIFFERENCES]] + more


def texts(sections: dict[str, ReportSection], summary: dict[str, Any]) -> dict[str, str]:
    """Return the texts of summary.json and report.md by their names."""
    return {"summary.json": json_text(summary), "report.md": markdown(sections)}


def markdown(sections: dict[str, ReportSection]) -> str:
    """The text of report.md: the first screen, then a part for each group, which GitHub, the site and pages fold."""
    parts = _first(sections)
    for group in get_args(Group)[1:]:
        of_group = (section for section in sections.values() if section.group == group)
        if texts := [(section.heading or section.name, text) for section in of_group if (text := section.text)]:
            titles = escape(" · ".join(title for title, _ in texts))
            parts.append(f'<details markdown="1">\n<summary>{group}: {titles}</summary>')
            parts += [f"## {escape_markdown(title)}\n\n{text}" for title, text in texts] + ["</details>"]
    return tidy(parts)


def terminal_text(folder: Path) -> str:
    """Return the terminal's version of the report in `folder`, without figures: the first screen, then the tables of
    the other declared metrics, flags, warnings and cells."""
    report = load_report(folder)
    sections = sections_of(replace(report, record=replace(report.record, exploratory=())))
    for section in sections.values():
        section.sketches = ()
    last = (sections[name] for name in ("other_metrics", "flags", "warnings", "cells"))
    return tidy([*_first(sections), *(f"## {one.heading}\n\n{text}" for one in last if (text := one.text))])


def _first(sections: dict[str, ReportSection]) -> list[str]:
    """Return the parts of the first screen."""
    texts: list[str] = [section.text for section in sections.values() if not section.group]
    return texts + [escape_markdown(section.sentence) for section in sections.values() if section.sentence]


def tidy(parts: Sequence[str]) -> str:
    """Return parts of Markdown with one empty line between paragraphs."""
    return re.sub(r"\n{3,}", "\n\n", "\n\n".join(parts)).strip() + "\n"


def write_figures(folder: Path, drawn: Sequence[Drawing], kept: set[str]) -> None:
    """Write each drawing as figures/NAME.SUFFIX, and delete figures of the earlier report that are not in `kept`."""
    before = read_summary(folder)
    for drawing in drawn:
        for suffix, data in drawing.files.items():
            with atomic_write(folder / "figures" / f"{drawing.name}.{suffix}", "wb") as file:
                file.write(data)
    for name in {entry["name"] for entry in before.get("figures", ())} - kept:
        for suffix in ("png", "pdf", "svg"):
            (folder / "figures" / f"{Path(name).name}.{suffix}").unlink(missing_ok=True)
