"""From the data of a report to its files: summary.json, report.md, and the figures that are drawn from the data.

The same data gives the same bytes, so a committed report can be compared with a fresh rendering.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any

from realm_lab.evidence.report import tables
from realm_lab.evidence.report.all_sections import sections_of
from realm_lab.evidence.report.comparison import gaps_as_json
from realm_lab.evidence.report.default_run import metrics_of
from realm_lab.evidence.report.figures import Drawing, Sketch, draw
from realm_lab.evidence.report.frames import metric_columns, read_summary, summarise
from realm_lab.evidence.report.paper import write_tables
from realm_lab.evidence.report.rendering import render, seeds_text
from realm_lab.evidence.report.report_data import FIELDS, KEYS, Report, load_report, plain
from realm_lab.evidence.report.section import ReportSection
from realm_lab.evidence.report.study_figures import sketches
from realm_lab.evidence.reproduce import expected_rows
from realm_lab.evidence.statistics.wording import false_alarms
from realm_lab.records.files import atomic_write, write_text
from realm_lab.records.metrics import metric
from realm_lab.records.parameters import show
from realm_lab.records.study import DEFAULT

LAST = ("cost", "operations", "staleness")  # figures that come after those of the study's own
MOST_DIFFERENCES = 5  # of a file, in what `stale` returns


def write_rendered(folder: Path, report: Report, own: Sequence[Drawing] = (), *, paper: bool = False) -> dict[str, Any]:
    """Write all that is made of the data, with the drawings `own` of the study; returns the content of summary.json."""
    sections = sections_of(report)
    sketched = sketches(report, sections)
    drawn = [drawing for sketch in sketched if (drawing := draw(sketch, is_paper=paper))]
    summary = summary_of(report, sections, sketched)
    write_figures(folder, [*drawn, *own], {entry["name"] for entry in summary["figures"]})
    if paper:
        write_tables(folder, report, sections, summary["figures"])
    for name, text in texts(report, sections, summary).items():
        write_text(folder / name, text)
    return summary


def render_again(folder: Path) -> None:
    """Write a report again from its data. UserError: it is broken."""
    report = load_report(folder)
    write_rendered(folder, report, paper=(folder / "tables" / "all.tex").is_file())
    for name, text in _of_default(folder, report).items():
        write_text(folder / name, text)


def stale(folder: Path) -> list[str]:
    """Lines of a report's files that today's code writes otherwise, a sentence each. UserError: it is broken."""
    report = load_report(folder)
    sections = sections_of(report)
    fresh = texts(report, sections, summary_of(report, sections, sketches(report, sections)))
    fresh |= _of_default(folder, report)
    return [line for name, text in fresh.items() for line in _differences(folder / name, text)]


def _of_default(folder: Path, report: Report) -> dict[str, str]:
    """metrics.json next to the report of the default run."""
    if folder.name != DEFAULT or not folder.with_name("metrics.json").is_file():
        return {}
    return {"../metrics.json": _json(metrics_of(report.record, report.results, report.data["presets"]))}


def _differences(path: Path, fresh: str) -> list[str]:
    there = path.read_text(encoding="utf-8") if path.is_file() else ""
    if there == fresh:
        return []
    lines = list(unified_diff(there.splitlines(), fresh.splitlines(), n=0, lineterm=""))[2:]
    changed = [line for line in lines if not line.startswith("@@")]
    more = [f"{path.name}: {len(changed) - MOST_DIFFERENCES} more lines"] * (len(changed) > MOST_DIFFERENCES)
    return [f"{path.name}: {line}" for line in changed[:MOST_DIFFERENCES]] + more


def texts(report: Report, sections: Mapping[str, ReportSection], summary: dict[str, Any]) -> dict[str, str]:
    """The text of each file."""
    return {"summary.json": _json(summary), "report.md": markdown(report, sections, summary)}


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def summary_of(report: Report, sections: Mapping[str, ReportSection], sketched: Sequence[Sketch]) -> dict[str, Any]:
    """Return the content of summary.json: the findings, then the data from the runs. Per cell there are n, mean, sd
    (ddof = 1), min and max of each metric over the seeds."""
    record, results, cells = report.record, report.results, {}
    for cell in record.cells:
        mine = results[results["cell"] == cell.name]
        found = {name: summarise(mine[name]) for name in metric_columns(results)}
        cells[cell.name] = {
            "title": cell.title,
            "coverage": tables.coverage(results, cell.name),
            "collapsed": int(mine["collapsed"].sum()),
            "metrics": {name: summary._asdict() for name, summary in found.items() if summary},
        }
    entries = [sketch.entry for sketch in sketched]
    last = [entry for entry in entries if entry["name"] in LAST]
    own = report.data["own_figures"]
    first = [entry for entry in entries if entry not in last]
    answered: dict[str, Any] = {
        "study": record.name,
        "question": record.question,
        "lead": report.verdict.lead,
        "verdict": str(report.verdict),
        "coverage": tables.coverage(results),
        "figures": [*first, *own, *last],
        "cells": cells,
        "comparisons": report.comparisons,
        "calibration": report.calibration and report.calibration.as_json(),
        "gaps": gaps_as_json(report.compared),
        "flags": report.flags,
    }
    if report.verdict.missing:
        answered["missing"] = report.verdict.missing
    found = {section.field or section.name: section.data() for section in sections.values()}
    answered |= {name: data for name, data in found.items() if data is not None}
    known = [*FIELDS, *(name for name in answered if name not in FIELDS)]
    ordered = {name: answered[name] for name in known if name in answered}
    return dict(plain(ordered | {key: report.data[key] for key in KEYS}))


def terminal_text(folder: Path, metrics: int) -> str:
    """Return the terminal's version of the report in `folder`: no figures, and tables of the first few `metrics`."""
    report = load_report(folder)
    sections = sections_of(report)
    return markdown(report, sections, summary_of(report, sections, ()), "terminal.md.j2", metrics)


