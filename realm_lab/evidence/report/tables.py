"""The tables of a report: rows of finished strings, one dict per row. The text around them is in the templates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from realm_lab.evidence.report.comparison import MetricResult
from realm_lab.evidence.report.frames import column, summarise
from realm_lab.evidence.report.rendering import mean_sd
from realm_lab.evidence.report.report_data import Report
from realm_lab.evidence.report.section import Rows
from realm_lab.evidence.statistics.wording import (
    NOTHING,
    detectable,
    difference,
    estimate,
    in_short,
    interval,
    needed,
    number,
    signed,
)

if TYPE_CHECKING:
    import pandas as pd

REFERENCE = "bm25"  # results that a run measures of BM25 on the same passages
DIGEST_CHARACTERS = 12


def result_rows(result: MetricResult, results: pd.DataFrame) -> Rows:
    """One metric: a row for each cell, the baseline first, BM25 on the same passages if it was measured; with numbers
    of seeds if a cell lacks one."""
    seeds = {cell.finding.seeds if cell.finding else len(cell.values) for cell in result.cells if cell.values}
    has_seeds = bool(seeds - {results["seed"].nunique()})
    rows = []
    for cell in result.cells:
        finding = cell.finding
        row = {"cell": cell.cell.title}
        if has_seeds:
            row["n"] = str(finding.seeds if finding else len(cell.values))
        row["mean"] = number(cell.mean, result.metric.digits)
        row[_difference([result])] = difference(finding) if finding else NOTHING
        row["p"] = number(finding.corrected_p) if finding else NOTHING
        row["finding"] = in_short(finding) if finding else cell.gap or ""
        if not result.is_measured:
            row["finding"] = f"{cell.gap}: {cell.reason or result.reasons[0]}"
        if cell is result.baseline:
            row["finding"] = f"baseline, {row['finding']}" if cell.gap else "baseline"
        rows.append(row)
    if reference := [*reference_values(results, result.metric.name).values()]:
        shown = number(sum(reference) / len(reference), result.metric.digits)
        rows.append({"cell": "BM25, the same passages", "mean": shown, "finding": "reference"})
        rows[-1] |= {"n": str(len(reference))} if has_seeds else {}
    return rows


def _difference(results: Iterable[MetricResult]) -> str:
    """Heading of the differences, which have an interval from three seeds on."""
    findings = [cell.finding for result in results for cell in result.cells if cell.finding]
    return "difference [95 % interval]" if any(finding.interval for finding in findings) else "difference"


def detail_rows(result: MetricResult, results: pd.DataFrame) -> Rows:
    """Details of the same cells: seeds, spread and range, power, other questions, and published numbers."""
    rows = []
    for cell in result.cells:
        digits, finding, name = result.metric.digits, cell.finding, result.metric.name
        row = {"cell": cell.cell.title} | _spread(cell.values.values(), digits)
        row["smallest p"] = number(finding and finding.comparison.smallest_p)
        row["minimum detectable difference"] = detectable(finding) if finding else NOTHING
        row["seeds needed"] = needed(finding) if finding else NOTHING
        row["90 % interval"] = interval(finding.equivalence_interval if finding and finding.bound else None, digits)
        row["interquartile mean (95 %)"] = estimate(finding and finding.interquartile, digits)
        row["P(higher) (95 %)"] = estimate(finding and finding.probability_higher, 2)
        row["95 %, questions"] = interval(finding and finding.per_example, digits)
        row["95 %, seeds and questions"] = interval(finding and finding.seeds_and_questions, digits)
        row["paper"] = row["paper Δ"] = row["later papers"] = NOTHING
        if cell.paper and name in cell.paper.values:
            row["paper"] = number(cell.paper.values[name])
            row["paper Δ"] = signed(cell.paper.values[name] - cell.paper.baseline[name])
        if cell.paper and name in cell.paper.later:
            row["later papers"] = number(cell.paper.later[name])
        rows.append(row)
    if reference := reference_values(results, result.metric.name):
        rows.append(
            dict.fromkeys(rows[0], NOTHING)
            | {"cell": "BM25, the same passages"}
            | _spread(reference.values(), result.metric.digits)
        )
    known = {key for row in rows for key, value in row.items() if value != NOTHING} | {"n", "range"}
    return [{key: value for key, value in row.items() if key in known} for row in rows]


def reference_values(results: pd.DataFrame, metric: str) -> dict[int, float]:
    """seed -> value of BM25; every run of a seed measures the same, so each seed counts once."""
    name = f"{REFERENCE}.{metric}"
    return dict(results.dropna(subset=[name]).groupby("seed")[name].first()) if name in results else {}


def group_rows(results: pd.DataFrame, cells: Sequence[tuple[str, str]], columns: Mapping[str, str]) -> Rows:
    """Mean and spread of several columns (column -> heading), a row for each cell that has any of them."""
    rows = []
    for name, title in cells:
        found = {key: summarise(column(results, name, key).values()) for key in columns}
        if any(found.values()):
            shown = {heading: mean_sd(found[key], 0 if "questions" in key else 3) for key, heading in columns.items()}
            rows.append({"cell": title, "n": str(max(one.n for one in found.values() if one))} | shown)
    return rows


def run_rows(report: Report) -> Rows:
    """Return every run: its source, and for an incomplete one its stage and the cause."""
    results = report.results
    found = dict(zip(zip(results["cell"], results["seed"], strict=True), results.to_dict("records"), strict=True))
    rows = []
    for run in report.data["runs"]:
        told = found[run["cell"], run["seed"]]
        row = {"cell, seed": f"{run['cell']}, {run['seed']}", "run": run["run"], "state": told["status"]}
        rows.append(row)
        if "commits" in run:
            commits = ", ".join(commit[:DIGEST_CHARACTERS] for commit in run["commits"]) or NOTHING
            row |= {"engine": str(told["engine_version"]), "commit": commits + " + changes" * run["is_changed"]}
            row["corpus"] = str(run["corpus"] or NOTHING)[:DIGEST_CHARACTERS]
        if "stage" in run:
            row |= {"stage": run["stage"], "step": f"{run['step']} of {run['total_steps']}"}
        if "error" in run:
            row["why"] = run["error"] or NOTHING
    return rows


def coverage(results: pd.DataFrame, cell: str | None = None) -> dict[str, Any]:
    """Number of runs, of complete ones, and of those in each state."""
    states = Counter(results["status"] if cell is None else results["status"][results["cell"] == cell])
    return {"runs": states.total(), "complete": states.get("COMPLETE", 0), "states": dict(sorted(states.items()))}


def unfinished(results: pd.DataFrame) -> list[str]:
    """A sentence on runs that are not complete; empty if all are."""
    counts = coverage(results)
    states = ", ".join(f"{count} {state}" for state, count in counts["states"].items() if state != "COMPLETE")
    return [f"Incomplete: {counts['complete']} of {counts['runs']} runs are complete ({states})."] if states else []


def _spread(values: Iterable[float], digits: int) -> dict[str, str]:
    found = summarise(values)
    if found is None:
        return {"n": "0", "sd": NOTHING, "range": NOTHING}
    shown = f"{number(found.min, digits)} to {number(found.max, digits)}"
    return {"n": str(found.n), "sd": number(found.sd, digits), "range": shown}


def mean_of(values: Mapping[int, float], scale: float, digits: int) -> str:
    return number(sum(values.values()) / len(values) / scale, digits) if values else NOTHING
