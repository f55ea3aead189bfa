"""`realm-lab compare`: two or more runs, or cells of studies, against the first.

The sides are the cells of a study that exists for this comparison alone. Where two sides have several seeds in common
the unit is the seed, as in any study; two single runs can only be compared question by question, which speaks of
other questions and not of other seeds.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from realm_lab.core.files import digest, write_text
from realm_lab.errors import UserError
from realm_lab.metrics import METRICS
from realm_lab.reporting import tables
from realm_lab.reporting.comparison import CellResult, MetricResult, Scores, bounds, compare_cells
from realm_lab.reporting.confounds import confounds, flat_parameters, paper_parameters
from realm_lab.reporting.frames import Run, StudyFrames, load_runs, summarise
from realm_lab.reporting.rendering import NOTHING, interval, mean_sd, number, page_of, render, signed
from realm_lab.reporting.report import write_figures
from realm_lab.reporting.run_selection import Side, find_sides
from realm_lab.reporting.statistics import per_example_interval
from realm_lab.reporting.study_figures import drawings
from realm_lab.tracking.run_dir import read_run_record
from realm_lab.tracking.study_record import StudyCell, StudyRecord, StudyRun

NAME_CHARACTERS = 80  # of the page's folder; longer ones are cut and told apart by a digest
PLAIN_WIDTH = 160  # columns where there is no terminal


def compare_runs(root: Path, texts: Sequence[str], out: Path | None, *, is_json: bool) -> None:
    """Compare, print, and write report.md and index.html into `out`/NAME (default: ROOT/reports/compare).

    Raises:
        UserError: fewer than two sides, an unknown or ambiguous one, or one without any run that could be read.
    """
    sides = find_sides(root / "runs", texts)
    study = load_sides(root / "runs", sides)
    results = compare_sides(study)
    name = "-vs-".join(side.name.replace("/", ".") for side in sides)
    name = name if len(name) <= NAME_CHARACTERS else f"{name[:NAME_CHARACTERS]}-{digest(name)[:8]}"
    folder = (out or root / "reports" / "compare") / name
    content = _content(study, results)
    found = drawings(study, results)
    write_figures(folder, found)
    text = render("compare.md.j2", **content, figures=[drawing.entry for drawing in found])
    write_text(folder / "report.md", text)
    page = folder / "index.html"
    write_text(page, page_of(text, folder))
    if is_json:
        print(json.dumps(_as_json(sides, study, results, content["warnings"]) | {"page": str(page)}, indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)
    console.print(Markdown(render("compare.md.j2", **content, figures=[]), hyperlinks=False))
    print(page)


def load_sides(runs: Path, sides: Sequence[Side]) -> StudyFrames:
    """The sides as the cells of a study, the first one its baseline.

    Raises:
        UserError: a side without a run that could be read.
    """
    titles = _titles(sides)
    cells, members = [], []
    for side, title in zip(sides, titles, strict=True):
        problems = []
        for run in side.runs:
            try:
                found = read_run_record(runs / run / "run.json")
            except (UserError, OSError) as error:
                problems.append(str(error))
                continue
            members.append(StudyRun(title, found.seed, found.run_key, run))
        if not any(member.cell == title for member in members):
            raise UserError(f"'{side.name}': nothing to compare ({'; '.join(problems) or 'no runs'}); run it first")
        cells.append(StudyCell(title, title, "", {}))
    seeds = tuple(sorted({member.seed for member in members}))
    record = StudyRecord("compare", "", cells[0].name, tuple(cells), seeds, tuple(members))
    study = load_runs(runs, record)
    # what a side changes of the first is whatever differs: a comparison declares nothing
    flats = {title: paper_parameters() | flat_parameters(study.of(title)[0].record.params) for title in titles}
    changes = {
        title: {key: flat.get(key) for key in _differing([flats[titles[0]], flat])} for title, flat in flats.items()
    }
    systems = {title: next(iter(study.of(title))).record.system for title in titles}
    told = tuple(replace(cell, system=systems[cell.name], changes=changes[cell.name]) for cell in cells)
    return replace(study, record=replace(record, cells=told))


def compare_sides(study: StudyFrames) -> list[MetricResult]:
    """Every metric that two sides have; two single runs of different seeds are compared by their questions alone."""
    scores = Scores(study)
    names = [name for name in (*METRICS, *_groups(study)) if name != "retrieval_utility"]
    return [_with_pairs(result, study, scores) for result in compare_cells(study.record, study.results, names, scores)]


def finding(result: MetricResult, cell: CellResult) -> str:
    """In words, and no more than the seeds or questions allow."""
    found = cell.comparison
    if found and len(found.seeds) > 1:
        return cell.finding
    if not cell.values or not result.baseline.values:
        return "no data"
    if not found and not len(cell.values) == len(result.baseline.values) == 1:
        return "no shared seed"
    if cell.per_example is None or not math.isfinite(cell.per_example.low):
        return "one run each"
    way = "higher" if _delta(result, cell) > 0 else "lower"
    return f"{way}, for these two models" if cell.per_example.excludes_zero else "not distinguishable"


def _with_pairs(result: MetricResult, study: StudyFrames, scores: Scores) -> MetricResult:
    cells = []
    for cell in result.cells:
        base = result.baseline
        is_pair = cell is not base and not cell.comparison and len(cell.values) == len(base.values) == 1
        if is_pair:
            pair = [(next(iter(cell.values)), next(iter(base.values)))]
            blocks = scores.differences(cell.cell.name, base.cell.name, pair, result.metric.name)
            if blocks:
                cell = cell._replace(per_example=per_example_interval(blocks), questions=sum(map(len, blocks)))
        cells.append(cell)
    return result._replace(cells=cells)


def _delta(result: MetricResult, cell: CellResult) -> float:
    """The paired difference where there are pairs, else that of the means."""
    if cell.comparison:
        return cell.comparison.mean
    return (cell.mean or 0.0) - (result.baseline.mean or 0.0)


def _groups(study: StudyFrames) -> list[str]:
    """Numbers that no entry of the registry names but a reader compares: overlap groups and corpus updates."""
    wanted = ("corpus_update.follows", "corpus_update.stays", *(f"exact_match_{group}" for group in tables.OVERLAPS))
    return [name for name in wanted if name in study.results]


def _content(study: StudyFrames, results: list[MetricResult]) -> dict[str, Any]:
    quality = next((result for result in results if not result.is_cost), None)
    several = any(len(study.of(cell)) > 1 for cell, _ in study.cells)
    rows = [
        _row(result, cell) for result in results for cell in result.cells[1:] if cell.values and result.baseline.values
    ]
    kept = [name for name in (rows[0] if rows else ()) if any(row[name] != NOTHING for row in rows)]
    return {
        "sides": [title for _, title in study.cells],
        "runs": {title: len(study.of(cell)) for cell, title in study.cells},
        "verdict": _verdict(quality),
        "flags": [f"{run.cell}, seed {run.seed}, {flag}" for run in study.runs for flag in run.flags],
        "warnings": _warnings(study),
        "numbers": [_numbers(result) for result in results],
        "several": several,
        "differences": [{name: row[name] for name in kept if len(study.cells) > 2 or name != "side"} for row in rows],
        "overlap": tables.overlap_rows(study.results, study.cells),
        "parameters": _parameters(study),
        "identity": tables.identity_rows(study.runs),
    }


def _verdict(result: MetricResult | None) -> dict[str, Any]:
    if result is None:
        return {}
    cells = [
        (c.cell.title, number(c.mean), signed(_delta(result, c)), finding(result, c))
        for c in result.cells[1:]
        if c.values
    ]
    return {
        "metric": result.metric.title,
        "first": result.baseline.cell.title,
        "mean": number(result.baseline.mean),
        "cells": cells,
    }


def _numbers(result: MetricResult) -> dict[str, str]:
    digits = result.metric.digits
    shown = {cell.cell.title: mean_sd(summarise(cell.values.values()), digits) for cell in result.cells}
    return {"metric": result.metric.title} | shown


def _row(result: MetricResult, cell: CellResult) -> dict[str, str]:
    digits = result.metric.digits
    over = cell.comparison if cell.comparison and len(cell.comparison.seeds) > 1 else None
    return {
        "metric": result.metric.title,
        "side": cell.cell.title,
        "Δ": signed(_delta(result, cell), digits),
        "seeds": str(len(over.seeds)) if over else NOTHING,
        "95 %, seeds": interval(over.interval if over else None, digits),
        "p (smallest)": f"{number(cell.corrected_p)} ({number(cell.smallest_p)})" if over else NOTHING,
        "95 %, questions": interval(cell.per_example, digits),
        "questions": str(cell.questions) if cell.per_example else NOTHING,
        "finding": finding(result, cell),
    }


def _warnings(study: StudyFrames) -> list[str]:
    """What is not there yet, and what else differs than a reader would think."""
    found = [*study.problems]
    for run in study.runs:
        if not run.is_complete:
            why = f" ({run.state.error})" if run.state.error else ""
            found.append(f"{run.cell}, seed {run.seed}: {run.state.stage or 'results'} is {run.state.state}{why}.")
    # parameters are declared to differ, so what is left is corpus, engine, library and rounding
    found += confounds(study)
    first = {run.seed for run in study.of(study.record.baseline)}
    for cell, title in study.cells[1:]:
        if not first & {run.seed for run in study.of(cell)}:
            found.append(
                f"{title} has no seed in common with {study.cells[0][1]}: their difference holds that of the seeds, "
                "and in the toy world each seed has questions of its own."
            )
    return list(dict.fromkeys(found))


def _parameters(study: StudyFrames) -> list[dict[str, str]]:
    """Dotted parameter -> its value on each side, for those that differ; a side that does not have it says so."""
    flats = {title: _flat(study.of(cell)) for cell, title in study.cells}
    keys = _differing([*flats.values()])
    return [{"parameter": key} | {title: _show(flat.get(key)) for title, flat in flats.items()} for key in keys]


def _flat(runs: Sequence[Run]) -> dict[str, Any]:
    return {"(system)": runs[0].record.system} | flat_parameters(runs[0].record.params)


def _differing(flats: Sequence[dict[str, Any]]) -> list[str]:
    keys = sorted(set().union(*flats))
    return [key for key in keys if any(flat.get(key) != flats[0].get(key) for flat in flats)]


def _show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _titles(sides: Sequence[Side]) -> list[str]:
    """Names without the run's key, or without the study's name, wherever they stay different."""
    short = [side.name.partition("/")[2] or side.name.rpartition("-")[0] for side in sides]
    counts = Counter(short)
    return [name if counts[name] == 1 else side.name for name, side in zip(short, sides, strict=True)]


def _as_json(
    sides: Sequence[Side], study: StudyFrames, results: Sequence[MetricResult], warnings: list[str]
) -> dict[str, Any]:
    """What was found, for programs: side -> seed -> metric, and the differences from the first side."""
    names = dict(zip((title for _, title in study.cells), (side.name for side in sides), strict=True))
    told = []
    for cell, title in study.cells:
        numbers = {
            str(run.seed): {r.metric.name: study.values(cell, r.metric.name).get(run.seed) for r in results}
            for run in study.of(cell)
        }
        told.append({"name": names[title], "runs": {str(r.seed): r.name for r in study.of(cell)}, "numbers": numbers})
    flats = {names[title]: _flat(study.of(cell)) for cell, title in study.cells}
    return {
        "sides": told,
        "parameters": {key: {n: flat.get(key) for n, flat in flats.items()} for key in _differing([*flats.values()])},
        "differences": [
            _difference(names[cell.cell.title], result, cell)
            for result in results
            for cell in result.cells[1:]
            if cell.values and result.baseline.values
        ],
        "warnings": warnings,
    }


def _difference(side: str, result: MetricResult, cell: CellResult) -> dict[str, Any]:
    over = cell.comparison if cell.comparison and len(cell.comparison.seeds) > 1 else None
    return {
        "metric": result.metric.name,
        "side": side,
        "delta": _delta(result, cell),
        "seeds": list(over.seeds) if over else [],
        "interval_over_seeds": bounds(over.interval) if over else None,
        "corrected_p": cell.corrected_p if over else None,
        "smallest_corrected_p": cell.smallest_p if over else None,
        "interval_over_questions": bounds(cell.per_example),
        "questions": cell.questions,
        "finding": finding(result, cell),
    }