def markdown(
    report: Report,
    sections: Mapping[str, ReportSection],
    summary: dict[str, Any],
    template: str = "study.md.j2",
    metrics: int | None = None,
) -> str:
    """The text of report.md."""
    record, results, data = report.record, report.results, report.data
    commits = sorted({commit for run in data["runs"] for commit in run.get("commits", ())})
    return render(
        template,
        title=data["title"],
        summary=summary,
        calibration=false_alarms(report.calibration) if report.calibration else "",
        rest=str(report.verdict._replace(lead="")),
        seeds=seeds_text(record.seeds),
        flagged=report.flagged,
        common=", ".join(f"{name} = {show(value)}" for name, value in record.common.items()),
        warnings=[*tables.unfinished(results), *data["warnings"], *data["code"]],
        results=[
            (one, tables.result_rows(one, results), tables.detail_rows(one, results))
            for one in report.compared[:metrics]
        ],
        seeds_and_questions=any(
            cell.finding and cell.finding.seeds_and_questions for one in report.compared for cell in one.cells
        ),
        has_curves="index_staleness_steps" not in results
        or results["index_staleness_steps"].isna().all()
        or not report.curves.empty,
        delta=", ".join(f"{metric(name).title}: {largest:g}" for name, largest in record.delta.items()),
        sections=sections,
        runs=tables.run_rows(report),
        expected=expected_rows(record, results),
        commits=commits,
    )


def write_figures(folder: Path, drawn: Sequence[Drawing], kept: set[str]) -> None:
    """The files of each drawing, figures/NAME.SUFFIX. Figures of our earlier report go if not `kept`."""
    before = read_summary(folder)
    for drawing in drawn:
        for suffix, data in drawing.files.items():
            with atomic_write(folder / "figures" / f"{drawing.name}.{suffix}", "wb") as file:
                file.write(data)
    for name in {entry["name"] for entry in before.get("figures", ())} - kept:
        for suffix in ("png", "pdf", "svg"):
            (folder / "figures" / f"{Path(name).name}.{suffix}").unlink(missing_ok=True)
